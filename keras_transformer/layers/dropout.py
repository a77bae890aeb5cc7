"""Dropout whose masks differ between replicas, and whose random state has a stable path.

Depends on the backend: only TensorFlow has replicas. Paper, section 5.4.
"""

import operator
from typing import Any

import keras
from keras import ops

from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Shape, Tensor

if keras.config.backend() == "tensorflow":
    import tensorflow as tf

BITS = 16  # random bits per element: the kept fraction is exact to 2^-16


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """Sets a fraction `rate` of the elements to 0 and scales the rest by `1 / (1 - rate)`.

    Differs from `keras.layers.Dropout` in two ways. Under `tf.distribute`, each replica draws its
    own mask, while Keras draws the same mask on all replicas. The path of the random state starts
    with the layer's path, so that a checkpoint can find it; Keras numbers these states by the order
    in which a process creates them. A mask depends on the seed, the number of masks drawn before,
    and the replica.

    Args:
        rate: fraction dropped, in [0, 1).
        seed: int. Defaults to a random seed, which `keras.utils.set_random_seed` determines.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor of any shape.
        training: unless `True`, the inputs are returned unchanged.

    Returns:
        float tensor of the same shape as `inputs`.

    Raises:
        ValueError: if `rate` is not in [0, 1).

    Masking: a Keras mask is propagated.
    Precision: the compute dtype; the dropped fraction is exact to 2^-16.
    Departures from the paper: none.

    Example:

    >>> layer = keras_transformer.layers.Dropout(0.5, seed=1)
    >>> sorted(set(np.array(layer(np.ones((8, 8)), training=True)).ravel().tolist()))
    [0.0, 2.0]

    Reference:
        [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and less than 1. Received: rate={rate}")
        self.supports_masking = True
        self.rate = float(rate)  # a number of NumPy would make JAX compute in float32
        self.seed = None if seed is None else operator.index(seed)

    def build(self, inputs_shape: Shape | None = None) -> None:
        if self.rate > 0:
            # Not in the constructor: the layer's path is not known there.
            self.seed_generator = keras.random.SeedGenerator(self.seed, name="seed_generator")

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if not training or self.rate == 0:
            return inputs
        is_kept = _random_mask(shape_of(inputs), self.rate, self.seed_generator)
        return ops.where(is_kept, inputs * (1 / (1 - self.rate)), ops.zeros((), inputs.dtype))

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


def _random_mask(shape, rate, seed_generator):
    """Returns a bool tensor, `False` with probability `rate`, that differs between replicas."""
    if keras.config.backend() != "tensorflow":
        return keras.random.uniform(shape, dtype="float32", seed=seed_generator) >= rate
    seed = seed_generator.next()
    replica = tf.distribute.get_replica_context()
    if replica is not None and replica.num_replicas_in_sync > 1:
        seed = tf.random.experimental.stateless_fold_in(seed, replica.replica_id_in_sync_group)
    # Each uint32, drawn without bounds, gives the random bits of two elements.
    size = tf.reduce_prod(shape)
    pairs = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32)
    numbers = tf.reshape(tf.bitcast(pairs, tf.uint16), [-1])[:size]
    threshold = min(round(rate * 2**BITS), 2**BITS - 1)  # uint16 has no 2^16
    return tf.reshape(numbers >= threshold, shape)
