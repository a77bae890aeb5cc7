"""Positions added to float inputs such as time series, image patches or audio frames.

`PositionalEmbedding` uses the same positions for tokens. Depends on the backend: only PyTorch
traces unknown lengths as numbers. Paper, section 3.5.
"""

import operator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import (
    arguments_of,
    as_index,
    require_axes,
    require_in_table,
    require_positive,
)
from keras_transformer.layers.parts import PartsInConfig
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Shape, Tensor


def sinusoidal_encoding(positions: Tensor, hidden_dim: int, tensor2tensor: bool = False) -> Tensor:
    """Encodes positions as sines and cosines of geometrically spaced wavelengths.

    `PE(pos, 2i) = sin(pos / 10000^(2i/D))`, `PE(pos, 2i+1) = cos(pos / 10000^(2i/D))`.

    Tensor2Tensor, the program of the paper's authors, divides `i` by `D/2 - 1` instead of `D/2`, so
    that the last wavelength is exactly `10000 * 2 pi`. Marian does so too.

    Args:
        positions: int or float tensor `(T,)`, counted from 0.
        hidden_dim: the width `D`. If it is odd, the last column is a sine without its cosine; in
            Tensor2Tensor it is 0.
        tensor2tensor: whether to use Tensor2Tensor's wavelengths. Defaults to `False`. A width of 2
            or 3 has one wavelength, which is the paper's.

    Returns:
        tensor `(T, D)`, sines and cosines interleaved; float32 under every dtype policy.

    Example:

    >>> [round(float(value), 4) for value in sinusoidal_encoding(np.arange(2), 4)[1]]
    [0.8415, 0.5403, 0.01, 0.9999]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5;
        [Tensor2Tensor](https://github.com/tensorflow/tensor2tensor), `get_timing_signal_1d`.
    """
    divisor = max(hidden_dim // 2 * 2 - 2, 1) if tensor2tensor else hidden_dim
    frequencies = 10000.0 ** (-np.arange(0, hidden_dim, 2) / divisor)
    if tensor2tensor:
        frequencies[hidden_dim // 2 :] = 0.0  # so an odd last column is sin(0) = 0
    frequencies = ops.convert_to_tensor(frequencies.astype("float32"))
    # (T, 1) * (ceil(D/2),) -> (T, ceil(D/2))
    angles = ops.cast(positions, "float32")[:, None] * frequencies
    # (T, ceil(D/2), 2) -> (T, D) or (T, D + 1): sine, cosine, sine, cosine, ...
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    encoded = ops.reshape(pairs, (-1, hidden_dim + hidden_dim % 2))
    return encoded[:, :hidden_dim] if hidden_dim % 2 else encoded


class Positions(PartsInConfig):
    """Mixin of the layers that add positions: sinusoidal, or learned rows of a table."""

    def _set_positions(self, positions, max_sequence_length, first_position):
        if positions not in ("sinusoidal", "tensor2tensor", "learned", "none"):
            raise ValueError(
                '`positions` must be "sinusoidal", "tensor2tensor", "learned" or "none". '
                f"Received: positions={positions!r}"
            )
        if positions == "learned":
            max_sequence_length = require_positive(max_sequence_length=max_sequence_length)
        if first_position < 0 or (first_position and positions == "learned"):
            raise ValueError(
                "`first_position` must be at least 0, and 0 if positions are learned. "
                f"Received: first_position={first_position}, positions={positions!r}"
            )
        self.positions = positions
        self.first_position = operator.index(first_position)
        self.max_sequence_length = max_sequence_length

    def _build_positions(self, initializer):
        if self.positions == "learned":
            self.position_embeddings = self.add_weight(
                name="positions",
                shape=(self.max_sequence_length, self.hidden_dim),
                initializer=initializer or default_initializer(self.hidden_dim),
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                autocast=False,  # the sum needs float32
            )

    def _encode(self, length, start_index):
        """Returns the encodings of the positions from `start_index` on, float32 `(length, D)`."""
        start_index = as_index(start_index)
        if self.positions == "learned":
            if _has_placeholder_length():
                return ops.zeros((length, self.hidden_dim), "float32")
            start_index = require_in_table(start_index, length, self.max_sequence_length)
        return self.encode_positions(ops.arange(length, dtype="int32") + start_index)

    def encode_positions(self, positions: Tensor) -> Tensor:
        """Returns the position encodings, which `call` adds to the inputs or embeddings.

        Args:
            positions: int tensor `(T,)`, counted from 0, whatever `first_position` is.

        Returns:
            float32 tensor `(T, D)`.
        """
        if self.positions == "none":
            return ops.zeros((shape_of(positions)[0], self.hidden_dim), "float32")
        if self.positions != "learned":
            positions = ops.cast(positions, "float32") + self.first_position
            is_tensor2tensor = self.positions == "tensor2tensor"
            return sinusoidal_encoding(positions, self.hidden_dim, is_tensor2tensor)
        rows = ops.cast(ops.take(self.position_embeddings, positions, axis=0), "float32")
        # On a GPU and in XLA, a lookup outside the table returns zeros or the last row.
        in_table = ops.less(positions, self.max_sequence_length)
        return ops.where(ops.expand_dims(in_table, -1), rows, float("nan"))


def _has_placeholder_length():
    """Whether Keras traces a layer on PyTorch: unknown lengths are then 83 or 89."""
    if keras.config.backend() != "torch":
        return False
    with keras.SymbolicScope() as scope:
        return scope.original_scope is not None


def default_initializer(hidden_dim: int) -> keras.initializers.Initializer:
    """Returns N(0, 1/D): an embedding multiplied by `sqrt(D)` has variance 1."""
    return keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEncoding(Positions):
    """Adds positions to inputs that are vectors already.

    `outputs[:, t] = inputs[:, t] + PE(first_position + start_index + t)`. Letters: B batch, T
    length, D width.

    `keras_hub.layers.SinePositionEncoding` and `PositionEmbedding` return the positions alone; this
    layer returns the sum. The inputs are not scaled.

    Args:
        positions: `"sinusoidal"` (any length, any width), `"tensor2tensor"` (the same with
            Tensor2Tensor's wavelengths, see `sinusoidal_encoding`), `"learned"` (up to
            `max_sequence_length`) or `"none"`. Defaults to `"sinusoidal"`.
        max_sequence_length: number of learned positions. Required for learned positions, otherwise
            unused.
        embeddings_initializer: of learned positions. Defaults to a normal distribution of standard
            deviation `1 / sqrt(D)`; KerasHub's is Glorot uniform.
        embeddings_regularizer: of learned positions. Optional.
        embeddings_constraint: of learned positions. Optional.
        first_position: int. The sinusoidal position of index 0. Defaults to `0`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: float tensor `(B, T, D)`.
        start_index: int or int tensor, the index of the first vector. Defaults to `0`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype.

    Raises:
        ValueError: if an argument is invalid, the inputs do not have 3 axes, or a position is not
            in the table of learned positions; see `PositionalEmbedding` for lengths that are known
            only at run time.

    Masking: a Keras mask is propagated.
    Precision: the sum is computed in float32 and cast last.
    Departures from the paper: none. (`positions="learned"` is its Table 3, row E.)

    Example:

    >>> patches = np.zeros((2, 16, 7))
    >>> tuple(keras_transformer.layers.PositionalEncoding()(patches).shape)
    (2, 16, 7)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """

    def __init__(
        self,
        positions: str = "sinusoidal",
        max_sequence_length: int | None = None,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        embeddings_constraint: Any = None,
        first_position: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self._set_positions(positions, max_sequence_length, first_position)
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = keras.constraints.get(embeddings_constraint)

    def build(self, inputs_shape: Shape) -> None:
        self.hidden_dim = require_positive(hidden_dim=inputs_shape[-1])
        self._build_positions(self.embeddings_initializer)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def compute_output_spec(
        self, inputs: Tensor, start_index: int | Tensor = 0
    ) -> keras.KerasTensor:
        # Otherwise Keras traces `call`, which takes longer.
        require_axes("BTD", inputs=inputs)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs: Tensor, start_index: int | Tensor = 0) -> Tensor:
        require_axes("BTD", inputs=inputs)
        encoded = self._encode(shape_of(inputs)[1], start_index)
        return ops.cast(ops.cast(inputs, "float32") + encoded, self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **arguments_of(PositionalEncoding, self)}
