"""Two replicas on the two logical CPUs of `conftest.py`."""

import functools

import tensorflow as tf


@functools.cache
def mirrored():
    """The one MirroredStrategy of this process: a second one breaks training."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
