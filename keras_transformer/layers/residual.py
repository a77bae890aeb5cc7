"""The part of a block around each sub-layer: dropout, addition, layer normalisation.

The only place that knows whether normalisation stands behind the sub-layer (as in the paper) or
before it. Paper, sections 3.1 and 5.4.
"""

import keras

from keras_transformer.layers.dropout import Dropout


class Residual(keras.layers.Layer):
    """Adds what a sub-layer computes to what it was given, and normalises.

    Post-norm, the paper's: `LayerNorm(x + Dropout(sublayer(x)))`.
    Pre-norm, `normalize_first=True`: `x + Dropout(sublayer(LayerNorm(x)))`; the stack then needs
    one more normalisation at its end.

    Internal to the blocks, and not exported: the sub-layer is a call argument, so that a block can
    hand it masks and caches. Keras tracks no layers among call arguments: a functional model would
    neither train nor save them. The block owns the sub-layer's weights.

    Args:
        dropout: float in [0, 1). Fraction of the sub-layer's outputs dropped. Defaults to `0.1`.
        normalize_first: bool. Defaults to `False`.
        layer_norm_epsilon: float. Added to the variance. Defaults to `1e-6`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        sublayer: callable from a tensor `(B, T, D)` to one of the same shape, or to a tuple that
            begins with it (attention returns its scores as well). Passed by keyword.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)`; if `sublayer` returned a tuple, a tuple with the rest of it.

    Masking: a Keras mask is passed on.
    Precision: layer-norm statistics are always float32.
    Departures from the paper: `normalize_first`, which trains deep stacks more stably.

    Example:

    >>> layer = Residual(dropout=0.0)
    >>> tuple(layer(np.ones((2, 5, 8)), sublayer=lambda x: x * 2).shape)
    (2, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.1 and 5.4; pre-norm:
        [Xiong et al., 2020](https://arxiv.org/abs/2002.04745).
    """

    def __init__(self, dropout=0.1, normalize_first=False, layer_norm_epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
        )
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape):
        self.layer_norm.build(inputs_shape)
        self.dropout_layer.build()

    def call(self, inputs, sublayer, training=None):
        outputs = sublayer(self.layer_norm(inputs) if self.normalize_first else inputs)
        outputs, *rest = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = inputs + self.dropout_layer(outputs, training=training)
        if not self.normalize_first:
            outputs = self.layer_norm(outputs)
        return (outputs, *rest) if rest else outputs
