"""The position-wise feed-forward network, the second half of every block.

Paper, section 3.3.
"""

import keras

from keras_transformer.layers.arguments import require_positive
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.projection import project


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """Applies the same two-layer network to every position: `activation(x W1 + b1) W2 + b2`.

    Letters: B batch, T length, D the width of the input and of the output.

    Args:
        intermediate_dim: int. Width of the hidden layer, the paper's `d_ff`.
        activation: name or callable. Defaults to `"relu"`.
        dropout: float in [0, 1). Fraction of hidden units dropped. Defaults to `0.0`, the paper's.
        use_bias: bool. Defaults to `True`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        training: bool. Dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype.

    Masking: positions do not see each other, so none is needed; a Keras mask is passed on.
    Precision: the dtype policy's.
    Departures from the paper: none.

    Example:

    >>> layer = keras_transformer.layers.FeedForward(intermediate_dim=32)
    >>> tuple(layer(np.zeros((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3, equation (2).
    """

    def __init__(self, intermediate_dim, activation="relu", dropout=0.0, use_bias=True, **kwargs):
        super().__init__(**kwargs)
        require_positive(intermediate_dim=intermediate_dim)
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.intermediate = keras.layers.Dense(
            intermediate_dim,
            activation=self.activation,
            use_bias=use_bias,
            dtype=self.dtype_policy,
            name="intermediate",
        )
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def build(self, inputs_shape):
        self.output_dense = keras.layers.Dense(
            inputs_shape[-1], use_bias=self.use_bias, dtype=self.dtype_policy, name="output"
        )
        self.intermediate.build(inputs_shape)
        self.dropout_layer.build()
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))

    def call(self, inputs, training=None):
        hidden = self.dropout_layer(project(self.intermediate, inputs), training=training)
        return project(self.output_dense, hidden)

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
        }
