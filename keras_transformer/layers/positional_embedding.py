"""Embeddings of tokens and positions; with `reverse=True`, hidden states to logits.

The first layer of encoder and decoder and, if the matrix is shared, the last layer of the model.
Paper, sections 3.4 and 3.5.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.arguments import arguments_of, require_axes, require_positive
from keras_transformer.layers.composite_layer import redraw_lora, save_with_lora
from keras_transformer.layers.float_weight import LAST_ROWS
from keras_transformer.layers.positional_encoding import Positions, default_initializer
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Shape, Tensor

# The dtype represents every integer from 0 to this one exactly; it rounds some larger ones.
LARGEST_EXACT_ID = {"bfloat16": 2**8, "float16": 2**11}


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionalEmbedding(Positions, keras.layers.Embedding):
    """Embeds tokens and their positions: `embeddings[token] * sqrt(D) + position`.

    With `reverse=True` it multiplies hidden states by the same matrix and returns logits: the
    paper's weight sharing. Letters: B batch, T length, D `hidden_dim`, V `vocabulary_size`.

    As in the paper, the embedding is multiplied by `sqrt(D)` before the positions are added;
    `keras_hub.layers.TokenAndPositionEmbedding` does not scale it.

    Args:
        vocabulary_size: number of token ids.
        hidden_dim: width of the embeddings.
        positions: `"sinusoidal"` (any length), `"tensor2tensor"` (the same with Tensor2Tensor's
            wavelengths, see `sinusoidal_encoding`), `"learned"` (up to `max_sequence_length`) or
            `"none"`, for attention with relative positions.
            Defaults to `"sinusoidal"`; `keras_hub.layers.TokenAndPositionEmbedding` learns them.
        max_sequence_length: in tokens. Required for learned positions, otherwise unused.
        mask_zero: whether token id 0 is padding. The output then has a Keras mask, as with
            `keras.layers.Embedding`. Defaults to `False`.
        embeddings_initializer: of the matrix. Defaults to a normal distribution of standard
            deviation `1 / sqrt(D)`; Keras's is uniform in [-0.05, 0.05].
        positions_initializer: of learned positions. Defaults to the same distribution;
            `keras_hub.layers.TokenAndPositionEmbedding` has one initializer for both.
        first_position: int. The sinusoidal position of index 0. Defaults to `0`.
        **kwargs: `embeddings_regularizer` and `embeddings_constraint`, of the matrix and of learned
            positions; `keras.layers.Layer` arguments such as `name` and `dtype`.

    Call arguments:
        inputs: int tensor `(B, T)` of token ids. Float is accepted too, because `keras.Sequential`
            converts its inputs to float. With `reverse=True`, float tensor `(B, T, D)`.
        start_index: int or int tensor, the index of the first token; in decoding, the number of
            tokens decoded before. Defaults to `0`.
        reverse: whether to project to the vocabulary instead of embedding. Defaults to `False`.

    Returns:
        float tensor `(B, T, D)` in the compute dtype; with `reverse=True`, float32 logits
        `(B, T, V)`.

    Raises:
        ValueError: if an argument is invalid, the inputs have another number of axes, the dtype of
            the token ids cannot represent every id, or a position is not in the table of learned
            positions. If the positions are known only at run time, a TensorFlow graph raises
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

    lora_rank: int | None

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        positions: str = "sinusoidal",
        max_sequence_length: int | None = None,
        mask_zero: bool = False,
        embeddings_initializer: Any = None,
        positions_initializer: Any = None,
        first_position: int = 0,
        **kwargs: Any,
    ) -> None:
        vocabulary_size = require_positive(vocabulary_size=vocabulary_size)
        hidden_dim = require_positive(hidden_dim=hidden_dim)
        super().__init__(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=embeddings_initializer or default_initializer(hidden_dim),
            mask_zero=mask_zero,
            **kwargs,
        )
        self.supports_masking = True
        self._set_positions(positions, max_sequence_length, first_position)
        self.positions_initializer = keras.initializers.get(positions_initializer)
        self.last_rows: keras.Variable | None = None
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim

    def build(self, inputs_shape: Shape | None = None) -> None:
        # `Embedding.build` would enable LoRA without `lora_alpha`, before the table of positions
        # exists.
        rank, self.lora_rank = self.lora_rank, None
        super().build(inputs_shape)
        self._build_positions(self.positions_initializer)
        if rank:
            self.enable_lora(rank, self.lora_alpha)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        # `Embedding` has another name for it, but the summary of a model names it as `build` does.
        return (*inputs_shape, self.hidden_dim)

    def compute_output_spec(
        self, inputs: Tensor, start_index: int | Tensor = 0, reverse: bool = False
    ) -> keras.KerasTensor:
        # Otherwise Keras traces `call`, which takes longer.
        require_axes("BTD" if reverse else "BT", inputs=inputs)
        if reverse:
            return keras.KerasTensor((*inputs.shape[:-1], self.vocabulary_size), "float32")
        return keras.KerasTensor((*inputs.shape, self.hidden_dim), self.compute_dtype)

    def call(self, inputs: Tensor, start_index: int | Tensor = 0, reverse: bool = False) -> Tensor:
        require_axes("BTD" if reverse else "BT", inputs=inputs)
        return self._project(inputs) if reverse else self._embed(inputs, start_index)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        # Token ids have 2 axes; hidden states, the inputs of `reverse=True`, have 3.
        is_token_ids = len(inputs.shape) == 2
        return ops.not_equal(inputs, 0) if self.mask_zero and is_token_ids else previous_mask

    def quantized_call(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.call(*args, **kwargs)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        if mode != "int8" or self.lora_enabled:
            raise NotImplementedError(
                "`PositionalEmbedding` can be quantized to int8 only, and not with LoRA, because "
                "Keras has no projection to the vocabulary for them. "
                f"Received: mode={mode!r}, lora_enabled={self.lora_enabled}"
            )
        if self.last_rows is not None:
            raise NotImplementedError(
                "`PositionalEmbedding` must not be quantized while its last rows are trained. Save "
                f"the model, and quantize the loaded one. Received: {self.last_rows.shape[0]} rows"
            )
        # With `type_check`, Keras refuses subclasses of its `Embedding`.
        super().quantize(mode, type_check=False, config=config)

    def enable_lora(self, rank: int, *args: Any, **kwargs: Any) -> None:
        """Freezes the matrix and trains a low-rank difference instead, as `keras.layers.Embedding`.

        Learned positions stay trainable.

        Args:
            rank: rank of the difference.
            *args: `lora_alpha`, `a_initializer` and `b_initializer`, as in Keras.
            **kwargs: the same by name.

        Raises:
            ValueError: if the layer is not built, has LoRA already, is quantized, trains its last
                rows, or has a constraint.
        """
        if self.quantization_mode is not None:
            raise ValueError(
                "`PositionalEmbedding` must not be quantized before `enable_lora`. "
                f"Received: quantization_mode={self.quantization_mode!r}"
            )
        if self.last_rows is not None:
            raise ValueError(
                "`PositionalEmbedding` must not get LoRA while its last rows are trained. Save the "
                f"model, and load it first. Received: {self.last_rows.shape[0]} rows"
            )
        super().enable_lora(require_positive(rank=rank), *args, **kwargs)

    def train_last_rows(self, count: int) -> None:
        """Freezes the matrix and trains its last rows, such as those of tokens that were added.

        Compile the model afterwards. A file of the model holds one matrix, with the trained rows; a
        model loaded from it has this matrix frozen, and no rows to train.

        Args:
            count: number of rows, at most `vocabulary_size`.

        Raises:
            ValueError: if there are not so many rows, or the layer is not built, is quantized, has
                LoRA, or trains its last rows already.
        """
        count = require_positive(count=count)
        if count > self.vocabulary_size or not self.built:
            raise ValueError(
                "The layer must be built, and `count` at most `vocabulary_size`. "
                f"Received: built={self.built}, count={count}, "
                f"vocabulary_size={self.vocabulary_size}"
            )
        if self.quantization_mode is not None or self.lora_enabled or self.last_rows is not None:
            raise ValueError(
                "`train_last_rows` needs a matrix as it was built: not quantized, without LoRA, "
                "and without last rows that are trained. Received: "
                f"quantization_mode={self.quantization_mode!r}, lora_enabled={self.lora_enabled}, "
                f"last_rows={self.last_rows is not None}"
            )
        self._tracker.unlock()  # as Keras does for LoRA, because the layer is built
        self.last_rows = self.add_weight(
            name=LAST_ROWS, shape=(count, self.hidden_dim), initializer="zeros"
        )
        self._tracker.lock()
        matrix = next(weight for weight in self.weights if weight.name == "embeddings")
        matrix.trainable = False
        self.last_rows.assign(matrix[-count:])

    @property
    def embeddings(self) -> Tensor:
        """The matrix `(V, D)`, including a difference by LoRA or last rows that are trained."""
        matrix = super().embeddings
        if self.last_rows is None:
            return matrix
        return ops.concatenate([matrix[: -self.last_rows.shape[0]], self.last_rows])

    def save_own_variables(self, store: Any) -> None:
        store = _UncopiedStore(store)
        if self.lora_enabled:  # then it is not quantized
            save_with_lora(self, "embeddings", store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        if self.last_rows is not None:
            raise ValueError(
                f"Weights of {self.name!r} must be loaded before `train_last_rows`, because a file "
                f"holds one matrix. Received: {self.last_rows.shape[0]} rows that are trained"
            )
        try:
            super().load_own_variables(store)
        except ValueError as error:
            # If a layer fails to load, Keras tries again with an empty store, and shows only the
            # second error.
            shapes = [tuple(store[name].shape) for name in store.keys()] or "another shape"
            raise ValueError(
                f"The embeddings of {self.name!r} must have the shape {self.embeddings.shape}: use "
                f"the `vocabulary_size` and `hidden_dim` of the file's model. Received: {shapes}"
            ) from error
        if self.lora_enabled:
            redraw_lora(self.lora_embeddings_a)

    @property
    def variable_serialization_spec(self) -> dict[str | None, list[str]]:
        """The names of the variables in a file, in order; Keras reads it."""
        spec = super().variable_serialization_spec
        learned = ["position_embeddings"] if hasattr(self, "position_embeddings") else []
        return {mode: [*names, *learned] for mode, names in spec.items()}

    def _embed(self, inputs, start_index):
        token_ids = self._token_ids(inputs)
        encoded = self._encode(shape_of(inputs)[1], start_index)
        if self.quantization_mode is None:
            rows = ops.take(self.embeddings, token_ids, axis=0)
        else:
            rows = super().quantized_call(token_ids)
        embedded = ops.cast(rows, "float32") * self.hidden_dim**0.5 + encoded
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
        # (B, T, D) -> (B * T, D): the gradient of a 3-D product would need memory for (B, D, V).
        flat = ops.cast(ops.reshape(hidden, (-1, self.hidden_dim)), self.compute_dtype)
        matrix = ops.cast(self.embeddings, self.compute_dtype)
        logits = ops.cast(ops.matmul(flat, ops.transpose(matrix)), "float32")
        if self.quantization_mode is not None:
            logits = logits / self.embeddings_scale
        return ops.reshape(logits, (*shape_of(hidden)[:-1], self.vocabulary_size))

    def get_config(self) -> dict[str, Any]:
        config = {**arguments_of(PositionalEmbedding, self), **super().get_config()}
        del config["input_dim"], config["output_dim"]  # here `vocabulary_size` and `hidden_dim`
        return config


class _UncopiedStore:
    """A store that writes from the memory of a weight.

    Keras copies each weight by `np.array` to write it. A copy of the embeddings, often by far the
    largest weight, would take gigabytes.
    """

    def __init__(self, store):
        self._store = store

    def __setitem__(self, key, value):
        self._store[key] = _Uncopied(value)


class _Uncopied:
    """Gives `np.array` the memory of a weight: since NumPy 2.1, `__array__` decides on a copy."""

    def __init__(self, weight):
        self._weight = weight

    def __array__(self, dtype=None, copy=None):
        # `np.asarray` copies a variable, but not its tensor.
        tensor = ops.stop_gradient(self._weight)
        try:
            return np.asarray(tensor, dtype)
        except TypeError:  # PyTorch, on a GPU or in bfloat16
            return np.asarray(ops.convert_to_numpy(tensor), dtype)
