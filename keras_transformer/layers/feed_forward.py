"""The position-wise feed-forward network, the last sub-layer of every block.

Paper, section 3.3.
"""

from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.layers.arguments import arguments_of, require_axes, require_positive
from keras_transformer.layers.composite_layer import CompositeLayer, outer_shape, project
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(CompositeLayer):
    """Applies the same two-layer network to every position: `activation(x W1 + b1) W2 + b2`.

    Letters: B batch, T length, D the width of the input and of the output.

    Args:
        intermediate_dim: width of the hidden layer, the paper's `d_ff`.
        activation: name or callable. Defaults to `"relu"`.
        dropout: fraction of hidden units dropped, in [0, 1). Defaults to `0.0`, the paper's.
        use_bias: whether both layers add a bias. Defaults to `True`.
        **kwargs: `kernel_initializer`, `bias_initializer`, `kernel_regularizer`,
            `bias_regularizer`, `activity_regularizer`, `kernel_constraint`, `bias_constraint` and
            `seed` (of dropout), which mean the same as in `MultiHeadAttention`; and
            `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        training: dropout is active only if `True`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype.

    Raises:
        ValueError: if `intermediate_dim` is not a positive integer, or `inputs` does not have 3
            axes.

    Masking: not needed, since the positions are independent; a Keras mask is propagated.
    Precision: the dtype policy's.
    Departures from the paper: none.

    Example:

    >>> layer = keras_transformer.layers.FeedForward(intermediate_dim=32)
    >>> tuple(layer(np.zeros((2, 5, 8))).shape)
    (2, 5, 8)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.3, equation (2).
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: str | Callable = "relu",
        dropout: float = 0.0,
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(use_bias, **kwargs)
        self.intermediate_dim = require_positive(intermediate_dim=intermediate_dim)
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.intermediate = self._dense(self.intermediate_dim, "intermediate", self.activation)
        self.dropout_layer = self._dropout(dropout)

    def build(self, inputs_shape: Shape) -> None:
        self.output_dense = self._dense(inputs_shape[-1], "output")
        self.intermediate.build(inputs_shape)
        self.dropout_layer.build()
        self.output_dense.build((*inputs_shape[:-1], self.intermediate_dim))

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        require_axes("BTD", inputs=inputs)
        outer = outer_shape(inputs)
        hidden = project(self.intermediate, inputs, (*outer, self.intermediate.units))
        hidden = self.dropout_layer(hidden, training=training)
        return project(self.output_dense, hidden, (*outer, self.output_dense.units))

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        arguments = arguments_of(FeedForward, self) | {"activation": activation}
        return {**super().get_config(), **arguments}
