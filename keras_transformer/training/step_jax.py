"""One update on JAX: micro-batches by `jax.lax.scan`, on one or several devices.

One program sees the whole batch, also under `keras.distribution.DataParallel`: a sum over its rows
is a sum over all devices.
"""

import copy
import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax import numpy as jnp
from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter

from keras_transformer.program_cache import keep_programs
from keras_transformer.training import objective
from keras_transformer.training.flat_values import FlatValues, join

keep_programs()  # before anything is compiled

# === Steps ===


def train_step(model: keras.Model, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
    """Makes one update with a batch; returns loss and metrics so far, and the new state."""
    trainable, non_trainable, of_optimizer, of_metrics = map(list, state)
    rows = _to_rows(data)
    divisors = objective.divisors(model, rows)

    def loss_share(trainable, values, rows):
        with _scope(model, trainable, values, of_optimizer) as scope:
            loss = objective.loss_share(model, rows, divisors, training=True)
            scaled = model.optimizer.scale_loss(loss)
        return scaled, (loss, _values(model, scope))

    def add_micro_batch(sums, rows):
        gradient_sums, loss_sum, old_values = sums
        gradients, (loss, values) = jax.grad(loss_share, has_aux=True)(trainable, old_values, rows)
        return jax.tree.map(jnp.add, gradient_sums, gradients), loss_sum + loss, values

    zeros = jax.tree.map(jnp.zeros_like, trainable)
    sums = zeros, jnp.zeros(()), (non_trainable, of_metrics)
    if model.accumulation_steps == 1:
        gradients, loss, values = add_micro_batch(sums, rows)
    else:
        gradients, loss, values = _fold(add_micro_batch, sums, rows, model.accumulation_steps)
    with _scope(model, trainable, values, of_optimizer) as scope:
        # With float16, the gradients are still multiplied by the loss scale here.
        parts = [jnp.float32(part) for part in gradients]
        vector = join(parts) if parts else jnp.zeros(0)  # if all weights are frozen
        norm = jnp.sqrt(jnp.sum(jnp.square(vector))) / model.optimizer.scale_loss(1.0)
        model._loss_tracker.update_state(loss, sample_weight=divisors[0])
        logs = model.get_metrics_result() | {"gradient_norm": norm}
    non_trainable, of_metrics = _values(model, scope)
    optimizer = model.optimizer
    trainable, of_optimizer = optimizer.stateless_apply(of_optimizer, gradients, trainable)
    new_state = trainable, non_trainable, of_optimizer, of_metrics
    return logs, tuple(map(_in_layout_of, state, new_state))


def test_step(model: keras.Model, state: Any, data: Any) -> tuple[dict[str, Any], Any]:
    """Evaluates a batch; returns loss and metrics so far, and the new state."""
    rows = _to_rows(data)
    divisors = objective.divisors(model, rows)
    trainable, *values = state
    with _scope(model, trainable, values) as scope:
        loss = objective.loss_share(model, rows, divisors, training=False)
        model._loss_tracker.update_state(loss, sample_weight=divisors[0])
        logs = model.get_metrics_result()
    return logs, (trainable, *_values(model, scope))


def _scope(model, trainable, values, of_optimizer=()):
    """Returns a scope in which the variables have the given values."""
    variables = (
        *model.trainable_variables,
        *model.non_trainable_variables,
        *model.metrics_variables,
        *(model.optimizer.variables if of_optimizer else ()),
    )
    non_trainable, of_metrics = values
    pairs = zip(variables, (*trainable, *non_trainable, *of_metrics, *of_optimizer), strict=True)
    return keras.StatelessScope(pairs, collect_losses=True)


def _in_layout_of(old, values):
    """Returns values as `FlatValues` in the layout of the old ones, if those are `FlatValues`."""
    return old.with_values(values) if isinstance(old, FlatValues) else values


def _values(model, scope):
    """Returns a scope's values of the non-trainable and the metric variables."""
    non_trainable = map(scope.get_current_value, model.non_trainable_variables)
    return list(non_trainable), list(map(scope.get_current_value, model.metrics_variables))


def _fold(add, sums, rows, number):
    """Adds the rows to the sums in at most `number` parts, the last of which may be smaller."""
    num_rows = rows.y.shape[0]
    size = max(-(-num_rows // number), 1)
    num_full_parts = num_rows // size
    num_stacked = size * num_full_parts

    def stack(tensor):
        # (B, ...) -> (parts, size, ...). Part k has the rows k, k + parts, ..., so that it has
        # rows of all devices.
        shape = (size, num_full_parts, *tensor.shape[1:])
        return jnp.moveaxis(tensor[:num_stacked].reshape(shape), 1, 0)

    def add_part(sums, part):
        return add(sums, part), None

    sums, _ = jax.lax.scan(add_part, sums, jax.tree.map(stack, rows))
    if num_rows > num_stacked:
        sums = add(sums, jax.tree.map(lambda tensor: tensor[num_stacked:], rows))
    return sums


# === Rows of devices ===


def _to_rows(data):
    """Returns the rows of a batch, without those that `_fill_up` added."""
    if len(data) == 4 and objective.num_devices() > 1:
        *data, marker = data
        num_rows = marker.shape[1]
        data = keras.tree.map_structure(lambda tensor: tensor[:num_rows], data)
    return objective.to_rows(tuple(data))


def call_keras(method: Callable, model: keras.Model, arguments: dict[str, Any]) -> Any:
    """Calls a training method of `keras.Model`, with batches that the devices can share."""
    devices = objective.num_devices()
    steps = type(model).train_step, type(model).test_step
    if devices > 1 and steps == (train_step, test_step):  # other steps expect Keras's batches
        for name in {"x", "validation_data"} & arguments.keys():
            arguments[name] = _fill_up(arguments[name], devices)
    try:
        return method(**arguments)
    except ValueError as error:
        if devices > 1 and "evenly divide" in str(error):
            raise ValueError(
                "On several JAX devices, the number of rows of each batch must be divisible by "
                f"the number of devices, {devices}. Pass a dataset of `make_dataset`, whose "
                f"batches are filled up, or choose another `batch_size`. Received: {error}"
            ) from error
        raise


def _fill_up(data, devices):
    """Fills up batches to a multiple of the number of devices; other data stay as they are.

    Batches are those of a `tf.data.Dataset`, or of the Keras adapter that `make_dataset` returns.
    JAX needs equally many rows on each device. The step drops the added rows again. It needs the
    number of real rows as a static shape, so the batch gets a fourth element: `(devices, rows)`.
    """
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(data, tf.data.Dataset):
        return data.map(functools.partial(_add_rows, tf, devices))
    if not isinstance(data, GeneratorDataAdapter):
        return data
    filled = copy.copy(data)
    add_rows = functools.partial(_add_rows, np, devices)
    filled.generator = lambda: itertools.starmap(add_rows, data.generator())
    return filled


def _add_rows(numpy, devices, x, y, sample_weight=None):
    """Adds rows of zeros to a batch, by the functions of NumPy or TensorFlow."""
    if sample_weight is None:
        sample_weight = numpy.ones(numpy.shape(y))
    num_rows = numpy.shape(y)[0]

    def fill(tensor):
        padding = [[0, -num_rows % devices]] + [[0, 0]] * (len(tensor.shape) - 1)
        return numpy.pad(tensor, padding)

    batch = keras.tree.map_structure(fill, (x, y, sample_weight))
    return *batch, numpy.zeros([devices, num_rows], bool)
