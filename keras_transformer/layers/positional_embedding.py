"""Embeddings of tokens and positions; with `reverse=True`, hidden states to logits.

The first layer of encoder and decoder and, if the matrix is shared, the last layer of the model.
Paper, sections 3.4 and 3.5.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import (
    arguments_of,
    require_even,
    require_in_table,
    require_positive,
)
from keras_transformer.types import Shape, Tensor

# The dtype represents every integer from 0 to this one exactly; it rounds some larger ones.
LARGEST_EXACT_ID = {"bfloat16": 2**8, "float16": 2**11}


def sinusoidal_encoding(positions: Tensor, hidden_dim: int) -> Tensor:
    """Encodes positions as sines and cosines of geometrically spaced wavelengths.

    `PE(pos, 2i) = sin(pos / 10000^(2i/D))`, `PE(pos, 2i+1) = cos(pos / 10000^(2i/D))`.

    Args:
        positions: int or float tensor `(T,)`, counted from 0.
        hidden_dim: the width `D`, an even number.

    Returns:
        tensor `(T, D)`, sines and cosines interleaved; float32 under every dtype policy.

    Raises:
        ValueError: if `hidden_dim` is odd.

    Example:

    >>> [round(float(value), 4) for value in sinusoidal_encoding(np.arange(2), 4)[1]]
    [0.8415, 0.5403, 0.01, 0.9999]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    require_even(hidden_dim)
    frequencies = 10000.0 ** (-np.arange(0, hidden_dim, 2) / hidden_dim)
    frequencies = ops.convert_to_tensor(frequencies.astype("float32"))
    # (T, 1) * (D/2,) -> (T, D/2)
    angles = ops.cast(positions, "float32")[:, None] * frequencies
    # (T, D/2, 2) -> (T, D): sine, cosine, sine, cosine, ...
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(pairs, (-1, hidden_dim))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Embeds tokens and their positions: `embeddings[token] * sqrt(D) + position`.

    With `reverse=True` it multiplies hidden states by the same matrix and returns logits: the
    paper's weight sharing. Letters: B batch, T length, D `hidden_dim`, V `vocabulary_size`.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the embeddings. Must be even for sinusoidal positions.
        positions: `"sinusoidal"` (any length) or `"learned"` (up to `max_sequence_length`).
        max_sequence_length: in tokens. Required for learned positions, otherwise unused.
        mask_zero: whether token id 0 is padding. The output then has a Keras mask, as with
            `keras.layers.Embedding`. Defaults to `False`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor `(B, T)` of token ids. Float is accepted too, because `keras.Sequential`
            converts its inputs to float. With `reverse=True`, float tensor `(B, T, D)`.
        start_index: int or int tensor, the position of the first token; in decoding, the number of
            tokens decoded before. Defaults to `0`.
        reverse: whether to project to the vocabulary instead of embedding. Defaults to `False`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype; with `reverse=True`, float32 logits
        `(B, T, V)`.

    Raises:
        ValueError: if an argument is invalid, the dtype of the token ids cannot represent every
            id, or a position is not in the table of learned positions. If the
            positions are known only at run time, a TensorFlow graph raises
            `tf.errors.InvalidArgumentError`. XLA, and JAX with a traced `start_index`, cannot
            raise: they return NaN at positions that are not in the table.

    Masking: with `mask_zero`, the output has a Keras mask, `False` at token id 0. `EncoderBlock`,
        `GlobalAveragePooling1D` and others apply it. With `reverse=True`, the mask of
        the inputs is propagated.
    Precision: embedding and position are added in float32 and cast last; logits are computed in the
        compute dtype and returned as float32.
    Departures from the paper: none. (`positions="learned"` is its Table 3, row E.)

    Example:

    >>> layer = keras_transformer.layers.PositionalEmbedding(vocabulary_size=10, hidden_dim=4)
    >>> embedded = layer(np.array([[1, 5, 2]]))
    >>> tuple(embedded.shape), tuple(layer(embedded, reverse=True).shape)
    ((1, 3, 4), (1, 3, 10))

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), sections 3.4 and 3.5.
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        positions: str = "sinusoidal",
        max_sequence_length: int | None = None,
        mask_zero: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # half precision cannot represent every token id
        require_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(
                f'`positions` must be "sinusoidal" or "learned". Received: positions={positions!r}'
            )
        if positions == "learned":
            require_positive(max_sequence_length=max_sequence_length)
        else:
            require_even(hidden_dim)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.positions = positions
        self.max_sequence_length = max_sequence_length
        self.mask_zero = mask_zero

    def build(self, inputs_shape: Shape | None = None) -> None:
        self.embeddings = self._add_table("embeddings", self.vocabulary_size)
        if self.positions == "learned":
            self.position_embeddings = self._add_table("positions", self.max_sequence_length)

    def compute_output_spec(
        self, inputs: Tensor, start_index: int | Tensor = 0, reverse: bool = False
    ) -> keras.KerasTensor:
        # Keras would trace `call` with a placeholder length, which may exceed the learned table.
        if reverse:
            return keras.KerasTensor((*inputs.shape[:-1], self.vocabulary_size), "float32")
        return keras.KerasTensor((*inputs.shape, self.hidden_dim), self.compute_dtype)

    def call(self, inputs: Tensor, start_index: int | Tensor = 0, reverse: bool = False) -> Tensor:
        return self._project(inputs) if reverse else self._embed(inputs, start_index)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        # Token ids have 2 axes; hidden states, the inputs of `reverse=True`, have 3.
        is_token_ids = len(inputs.shape) == 2
        return ops.not_equal(inputs, 0) if self.mask_zero and is_token_ids else previous_mask

    def _add_table(self, name, rows):
        # Without autocast: casting the rows of a lookup is cheaper than casting the whole matrix,
        # and the sum with the positions needs float32.
        return self.add_weight(
            name=name,
            shape=(rows, self.hidden_dim),
            initializer=keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5),
            autocast=False,
        )

    def encode_positions(self, positions: Tensor) -> Tensor:
        """Returns the position encodings, which `call` adds to the embeddings.

        Args:
            positions: int tensor `(T,)`.

        Returns:
            float32 tensor `(T, D)`.
        """
        if self.positions == "sinusoidal":
            return sinusoidal_encoding(positions, self.hidden_dim)
        rows = ops.cast(ops.take(self.position_embeddings, positions, axis=0), "float32")
        # On a GPU and in XLA, a lookup outside the table returns zeros or the last row.
        in_table = ops.less(positions, self.max_sequence_length)
        return ops.where(ops.expand_dims(in_table, -1), rows, float("nan"))

    def _embed(self, inputs, start_index):
        token_ids, length = self._token_ids(inputs), ops.shape(inputs)[1]
        if self.positions == "learned":
            start_index = require_in_table(start_index, length, self.max_sequence_length)
        positions = ops.arange(length, dtype="int32") + start_index
        embedded = ops.cast(ops.take(self.embeddings, token_ids, axis=0), "float32")
        embedded = embedded * self.hidden_dim**0.5 + self.encode_positions(positions)
        return ops.cast(embedded, self.compute_dtype)

    def _token_ids(self, inputs):
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype in ("int32", "int64"):
            return inputs
        if self.vocabulary_size - 1 > LARGEST_EXACT_ID.get(dtype, math.inf):
            raise ValueError(
                f"Token ids must be integers: {dtype} cannot represent every id below "
                f"`vocabulary_size`. Received: inputs of dtype {dtype}, "
                f"vocabulary_size={self.vocabulary_size}. Start a `keras.Sequential` with "
                '`keras.Input((None,), dtype="int32")`.'
            )
        return ops.cast(inputs, "int32")

    def _project(self, hidden):
        if self.mask_zero and len(hidden.shape) != 3:
            raise ValueError(
                "`inputs` must be (B, T, D) with `mask_zero` and `reverse=True`. "
                f"Received: inputs of shape {tuple(hidden.shape)}"
            )
        # (B, T, D) -> (B * T, D): the gradient of a 3-D product would need memory for (B, D, V).
        flat = ops.cast(ops.reshape(hidden, (-1, self.hidden_dim)), self.compute_dtype)
        matrix = ops.cast(self.embeddings, self.compute_dtype)
        logits = ops.cast(ops.matmul(flat, ops.transpose(matrix)), "float32")
        return ops.reshape(logits, (*ops.shape(hidden)[:-1], self.vocabulary_size))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **arguments_of(PositionalEmbedding, self)}
