"""Token ids in, scaled embeddings plus positions out; and, in reverse, hidden states to logits.

The first layer of both stacks and, where the matrix is shared, the last layer of the model.
Paper, sections 3.4 and 3.5.
"""

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import require_positive


def sinusoidal_encoding(positions, hidden_dim):
    """Encodes positions as sines and cosines of geometrically spaced wavelengths.

    `PE(pos, 2i) = sin(pos / 10000^(2i/D))`, `PE(pos, 2i+1) = cos(pos / 10000^(2i/D))`.

    Args:
        positions: int or float tensor `(T,)`, counted from 0.
        hidden_dim: int, even. The width `D`.

    Returns:
        float32 tensor `(T, D)`, sines and cosines interleaved, whatever the dtype policy.

    Raises:
        ValueError: if `hidden_dim` is odd.

    Example:

    >>> [round(float(value), 4) for value in sinusoidal_encoding(np.arange(2), 4)[1]]
    [0.8415, 0.5403, 0.01, 0.9999]

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    if hidden_dim % 2:
        raise ValueError(
            "`hidden_dim` must be even, so that every sine has its cosine. "
            f"Received: hidden_dim={hidden_dim}"
        )
    frequencies = 10000.0 ** (-np.arange(0, hidden_dim, 2) / hidden_dim)
    frequencies = ops.convert_to_tensor(frequencies.astype("float32"))
    # (T, 1) * (D/2,) -> (T, D/2)
    angles = ops.cast(positions, "float32")[:, None] * frequencies
    # (T, D/2, 2) -> (T, D): sine, cosine, sine, cosine, ...
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(pairs, (-1, hidden_dim))


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(keras.layers.Layer):
    """Embeds tokens and where they stand: `embeddings[token] * sqrt(D) + position`.

    Called with `reverse=True` it maps hidden states to logits with the same matrix, the tied
    softmax of the paper. Letters: B batch, T length, D `hidden_dim`, V `vocabulary_size`.

    Args:
        vocabulary_size: int. Number of token ids.
        hidden_dim: int. Width of the embeddings. Even for sinusoidal positions.
        positions: `"sinusoidal"` (any length) or `"learned"` (up to `max_sequence_length`).
        max_sequence_length: int, in tokens. Needed for, and only used by, learned positions.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor `(B, T)` of token ids; with `reverse=True`, float tensor `(B, T, D)`.
        start_index: int or int tensor, the position of the first token: how many tokens were
            already decoded. Defaults to `0`.
        reverse: bool. Project to the vocabulary instead of embedding. Defaults to `False`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype; with `reverse=True`, float32 logits
        `(B, T, V)`.

    Raises:
        ValueError: if an argument does not fit, or the input is longer than the learned table.

    Masking: none is made or needed; the model derives masks from token ids.
    Precision: the sum of embedding and position is made in float32 and cast last; logits are
        multiplied in the compute dtype and returned as float32.
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
        vocabulary_size,
        hidden_dim,
        positions="sinusoidal",
        max_sequence_length=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        require_positive(vocabulary_size=vocabulary_size, hidden_dim=hidden_dim)
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(
                f'`positions` must be "sinusoidal" or "learned". Received: positions={positions!r}'
            )
        if positions == "learned":
            require_positive(max_sequence_length=max_sequence_length)
        if positions == "sinusoidal" and hidden_dim % 2:
            raise ValueError(
                f"`hidden_dim` must be even for sinusoidal positions. "
                f"Received: hidden_dim={hidden_dim}"
            )
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.positions = positions
        self.max_sequence_length = max_sequence_length

    def build(self, inputs_shape=None):
        # Not autocast: the sum with the positions is made in float32, and casting the rows that
        # are looked up is cheaper than casting the matrix.
        weight = {"initializer": self._initializer(), "autocast": False}
        self.embeddings = self.add_weight(
            name="embeddings", shape=(self.vocabulary_size, self.hidden_dim), **weight
        )
        if self.positions == "learned":
            weight["initializer"] = self._initializer()
            self.position_embeddings = self.add_weight(
                name="positions", shape=(self.max_sequence_length, self.hidden_dim), **weight
            )

    def compute_output_spec(self, inputs, start_index=0, reverse=False):
        # Stated, not traced: a trace has a made-up length, which may exceed the learned positions.
        if reverse:
            shape = (*inputs.shape[:-1], self.vocabulary_size)
            return keras.KerasTensor(shape, dtype="float32")
        return keras.KerasTensor((*inputs.shape, self.hidden_dim), dtype=self.compute_dtype)

    def call(self, inputs, start_index=0, reverse=False):
        return self._project(inputs) if reverse else self._embed(inputs, start_index)

    def _initializer(self):
        return keras.initializers.RandomNormal(stddev=self.hidden_dim**-0.5)

    def encode_positions(self, positions):
        """Returns what is added to the embeddings at these positions.

        Args:
            positions: int tensor `(T,)`.

        Returns:
            float32 tensor `(T, D)`.
        """
        if self.positions == "sinusoidal":
            return sinusoidal_encoding(positions, self.hidden_dim)
        return ops.cast(ops.take(self.position_embeddings, positions, axis=0), "float32")

    def _embed(self, token_ids, start_index):
        if self.positions == "learned":
            self._check_length(token_ids.shape[1], start_index)
        positions = ops.arange(ops.shape(token_ids)[1], dtype="int32") + start_index
        embedded = ops.cast(ops.take(self.embeddings, token_ids, axis=0), "float32")
        embedded = embedded * self.hidden_dim**0.5 + self.encode_positions(positions)
        return ops.cast(embedded, self.compute_dtype)

    def _check_length(self, length, start_index):
        """Where both are known; in a graph of unknown length the lookup itself fails."""
        if length is None or not isinstance(start_index, int):
            return
        if start_index + length > self.max_sequence_length:
            raise ValueError(
                "The input must not reach beyond `max_sequence_length` when positions are "
                f"learned. Received: {length} tokens, start_index={start_index}, "
                f"max_sequence_length={self.max_sequence_length}"
            )

    def _project(self, hidden):
        # (B, T, D) -> (B*T, D): the gradient of a 3-D product would hold (B, D, V).
        flat = ops.reshape(hidden, (-1, self.hidden_dim))
        matrix = ops.cast(self.embeddings, self.compute_dtype)
        logits = ops.cast(ops.matmul(flat, ops.transpose(matrix)), "float32")
        return ops.reshape(logits, (*ops.shape(hidden)[:-1], self.vocabulary_size))

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "positions": self.positions,
            "max_sequence_length": self.max_sequence_length,
        }
