"""Splitting the rows of a batch over replicas and micro-batches, with padding to equal sizes."""

from typing import Any

import keras
import tensorflow as tf

from keras_transformer.training.rows import Rows


def split_rows(
    dataset: tf.data.Dataset, strategy: tf.distribute.Strategy, with_is_real: bool = True
) -> tf.data.Dataset | tf.distribute.DistributedDataset:
    """Splits each batch of a dataset by rows, one shard for each replica.

    All workers must be given the same batches. All shards of a batch have the same number of rows,
    at least one: they are padded with rows of zeros and weight 0.

    Args:
        dataset: yields `(x, y)` or `(x, y, sample_weight)`; the first axis of each tensor is the
            rows.
        strategy: strategy whose replicas get the shards.
        with_is_real: `False` returns batches without `is_real` and without padding; a replica may
            then get a shard without rows. Defaults to `True`.

    Returns:
        distributed dataset with the same number of batches. Each is
        `(x, y, sample_weight, is_real)`, see `Rows`. With one replica, `dataset` itself.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return dataset

    def worker_dataset(context):
        local = replicas // context.num_input_pipelines
        first = local * context.input_pipeline_id

        def own_shards(*batch):
            shards = keras.tree.map_structure(lambda rows: shard_rows(rows, replicas), batch)
            own = keras.tree.map_structure(lambda shard: shard[first : first + local], shards)
            return tf.data.Dataset.from_tensor_slices(own)

        sharded = dataset.map(_with_is_real).flat_map(own_shards)
        if with_is_real:
            return sharded
        return sharded.map(lambda *batch: select_rows(batch[:3], batch[3]))

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


def select_rows(nest: Any, mask: tf.Tensor) -> Any:
    """Keeps the rows where `mask`, bool `(B,)`, is `True`, in every tensor of a nest."""
    return keras.tree.map_structure(lambda tensor: tf.boolean_mask(tensor, mask), nest)


def to_rows(data: tuple[Any, ...]) -> Rows:
    """Returns the rows of a batch from Keras or from `split_rows`."""
    rows = Rows(*data) if len(data) == 4 else Rows(*_with_is_real(*data))
    rows = keras.tree.map_structure(tf.convert_to_tensor, rows)
    if tf.distribute.get_replica_context().num_replicas_in_sync == 1:
        return rows
    # Keras splits arrays itself and may leave a replica without rows: add a row of padding there.
    missing = tf.maximum(1 - tf.size(rows.is_real), 0)
    return keras.tree.map_structure(lambda tensor: _pad_rows(tensor, missing), rows)


def without_padding(rows: Rows) -> Rows:
    """Drops the padding, but keeps at least one row: a mean over no rows would be NaN."""
    return select_rows(rows, rows.is_real | (tf.range(tf.size(rows.is_real)) == 0))


def symbolic_tensor(spec: Any) -> keras.KerasTensor | None:
    """Returns the shape and dtype of a dataset element, or of one replica's shard of it."""
    (spec, *_) = getattr(spec, "_value_specs", [spec])
    if not isinstance(spec, tf.TensorSpec):
        return None
    return keras.KerasTensor(spec.shape, dtype=spec.dtype.name)


def _with_is_real(x, y, sample_weight=None):
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(y))
    return x, y, sample_weight, tf.fill(tf.shape(y)[:1], True)


def _pad_rows(tensor, number):
    return tf.pad(tensor, [[0, number]] + [[0, 0]] * (tensor.shape.rank - 1))
