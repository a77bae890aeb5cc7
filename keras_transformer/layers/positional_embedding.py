"""Token ids in, scaled embeddings plus positions out; and, in reverse, hidden states to logits.

The first layer of both stacks and, where the matrix is shared, the last layer of the model.
Paper, sections 3.4 and 3.5.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import require_in_table, require_positive

# Integers up to here are exact in these dtypes: a larger token id would become another one.
LARGEST_EXACT_ID = {"bfloat16": 2**8, "float16": 2**11}


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
        mask_zero: bool. Whether token id 0 is padding: the output then carries a Keras mask, as
            that of `keras.layers.Embedding` does. Defaults to `False`.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor `(B, T)` of token ids, or float tensor of whole numbers, as
            `keras.Sequential` makes them; with `reverse=True`, float tensor `(B, T, D)`.
        start_index: int or int tensor, the position of the first token: how many tokens were
            already decoded. Defaults to `0`.
        reverse: bool. Project to the vocabulary instead of embedding. Defaults to `False`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype; with `reverse=True`, float32 logits
        `(B, T, V)`.

    Raises:
        ValueError: if an argument does not fit, the dtype of the token ids cannot hold every id,
            or the input reaches beyond the learned table. In a TensorFlow graph in which that is
            not known before it runs, `tf.errors.InvalidArgumentError` when it runs. Where nothing
            can be raised, in XLA and in JAX with a traced `start_index`, such positions are NaN.

    Masking: with `mask_zero`, a Keras mask that is false at token id 0; `EncoderBlock`,
        `GlobalAveragePooling1D` and others honour it. With `reverse=True` a mask is passed on.
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
        mask_zero=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.autocast = False  # half precision cannot hold every token id
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
        self.mask_zero = mask_zero

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

    def compute_mask(self, inputs, previous_mask=None):
        # Hidden states, the inputs of `reverse=True`, have one axis more than token ids.
        made_here = self.mask_zero and len(inputs.shape) == 2
        return ops.not_equal(inputs, 0) if made_here else previous_mask

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
        rows = ops.cast(ops.take(self.position_embeddings, positions, axis=0), "float32")
        # On a GPU and in XLA, a lookup beyond the table gives zeros or the last row.
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
                f"Token ids must be integers: {dtype} cannot hold every id below "
                f"`vocabulary_size`. Received: inputs of dtype {dtype}, "
                f"vocabulary_size={self.vocabulary_size}. Begin a `keras.Sequential` with "
                '`keras.Input((None,), dtype="int32")`.'
            )
        return ops.cast(inputs, "int32")

    def _project(self, hidden):
        if self.mask_zero and len(hidden.shape) != 3:
            raise ValueError(
                "`inputs` must be (B, T, D) with `mask_zero` and `reverse=True`. "
                f"Received: inputs of shape {tuple(hidden.shape)}"
            )
        # (B, T, D) -> (B*T, D): the gradient of a 3-D product would hold (B, D, V).
        flat = ops.cast(ops.reshape(hidden, (-1, self.hidden_dim)), self.compute_dtype)
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
            "mask_zero": self.mask_zero,
        }
