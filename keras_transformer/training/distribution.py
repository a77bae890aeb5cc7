"""Which devices train: one, or all GPUs of this machine.

Paper, section 5.2 (one machine with 8 GPUs).
"""

from functools import cache

import tensorflow as tf


def get_strategy():
    """Returns the strategy under whose scope to build the model.

    One device, or `tf.distribute.MirroredStrategy` over all GPUs where there are several. Always
    the same object, since a second `MirroredStrategy` in one process breaks training after a
    change of the model.

    Returns:
        `tf.distribute.Strategy`.

    Example:

    >>> strategy = keras_transformer.get_strategy()
    >>> with strategy.scope():
    ...     model = keras_transformer.Transformer(
    ...         keras_transformer.TransformerConfig.tiny(vocabulary_size=50)
    ...     )
    >>> strategy is keras_transformer.get_strategy()
    True
    """
    return _strategy(tuple(device.name for device in tf.config.list_logical_devices("GPU")))


@cache
def _strategy(gpus):
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy(gpus)
    return tf.distribute.get_strategy()
