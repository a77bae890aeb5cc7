"""How the rows of a batch are split among replicas and micro-batches."""

import keras
import tensorflow as tf


def split_rows(dataset, strategy, marked=True):
    """Cuts each batch of a dataset into as many blocks of rows as there are replicas.

    All workers must be given the same batches. Blocks have equally many rows; where these do not
    suffice, rows of zeros with weight 0 are added, so that no replica goes without.

    Args:
        dataset: `tf.data.Dataset` of `(x, y)` or `(x, y, sample_weight)`, batches on the first
            axis.
        strategy: `tf.distribute.Strategy`.
        marked: bool. `False`: without `is_real`, and without the rows that it would mark: a replica
            may have none then. Defaults to `True`.

    Returns:
        `tf.distribute.DistributedDataset` of as many batches `(x, y, sample_weight, is_real)`;
        `is_real`, bool `(B,)`, tells the rows of the dataset from those added. `dataset` itself for
        one replica.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return dataset

    def of_worker(context):
        local = replicas // context.num_input_pipelines
        first = local * context.input_pipeline_id

        def blocks(*batch):
            dealt = keras.tree.map_structure(lambda rows: row_blocks(rows, replicas), batch)
            mine = keras.tree.map_structure(lambda block: block[first : first + local], dealt)
            return tf.data.Dataset.from_tensor_slices(mine)

        dealt = dataset.map(_whole_rows).flat_map(blocks)
        return dealt if marked else dealt.map(_without_mark)

    # Moved to the devices by the step itself. Otherwise batches are read ahead as soon as there is
    # an iterator, of which Keras makes more than it uses, and a dataset that counts its epochs by
    # what is taken would skip some.
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    dealt = strategy.distribute_datasets_from_function(of_worker, options)
    # It has counted blocks, of which a batch has several; `fit` is to count batches.
    dealt._cardinality = int(dataset.cardinality())
    return dealt


def row_blocks(rows, number):
    """`(B, ...)` -> `(number, ceil(B / number), ...)`, filled up with zeros."""
    size = -(-tf.shape(rows)[0] // number)
    padding = [[0, size * number - tf.shape(rows)[0]]] + [[0, 0]] * (rows.shape.rank - 1)
    shape = tf.concat([[number, size], tf.shape(rows)[1:]], axis=0)
    return tf.reshape(tf.pad(rows, padding), shape)


def _whole_rows(x, y, sample_weight=None):
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(y))
    return x, y, sample_weight, tf.fill(tf.shape(y)[:1], True)


def _without_mark(x, y, sample_weight, is_real):
    return keras.tree.map_structure(
        lambda rows: tf.boolean_mask(rows, is_real), (x, y, sample_weight)
    )
