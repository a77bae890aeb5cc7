"""Dropout whose masks differ between replicas and whose state has a stable name.

The one layer that may look at the backend: only TensorFlow has replicas. Paper, section 5.4.
"""

import keras
from keras import ops

BITS = 16  # of randomness per element; the kept fraction is exact to 2^-16

if keras.config.backend() == "tensorflow":
    import tensorflow as tf


@keras.saving.register_keras_serializable(package="keras_transformer")
class Dropout(keras.layers.Layer):
    """Sets a fraction `rate` of the elements to 0 and scales the rest by `1 / (1 - rate)`.

    As `keras.layers.Dropout`, but for two things: under `tf.distribute`, each replica draws its own
    mask (Keras's replicas all draw the same one), and the state of the random numbers is found
    below the layer's own path (Keras numbers it by how many were made before in the process), so
    that a checkpoint can hold it. A mask is a function of the seed, of how many were drawn before,
    and of the replica.

    Args:
        rate: float in [0, 1). Fraction dropped.
        seed: int. `None`: drawn from what `keras.utils.set_random_seed` seeds. Defaults to `None`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor of any shape.
        training: bool. Without it the inputs are returned.

    Returns:
        float tensor shaped as `inputs`.

    Masking: a Keras mask is passed on.
    Precision: the compute dtype; the dropped fraction is `rate` to 2^-16.
    Departures from the paper: none.

    Example:

    >>> layer = keras_transformer.layers.Dropout(0.5, seed=1)
    >>> sorted(set(np.array(layer(np.ones((8, 8)), training=True)).ravel().tolist()))
    [0.0, 2.0]

    Reference:
        [Srivastava et al., 2014](https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise ValueError(f"`rate` must be at least 0 and less than 1. Received: rate={rate}")
        self.supports_masking = True
        self.rate = rate
        self.seed = seed

    def build(self, inputs_shape=None):
        if self.rate > 0:
            # Here, and not in the constructor, where the layer's path is not known yet.
            self.seed_generator = keras.random.SeedGenerator(self.seed, name="seed_generator")

    def call(self, inputs, training=None):
        if not training or self.rate == 0:
            return inputs
        kept = _random_mask(ops.shape(inputs), self.rate, self.seed_generator)
        return ops.where(kept, inputs * (1 / (1 - self.rate)), ops.zeros((), inputs.dtype))

    def compute_output_shape(self, inputs_shape):
        return inputs_shape

    def get_config(self):
        return {**super().get_config(), "rate": self.rate, "seed": self.seed}


if keras.config.backend() == "tensorflow":

    def _random_mask(shape, rate, seed_generator):
        """bool tensor, false with probability `rate`, another one on each replica."""
        seed = seed_generator.next()
        replica = tf.distribute.get_replica_context()
        if replica is not None and replica.num_replicas_in_sync > 1:
            seed = tf.random.experimental.stateless_fold_in(seed, replica.replica_id_in_sync_group)
        # One 32-bit number for two elements.
        size = tf.reduce_prod(shape)
        bits = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32)
        bits = tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:size]
        return tf.reshape(bits >= min(round(rate * 2**BITS), 2**BITS - 1), shape)

else:

    def _random_mask(shape, rate, seed_generator):
        """bool tensor, false with probability `rate`."""
        return keras.random.uniform(shape, dtype="float32", seed=seed_generator) >= rate
