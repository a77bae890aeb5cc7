"""The sequence-to-sequence Transformer as a functional Keras model.

It maps token ids to logits; `fit`, `encode` and `decode_step` run the same encoder and decoder.
Paper, section 3, figure 1.
"""

from typing import Any, ClassVar, Self

import keras
from keras import ops

from keras_transformer.layers.attention import PaddingMask
from keras_transformer.layers.parts import parts_of, restore_state, state_of
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.models.config import TransformerConfig
from keras_transformer.models.decoder import TransformerDecoder
from keras_transformer.models.encoder import TransformerEncoder
from keras_transformer.models.output_bias import OutputBias
from keras_transformer.training.losses import EXCLUDED_LOGIT
from keras_transformer.training.methods import TrainingStep, reads_weights
from keras_transformer.types import Cache, Tensor

INPUT_NAMES = "encoder_token_ids", "decoder_token_ids"


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(TrainingStep, keras.Model):
    """The encoder-decoder of "Attention Is All You Need".

    `logits = project(decoder(decoder_token_ids, encoder(encoder_token_ids)))`. Letters: B batch, S
    source length, T target length, N heads, K key width, D `hidden_dim`, V `vocabulary_size`.

    Args:
        config: sizes and options. Optional: the fields of `TransformerConfig` can be given instead.
        dtype: dtype policy or its name, such as `"mixed_bfloat16"`. Defaults to the global policy.
        name: defaults to `"transformer"`.
        trainable: defaults to `True`.
        **fields: fields of `TransformerConfig`, such as `vocabulary_size=8000, num_layers=4`, if
            there is no `config`.

    Attributes:
        accumulation_steps: int. Micro-batches per device and update; see `TrainingStep`. Defaults
            to `1`. Like the arguments of `compile`, this attribute, `r_drop` and `fused_loss` are
            kept by `load_model`, and by copies and pickles of a compiled model.
        encoder_class, decoder_class: classes of the stacks. To change one block, subclass the stack
            and the model:

                @keras.saving.register_keras_serializable()
                class MyEncoder(TransformerEncoder):
                    block_class = MyBlock  # a subclass of EncoderBlock

                @keras.saving.register_keras_serializable()
                class MyTransformer(Transformer):
                    encoder_class = MyEncoder

    Call arguments:
        inputs: dict of int tensors: `"encoder_token_ids"` `(B, S)`, the source and its end token,
            and `"decoder_token_ids"` `(B, T)`, the start token and the target so far; or a list of
            the two, in this order. Padding is on the right.
        training: dropout is active only if `True`.
        return_hidden: whether to return the decoder's output, from which the last layer computes
            the logits. Defaults to `False`.

    Returns:
        float32 tensor `(B, T, V)`: at each target position the logits of the next token. With
        `return_hidden`, `(B, T, D)` in the compute dtype.

    Raises:
        ValueError: if `config` is not a `TransformerConfig`, a field is invalid, or the dtype is
            float64.
        NotImplementedError: from `keras.models.clone_model`. Use
            `type(model).from_config(model.get_config())`.

    Masking: the masks are computed once, from the token ids. Source padding is masked, with
        `source_end_token=False` the source's end token too, and the self-attention of the decoder
        is causal.
    Precision: logits are float32 under every policy.
    Departures from the paper: attention projections have biases unless `use_bias=False`.

    Example:

    >>> model = keras_transformer.Transformer(vocabulary_size=50, num_layers=2, hidden_dim=128)
    >>> source, target = np.array([[5, 6, 7, 2]]), np.array([[1, 8, 9]])
    >>> logits = model({"encoder_token_ids": source, "decoder_token_ids": target})
    >>> tuple(logits.shape)
    (1, 3, 50)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.
    """

    encoder_class: ClassVar[type[TransformerEncoder]] = TransformerEncoder
    decoder_class: ClassVar[type[TransformerDecoder]] = TransformerDecoder

    def __init__(
        self,
        config: TransformerConfig | None = None,
        dtype: str | keras.DTypePolicy | None = None,
        name: str = "transformer",
        trainable: bool = True,
        **fields: Any,
    ) -> None:
        config = _config_of(config, fields)
        dtype = _policy_of(dtype)

        # === Layers ===
        masked_end = None if config.source_end_token else config.end_token_id
        padding_mask = PaddingMask(config.pad_token_id, masked_end, name="padding_mask")
        source_embedding, target_embedding = _embeddings(config, dtype)
        encoder = self.encoder_class(config, source_embedding, dtype=dtype, name="encoder")
        decoder = self.decoder_class(config, target_embedding, dtype=dtype, name="decoder")
        output_projection = None
        if config.tie_embeddings == "none":
            output_projection = keras.layers.Dense(
                config.vocabulary_size, use_bias=False, dtype=dtype, name="output_projection"
            )

        # === Functional model ===
        inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in INPUT_NAMES}
        mask = padding_mask(inputs["encoder_token_ids"])
        encoder_output = encoder(inputs["encoder_token_ids"], padding_mask=mask)
        hidden = decoder(inputs["decoder_token_ids"], encoder_output, encoder_padding_mask=mask)
        # Casts to float32, which softmax and loss need, and names the output.
        logits_layer: keras.layers.Layer = keras.layers.Activation(
            "linear", dtype="float32", name="logits"
        )
        if config.output_bias:
            logits_layer = OutputBias(config.excluded_token_id, dtype="float32", name="logits")
        logits = logits_layer(_project(hidden, target_embedding, output_projection))
        super().__init__(inputs=inputs, outputs=logits, name=name, trainable=trainable)
        if not trainable:  # Keras adds the layers after it has frozen those that the model has
            for layer in self.layers:
                layer.trainable = False

        # === Attributes ===
        self.config = config
        self._pad_token_id = config.pad_token_id
        self.excluded_token_id = config.excluded_token_id
        self.dtype_policy = dtype
        self.padding_mask = padding_mask
        self.encoder = encoder
        self.decoder = decoder
        self.output_projection = output_projection
        self.logits_layer = logits_layer

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        mask: Any = None,
        return_hidden: bool = False,
    ) -> Tensor:
        inputs = _named(inputs)
        if not return_hidden:
            return super().call(inputs, training=training, mask=_named(mask))
        source, target = (inputs[name] for name in INPUT_NAMES)
        source_mask = self.padding_mask(source)
        encoded = self.encoder(source, padding_mask=source_mask, training=training)
        return self.decoder(target, encoded, encoder_padding_mask=source_mask, training=training)

    def compute_output_spec(
        self, inputs: Any, *args: Any, return_hidden: bool = False, **kwargs: Any
    ) -> keras.KerasTensor:
        inputs = _named(inputs)
        if not return_hidden:
            return super().compute_output_spec(inputs, *args, **kwargs)
        _, target = (inputs[name] for name in INPUT_NAMES)
        return keras.KerasTensor((*target.shape, self.config.hidden_dim), self.compute_dtype)

    @property
    def output_kernel(self) -> Tensor | None:
        """Float tensor `(V, D)`: `logits = hidden states @ output_kernel^T + output_bias`.

        `None` if the model is quantized or a subclass overrides `call`: the logits are then no such
        product.
        """
        layer = self.output_projection or self.decoder.embedding
        if type(self).call is not Transformer.call or layer.quantization_mode is not None:
            return None
        if self.output_projection is None:
            return ops.convert_to_tensor(layer.embeddings)
        return ops.transpose(layer.kernel)

    @property
    def output_bias(self) -> Tensor | None:
        """Float32 tensor `(V,)`, added to the product; `None` without `config.output_bias`.

        With `predict_padding=False`, the bias of padding is -1e9.
        """
        return self.logits_layer.effective_bias if self.config.output_bias else None

    @property
    def trains_output(self) -> bool:
        """Whether the kernel or the bias of the logits is trained."""
        layers = self.output_projection or self.decoder.embedding, self.logits_layer
        return any(layer.trainable_weights for layer in layers)

    def prepare_training(self) -> None:
        """Sets the bias of added tokens that were never trained to 0; before, it is about -1e9."""
        count = self.config.added_tokens
        if not count:
            return
        bias = ops.convert_to_tensor(self.logits_layer.bias)
        is_added = ops.arange(bias.shape[0]) >= bias.shape[0] - count
        is_untrained = ops.logical_and(is_added, bias <= EXCLUDED_LOGIT / 2)
        self.logits_layer.bias.assign(ops.where(is_untrained, 0.0, bias))

    def _run_through_graph(self, *args, **kwargs):
        if "operation_fn" in kwargs and "call_fn" in kwargs:  # only `clone_model` gives both
            raise NotImplementedError(
                "`keras.models.clone_model` would copy the shared embedding several times, into a "
                "plain Functional model. Use `type(model).from_config(model.get_config())`. "
                f"Received: a {type(self).__name__}"
            )
        return super()._run_through_graph(*args, **kwargs)

    @reads_weights
    def encode(self, encoder_token_ids: Tensor) -> Tensor:
        """Runs the encoder.

        Args:
            encoder_token_ids: int tensor `(B, S)`.

        Returns:
            float tensor `(B, S, D)`.
        """
        return self.encoder(encoder_token_ids, padding_mask=self.padding_mask(encoder_token_ids))

    @reads_weights
    def init_cache(
        self, encoder_token_ids: Tensor, max_length: int | None = None, beam_size: int = 1
    ) -> Cache:
        """Encodes the source and returns the cache before the first target token.

        Args:
            encoder_token_ids: int tensor `(B, S)`.
            max_length: int. The cache then has room for this number of target tokens from the
                start, so its shapes do not change, as a loop of XLA needs. A step beyond it gives
                wrong logits, on PyTorch an error. Defaults to a cache that grows.
            beam_size: int, `W`, the number of hypotheses of each sentence. Needed with
                `max_length` only. Defaults to `1`.

        Returns:
            nest of tensors whose first axis is the batch. For every block, it has the keys
            and values of self-attention, `(B, N, 0, K)`, which `decode_step` extends, and the keys
            and values of encoder-decoder attention, `(B, N, S, K)`. With `max_length`, those of
            self-attention are `(B, N, W * max_length, K)`, and there are tensors without an axis of
            the batch: scalars `index`, and the matrix `"transposed_output_kernel"`, `(D, V)`. The
            matrix is left out if the batch and `beam_size` are 1, or `output_kernel` is `None`.
        """
        mask = self.padding_mask(encoder_token_ids)
        cache = self.decoder.init_cache(self.encode(encoder_token_ids), mask, max_length, beam_size)
        has_one_row = encoder_token_ids.shape[0] == 1 and beam_size == 1
        kernel = None if max_length is None or has_one_row else self.output_kernel
        if kernel is None:
            return cache
        # Transpose once, here: XLA multiplies several rows at half the speed if the matrix is
        # transposed in the product.
        transposed = ops.transpose(ops.cast(kernel, self.decoder.compute_dtype))
        return {**cache, "transposed_output_kernel": transposed}

    @reads_weights
    def decode_step(
        self,
        token_ids: Tensor,
        cache: Cache,
        index: int | Tensor,
        parents: Tensor | None = None,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Computes the next-token logits after each new token; the cache holds the earlier tokens.

        Args:
            token_ids: int tensor `(B, T)`, the new tokens, usually with `T = 1`. With `parents`,
                `(B, W)`: the new token of each of W hypotheses of the same length.
            cache: from `init_cache` or the previous step.
            index: int or int tensor, the number of earlier tokens.
            parents: int tensor `(B, W)`. Hypothesis `w` of sentence `b` extends the hypothesis that
                had beam slot `parents[b, w]` in the previous step; 0 in the first step. Pass it in
                all steps or in none.
            return_attention_scores: defaults to `False`.

        Returns:
            float32 logits `(B, T, V)`, equal to the logits of the full pass at these positions, and
            the extended cache; with `return_attention_scores`, also a list: the
            encoder-decoder attention of each block, float32 `(B, N, T, S)`.
        """
        hidden, scores, cache = self.decoder(
            token_ids, cache=cache, parents=parents, start_index=index, return_attention_scores=True
        )
        if "transposed_output_kernel" in cache:
            logits = ops.matmul(hidden, cache["transposed_output_kernel"])
        else:
            logits = _project(hidden, self.decoder.embedding, self.output_projection)
        logits = self.logits_layer(logits)
        if return_attention_scores:
            return logits, cache, [block["encoder"] for block in scores]
        return logits, cache

    @reads_weights
    def attention_scores(self, inputs: Any) -> dict[str, list[Tensor]]:
        """Returns the attention scores of every block and head.

        Args:
            inputs: the same as in a call of the model.

        Returns:
            dict of lists, one float32 tensor per block: `"encoder"` `(B, N, S, S)`, `"decoder"`
            `(B, N, T, T)` and `"encoder_decoder"` `(B, N, T, S)`.
        """
        inputs = _named(inputs)
        mask = self.padding_mask(inputs["encoder_token_ids"])
        encoder_output, encoder_scores = self.encoder(
            inputs["encoder_token_ids"], padding_mask=mask, return_attention_scores=True
        )
        _, decoder_scores = self.decoder(
            inputs["decoder_token_ids"],
            encoder_output,
            encoder_padding_mask=mask,
            return_attention_scores=True,
        )
        return {
            "encoder": encoder_scores,
            "decoder": [scores["self"] for scores in decoder_scores],
            "encoder_decoder": [scores["encoder"] for scores in decoder_scores],
        }

    def get_config(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            **state_of(self._parts()),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict | None = None) -> Self:
        config = dict(config)
        state = {name: config.pop(name, {}) for name in ("frozen", "quantized", "lora")}
        model = cls(TransformerConfig.from_dict(config.pop("config")), **config)
        restore_state(model._parts, state)
        return model

    def _parts(self):
        """Returns a dict from path to layer or weight.

        Paths are relative to this model, even if it is part of a larger model. Outer layers come
        first, because setting `trainable` on a layer also sets it on its parts.
        """
        return parts_of(self, prefix=self.encoder.path.removesuffix(self.encoder.name))


def _named(inputs):
    """Returns a list of source and target as a dict by name; anything else as it is.

    Keras would assign the elements to the inputs in alphabetical order.
    """
    if isinstance(inputs, list | tuple) and len(inputs) == len(INPUT_NAMES):
        return dict(zip(INPUT_NAMES, inputs, strict=True))
    return inputs


def _config_of(config, fields):
    """Returns the given config, or a new one of the fields; raises if both or none are given."""
    if config is None and fields:
        return TransformerConfig.from_dict(fields)
    if fields:
        raise ValueError(
            "Give a `config` or its fields, not both; to change a field of a config: "
            f"`dataclasses.replace(config, ...)`. Received: config={config!r}, {fields}"
        )
    if not isinstance(config, TransformerConfig):
        raise ValueError(
            "`config` must be a `TransformerConfig`; without it, give fields of one, such as "
            f"`vocabulary_size=8000, num_layers=4`. Received: config={config!r}"
        )
    return config


def _policy_of(dtype):
    """Returns the dtype policy; raises for float64."""
    policy = keras.dtype_policies.get(dtype)
    if policy.variable_dtype == "float64":
        raise ValueError(
            "`dtype` must not be float64, because softmax, logits and loss are float32. "
            f'Received: {policy.name}. Pass `dtype="float32"`, also if `keras.config.floatx()` is '
            "float64; single layers take float64."
        )
    return policy


def _embeddings(config, dtype):
    """Returns the embeddings of source and target: one layer twice with `tie_embeddings="all"`."""

    def embedding(size, name):
        return PositionalEmbedding(
            size,
            config.hidden_dim,
            "none" if config.positions == "relative" else config.positions,
            config.max_sequence_length,
            first_position=config.first_position,
            dtype=dtype,
            name=name,
        )

    if config.tie_embeddings == "all":
        shared = embedding(config.vocabulary_size, "embedding")
        return shared, shared
    source = embedding(config.source_vocabulary_size, "source_embedding")
    return source, embedding(config.vocabulary_size, "target_embedding")


def _project(hidden, embedding, output_projection):
    """Projects hidden states to the vocabulary: by the embedding matrix or a separate one."""
    if output_projection is None:
        return embedding(hidden, reverse=True)
    return output_projection(hidden)
