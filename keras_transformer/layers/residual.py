"""The residual connection around each sub-layer: dropout, addition, layer normalisation.

Only this file distinguishes post-norm (the paper's) and pre-norm. Paper, sections 3.1 and 5.4.
"""

import keras

from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.layer_normalization import LayerNormalization


class Residual(keras.layers.Layer):
    """Adds the output of a sub-layer to its input, and normalises.

    Post-norm, the paper's: `LayerNorm(x + Dropout(sublayer(x)))`.
    Pre-norm, `normalize_first=True`: `x + Dropout(sublayer(LayerNorm(x)))`; the stack then needs a
    final layer normalisation.

    The block calls the sub-layer in between: `residual(x, sublayer(residual.sublayer_input(x)))`.

    Args:
        dropout: float in [0, 1). Fraction of the sub-layer's outputs dropped. Defaults to `0.1`.
        normalize_first: bool. Defaults to `False`.
        layer_norm_epsilon: float. Added to the variance. Defaults to `1e-6`.
        seed: int. Seed of dropout. Optional.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`, `x` in the formulas.
        sublayer_outputs: float tensor `(B, T, D)`.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`.

    Masking: a Keras mask of `inputs` is propagated.
    Precision: layer-norm statistics are always float32.
    Departures from the paper: `normalize_first`, which trains deep stacks more stably.

    Example:

    >>> residual, x = Residual(), np.ones((2, 5, 8))
    >>> tuple(residual(x, 2 * residual.sublayer_input(x)).shape)
    (2, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.1 and 5.4; pre-norm:
        [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).
    """

    def __init__(
        self, dropout=0.1, normalize_first=False, layer_norm_epsilon=1e-6, seed=None, **kwargs
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        shared = {"trainable": self.trainable, "dtype": self.dtype_policy, "name": "layer_norm"}
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, **shared)
        self.dropout_layer = Dropout(dropout, seed, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape, sublayer_outputs_shape=None):
        self.layer_norm.build(inputs_shape)
        self.dropout_layer.build()

    def sublayer_input(self, inputs):
        """Returns the input of the sub-layer, `(B, T, D)`: with pre-norm, normalised `inputs`."""
        return self.layer_norm(inputs) if self.normalize_first else inputs

    def call(self, inputs, sublayer_outputs, training=None):
        outputs = inputs + self.dropout_layer(sublayer_outputs, training=training)
        return outputs if self.normalize_first else self.layer_norm(outputs)
