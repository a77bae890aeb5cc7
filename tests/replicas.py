"""A strategy of two replicas, on the two logical CPUs of `conftest.py`."""

import functools

import tensorflow as tf


@functools.cache
def mirrored():
    """The only MirroredStrategy of this process: training under a second one fails."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
