"""The exact step on JAX: micro-batches by `jax.lax.scan`, on one or several devices.

One program sees the whole batch, also under `keras.distribution.DataParallel`: a sum over its rows
is a sum over all devices.
"""

import sys
from typing import Any

import jax
import keras
from jax import numpy as jnp

from keras_transformer.training.fused_step import FusedTraining
from keras_transformer.training.rows import real_rows


class ExactTraining(FusedTraining):
    """The exact step on JAX."""

    def train_step(self, state: Any, data: Any) -> Any:
        trainable, non_trainable, of_optimizer, of_metrics = state
        rows = _without_filling(data)
        divisors = self._divisors(rows)

        def loss_share(trainable, non_trainable, of_metrics, rows):
            with self._scope(trainable, non_trainable, of_metrics, of_optimizer) as scope:
                loss = self._loss_share(rows, divisors, training=True)
                scaled = self.optimizer.scale_loss(loss)
            return scaled, (loss, self._values(scope))

        def add_micro_batch(sums, rows):
            gradients, total, values = sums
            share, (loss, values) = jax.grad(loss_share, has_aux=True)(trainable, *values, rows)
            return jax.tree.map(jnp.add, gradients, share), total + loss, values

        zeros = jax.tree.map(jnp.zeros_like, trainable)
        sums = zeros, jnp.zeros(()), (non_trainable, of_metrics)
        gradients, loss, (non_trainable, of_metrics) = _fold(
            add_micro_batch, sums, rows, self.accumulation_steps
        )
        with self._scope(trainable, non_trainable, of_metrics, of_optimizer) as scope:
            # With float16, the gradients are still multiplied by the loss scale here.
            norm = _global_norm(gradients) / self.optimizer.scale_loss(1.0)
            self._track_loss(loss, divisors)
            logs = self.get_metrics_result() | {"gradient_norm": norm}
        non_trainable, of_metrics = self._values(scope)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return logs, (trainable, non_trainable, of_optimizer, of_metrics)

    def test_step(self, state: Any, data: Any) -> Any:
        rows = _without_filling(data)
        divisors = self._divisors(rows)
        with self._scope(*state) as scope:
            loss = self._loss_share(rows, divisors, training=False)
            self._track_loss(loss, divisors)
            logs = self.get_metrics_result()
        return logs, (state[0], *self._values(scope))

    def _call_keras(self, method, arguments):
        steps = type(self).train_step, type(self).test_step
        if steps == (ExactTraining.train_step, ExactTraining.test_step):
            for name in {"x", "validation_data"} & arguments.keys():
                arguments[name] = _fill_up(arguments[name])
        try:
            return super()._call_keras(method, arguments)
        except ValueError as error:
            if _num_devices() > 1 and "evenly divide" in str(error):
                raise ValueError(
                    "On several JAX devices, the number of rows of each batch must be divisible by "
                    f"the number of devices, {_num_devices()}. Pass a `tf.data.Dataset`, whose "
                    f"batches are filled up, or choose another `batch_size`. Received: {error}"
                ) from error
            raise

    def _reason_for_logits(self):
        if _num_devices() > 1:
            return "on several JAX devices, a part of the tokens would lie on some of them only"
        return super()._reason_for_logits()

    def _scope(self, trainable, non_trainable, of_metrics, of_optimizer=()):
        """Returns a scope in which the variables have the given values."""
        of_own = self.optimizer.variables if of_optimizer else []
        variables = (
            *self.trainable_variables,
            *self.non_trainable_variables,
            *self.metrics_variables,
            *of_own,
        )
        values = (*trainable, *non_trainable, *of_metrics, *of_optimizer)
        pairs = zip(variables, values, strict=True)
        return keras.StatelessScope(pairs, collect_losses=True)

    def _values(self, scope):
        """Returns what a scope left in the non-trainable and in the metric variables."""
        variables = self.non_trainable_variables, self.metrics_variables
        return tuple([scope.get_current_value(variable) for variable in each] for each in variables)


def _fold(add, sums, rows, number):
    """Adds the rows to the sums in `number` parts, or fewer if there are fewer rows."""
    if number == 1:
        return add(sums, rows)
    num_rows = rows.y.shape[0]
    size = -(-num_rows // number)
    number = num_rows // size

    def stack(tensor):
        # (B, ...) -> (number, size, ...). A part takes every number-th row: from all devices.
        shape = (size, number, *tensor.shape[1:])
        return jnp.moveaxis(tensor[: size * number].reshape(shape), 1, 0)

    sums, _ = jax.lax.scan(lambda *each: (add(*each), None), sums, jax.tree.map(stack, rows))
    if num_rows > size * number:
        sums = add(sums, jax.tree.map(lambda tensor: tensor[size * number :], rows))
    return sums


def _global_norm(gradients):
    return jnp.sqrt(sum(jnp.sum(jnp.square(each.astype("float32"))) for each in gradients))


def _num_devices():
    """Number of devices that the rows of a batch are divided over."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[mesh.axis_names.index(distribution.batch_dim_name)]


def _fill_up(data):
    """Fills up the batches of a `tf.data.Dataset` to a multiple of the number of devices.

    Keras divides the rows over the devices, which JAX can only do evenly.

    Returns:
        dataset of `(x, y, sample_weight, marker)`. `marker` is `(devices, rows)`: its shape tells
        the step, when it is compiled, how many rows are not filling.
    """
    tf = sys.modules.get("tensorflow")
    devices = _num_devices()
    if devices == 1 or tf is None or not isinstance(data, tf.data.Dataset):
        return data
    if len(data.element_spec) == 4:  # already: `fit` calls `evaluate`
        return data

    def fill_up(x, y, sample_weight=None):
        if sample_weight is None:
            sample_weight = tf.ones(tf.shape(y))
        num_rows = tf.shape(y)[0]

        def add_rows(tensor):
            padding = [[0, -num_rows % devices]] + [[0, 0]] * (tensor.shape.rank - 1)
            return tf.pad(tensor, padding)

        batch = keras.tree.map_structure(add_rows, (x, y, sample_weight))
        return *batch, tf.zeros([devices, num_rows], tf.bool)

    return data.map(fill_up)


def _without_filling(data):
    if len(data) == 4:
        *batch, marker = data
        data = keras.tree.map_structure(lambda tensor: tensor[: marker.shape[1]], tuple(batch))
    return real_rows(data)
