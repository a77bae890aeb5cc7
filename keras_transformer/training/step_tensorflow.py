"""One update on TensorFlow, by replicas of one or several workers and by micro-batches.

Keras, in contrast, divides by the tokens of each replica, and clips before the all-reduce.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training import objective
from keras_transformer.training.objective import Rows, num_replicas
from keras_transformer.training.optimizers import build_optimizer, without_loss_scaling
from keras_transformer.training.workers import num_workers

# === Steps ===


def train_step(model: keras.Model, data: Any) -> dict[str, tf.Tensor]:
    """Makes one update with a replica's part of a batch; returns loss and metrics so far."""
    rows, replicas = _to_rows(model, data), num_replicas(model)
    # The counters of optimizer and dropout do not depend on the batch. Without the control
    # dependency, TensorFlow may advance them once more before it finds that the dataset has ended.
    with tf.control_dependencies(keras.tree.flatten(rows[:3])):
        divisors = _sum_over_replicas(objective.divisors(model, rows, replicas))
        gradients, loss = _sum_over_replicas(_gradients(model, rows, divisors))
        # With float16, the gradients are still multiplied by the loss scale here.
        norm = tf.linalg.global_norm(gradients) / model.optimizer.scale_loss(1.0)
        if replicas > 1:
            # All replicas hold the same gradient and the optimizer sums it, so divide by N. The
            # optimizer would clip the parts, so clip before.
            gradients = [gradient / replicas for gradient in _clip(model.optimizer, gradients)]
        model.optimizer.apply(gradients, model.trainable_variables)
        return _logs(model, loss, divisors) | {"gradient_norm": norm}


def test_step(model: keras.Model, data: Any) -> dict[str, tf.Tensor]:
    """Evaluates a replica's part of a batch; returns loss and metrics so far."""
    rows = _to_rows(model, data)
    divisors = _sum_over_replicas(objective.divisors(model, rows, num_replicas(model)))
    loss = objective.loss_share(model, _without_padding(rows), divisors, training=False)
    return _logs(model, _sum_over_replicas(loss), divisors)


def _gradients(model, rows, divisors):
    """Returns this replica's share of gradient and loss, summed over its micro-batches."""
    variables = [variable.value for variable in model.trainable_variables]
    steps = model.accumulation_steps

    def micro_batch(rows):
        with tf.GradientTape() as tape:
            loss = objective.loss_share(model, _without_padding(rows), divisors, training=True)
            scaled_loss = model.optimizer.scale_loss(loss)
        zero = tf.UnconnectedGradients.ZERO
        gradients = tape.gradient(scaled_loss, variables, unconnected_gradients=zero)
        return tf.nest.map_structure(tf.convert_to_tensor, gradients), loss

    if steps == 1:
        return micro_batch(rows)
    shards = keras.tree.map_structure(lambda tensor: shard_rows(tensor, steps), rows)
    zeros = [tf.zeros(value.shape, value.dtype) for value in variables], tf.zeros(())

    def add_micro_batch(index, sums):
        parts = micro_batch(keras.tree.map_structure(lambda shard: shard[index], shards))
        return index + 1, keras.tree.map_structure(tf.add, sums, parts)

    _, sums = tf.while_loop(
        lambda index, _: index < steps, add_micro_batch, (0, zeros), maximum_iterations=steps
    )
    return sums


def _clip(optimizer, gradients):
    """Clips the gradients as the optimizer does on one device."""
    inner = without_loss_scaling(optimizer)
    if not (inner.clipnorm or inner.global_clipnorm or inner.clipvalue):
        return gradients
    scale = optimizer.scale_loss(1.0)  # other than 1 with float16
    clipped = inner._clip_gradients([gradient / scale for gradient in gradients])
    # Loss scaling must see an overflow, which clipping by value would hide.
    pairs = zip(gradients, clipped, strict=True)
    return [tf.where(tf.math.is_finite(old), new * scale, old) for old, new in pairs]


def _logs(model, loss, divisors):
    """Updates the loss of the epoch; returns loss and metrics so far, over all replicas."""
    replicas = num_replicas(model)
    # Metric variables are summed over replicas when read, so each adds 1/N of the global sum.
    model._loss_tracker.update_state(loss, sample_weight=divisors[0] / replicas)
    if replicas == 1:
        return model.get_metrics_result()
    metrics = [variable for metric in model.metrics for variable in metric.variables]
    sums = _sum_over_replicas([variable.value + 0 for variable in metrics])
    with keras.StatelessScope(state_mapping=zip(metrics, sums, strict=True)):
        return model.get_metrics_result()


def _sum_over_replicas(values):
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values)


# === Rows of replicas and micro-batches ===


def split_rows(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> Any:
    """Splits each batch of a dataset by rows, one shard for each replica of a strategy.

    All workers must be given the same batches. A replica may get a shard without rows.

    Args:
        dataset: its elements are nests of tensors, such as `(x, y, sample_weight)`, whose first
            axis is the rows.
        strategy: strategy whose replicas get the shards.

    Returns:
        distributed dataset with the same number of batches.
    """
    replicas = strategy.num_replicas_in_sync

    def worker_dataset(context):
        count = replicas // context.num_input_pipelines  # shards of this worker
        first = count * context.input_pipeline_id

        def rows_of_worker(num_rows):
            size = -(-num_rows // replicas)
            return slice(first * size, (first + count) * size)

        def shards_of_worker(*batch):
            is_real = tf.fill(tf.shape(keras.tree.flatten(batch)[0])[:1], True)
            shards = keras.tree.map_structure(
                lambda rows: shard_rows(rows, replicas)[first : first + count], (batch, is_real)
            )
            return tf.data.Dataset.from_tensor_slices(shards)

        # A dataset of `make_dataset` does not read the rows of other workers.
        batches = dataset.of_worker(rows_of_worker) if hasattr(dataset, "of_worker") else dataset
        return batches.flat_map(shards_of_worker).map(_select_rows)

    # No prefetching to the devices: Keras creates iterators that it never reads. Prefetching would
    # read batches for them, and `BatchStream` would count these as consumed.
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    distributed = strategy.distribute_datasets_from_function(worker_dataset, options)
    # TensorFlow counts shards here, and `fit` needs the number of batches.
    distributed._cardinality = int(dataset.cardinality())
    return distributed


def shard_rows(rows: tf.Tensor, num_shards: int) -> tf.Tensor:
    """`(B, ...)` -> `(num_shards, ceil(B / num_shards), ...)`, padded with zeros."""
    batch_size = tf.shape(rows)[0]
    size = -(-batch_size // num_shards)
    shape = tf.concat([[num_shards, size], tf.shape(rows)[1:]], axis=0)
    return tf.reshape(_pad_rows(rows, size * num_shards - batch_size), shape)


def _to_rows(model, data):
    """Returns the rows of a batch.

    With several replicas or micro-batches, `is_real` is set, and a batch without rows gets one row
    of padding.
    """
    rows = objective.to_rows(data)
    if num_replicas(model) * model.accumulation_steps == 1:
        return rows
    rows = rows._replace(is_real=tf.fill(tf.shape(rows.y)[:1], True))
    missing = tf.maximum(1 - tf.size(rows.is_real), 0)
    return keras.tree.map_structure(lambda tensor: _pad_rows(tensor, missing), rows)


def _without_padding(rows):
    """Drops the padding, but keeps at least one row: a mean over no rows would be NaN."""
    if rows.is_real is None:
        return rows
    return Rows(*_select_rows(rows, rows.is_real | (tf.range(tf.size(rows.is_real)) == 0)))


def _select_rows(nest, mask):
    return keras.tree.map_structure(lambda tensor: tf.boolean_mask(tensor, mask), nest)


def _pad_rows(tensor, number):
    return tf.pad(tensor, [[0, number]] + [[0, 0]] * (tensor.shape.rank - 1))


# === Called instead of Keras's methods ===


def call_keras(method: Callable, model: keras.Model, arguments: dict[str, Any]) -> Any:
    """Calls a training method of `keras.Model`, with batches that are split over the replicas."""
    if num_replicas(model) > 1 and method.__name__ in ("fit", "evaluate"):
        for name in {"x", "validation_data"} & arguments.keys():
            arguments[name] = _split(arguments[name], model.distribute_strategy)
    if model.built and method.__name__ in ("fit", "train_on_batch"):
        build_optimizer(model)  # a function that creates variables would be traced twice
    try:
        return method(**arguments)
    except BaseException:
        # A `tf.function` whose first trace failed cannot create variables in a second one: drop
        # both functions, so that the next call makes new ones.
        model.train_function = model.test_function = None
        raise


def _split(data, strategy):
    """Splits the batches of a dataset by rows; Keras splits those of other data."""
    if isinstance(data, tf.data.Dataset):
        return split_rows(data, strategy)
    is_distributed = data is None or isinstance(data, tf.distribute.DistributedDataset)
    if num_workers(strategy) > 1 and not is_distributed:
        raise ValueError(
            "With several workers, the data must be a `tf.data.Dataset` that yields the same "
            f"batches on each worker. Received: {type(data).__name__}"
        )
    return data


def make_function(model: keras.Model, step: Callable) -> Callable:
    """Returns the function that runs `steps_per_execution` steps on several replicas.

    Keras's own function cannot run several steps on replicas, and on several workers it averages
    the logs over an axis that they do not have.
    """
    strategy = model.distribute_strategy

    def one_step(iterator):
        logs = strategy.run(step, args=(iterator.get_next(),))
        return keras.tree.map_structure(
            lambda value: tf.reduce_mean(strategy.experimental_local_results(value), 0), logs
        )

    if not model.run_eagerly:
        one_step = tf.function(one_step, reduce_retracing=True, autograph=False)

    def steps(iterator):
        if not isinstance(iterator, tf.distribute.DistributedIterator):
            # From `train_on_batch`: Keras would copy the batch to each replica.
            batch = tuple(part for part in next(iterator) if part is not None)
            iterator = iter(split_rows(tf.data.Dataset.from_tensors(batch), strategy))
        logs = one_step(iterator)
        for _ in range(1, model.steps_per_execution):
            try:
                logs = one_step(iterator)
            except tf.errors.OutOfRangeError:
                break  # the next call raises it again, which ends the epoch
        return logs

    return steps


def symbolic_batch(dataset: Any) -> Any:
    """Returns the shapes of a dataset's batches; reads no batch, which a generator would lose."""

    def symbolic(spec):
        spec = getattr(spec, "_value_specs", [spec])[0]  # of the first replica's shard
        is_tensor = isinstance(spec, tf.TensorSpec)
        return keras.KerasTensor(spec.shape, dtype=spec.dtype.name) if is_tensor else None

    return keras.tree.map_structure(symbolic, dataset.element_spec)
