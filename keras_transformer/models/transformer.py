"""The sequence-to-sequence Transformer as a functional Keras model.

Token ids come in, logits go out; `fit`, `encode` and `decode_step` run the same two stacks.
Paper, section 3, figure 1.
"""

import zipfile
from pathlib import Path

import keras

from keras_transformer.layers.masks import PaddingMask
from keras_transformer.layers.positional_embedding import PositionalEmbedding
from keras_transformer.models.config import TransformerConfig
from keras_transformer.models.decoder import TransformerDecoder
from keras_transformer.models.encoder import TransformerEncoder

# Keras finds a class by its registration: those that a compiled model is saved with, too.
from keras_transformer.training import losses, metrics, schedules  # noqa: F401
from keras_transformer.training.exact_step import TrainingStep


@keras.saving.register_keras_serializable(package="keras_transformer")
class Transformer(TrainingStep, keras.Model):
    """The encoder-decoder of "Attention Is All You Need".

    `logits = project(decoder(decoder_token_ids, encoder(encoder_token_ids)))`. Letters: B batch, S
    source length, T target length, N heads, K key width, D `hidden_dim`, V `vocabulary_size`.

    Args:
        config: `TransformerConfig`.
        dtype: dtype policy or its name, such as `"mixed_bfloat16"`. Defaults to the global policy.
        name: str. Defaults to `"transformer"`.

    Attributes:
        accumulation_steps: int. Micro-batches that each device cuts its rows into for one update;
            see `ExactTraining`. Defaults to `1`.

    Call arguments:
        inputs: dict of int tensors: `"encoder_token_ids"` `(B, S)`, the source with its end token,
            and `"decoder_token_ids"` `(B, T)`, the start token and the target so far. Padding
            stands on the right.
        training: bool. Dropout is active only if `True`.

    Returns:
        float32 tensor `(B, T, V)`: at each target position the logits of the next token.

    Masking: made here, once, from the token ids. The source's padding is never attended to, and no
        target position sees a later one.
    Precision: logits are float32 under every policy.
    Departures from the paper: attention projections have biases unless `use_bias=False`.

    Example:

    >>> config = keras_transformer.TransformerConfig.tiny(vocabulary_size=50)
    >>> model = keras_transformer.Transformer(config)
    >>> source, target = np.array([[5, 6, 7, 2]]), np.array([[1, 8, 9]])
    >>> logits = model({"encoder_token_ids": source, "decoder_token_ids": target})
    >>> tuple(logits.shape)
    (1, 3, 50)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 3.
    """

    def __init__(self, config, dtype=None, name="transformer", **kwargs):
        if not isinstance(config, TransformerConfig):
            raise ValueError(f"`config` must be a `TransformerConfig`. Received: config={config!r}")
        dtype = keras.dtype_policies.get(dtype)

        # === Layers ===
        padding_mask = PaddingMask(config.pad_token_id, name="padding_mask")
        source_embedding, target_embedding = _embeddings(config, dtype)
        encoder = TransformerEncoder(config, source_embedding, dtype=dtype, name="encoder")
        decoder = TransformerDecoder(config, target_embedding, dtype=dtype, name="decoder")
        if config.tie_embeddings == "none":
            output_projection = keras.layers.Dense(
                config.vocabulary_size, use_bias=False, dtype=dtype, name="output_projection"
            )
        else:
            output_projection = None

        # === Functional model ===
        encoder_token_ids = keras.Input((None,), dtype="int32", name="encoder_token_ids")
        decoder_token_ids = keras.Input((None,), dtype="int32", name="decoder_token_ids")
        mask = padding_mask(encoder_token_ids)
        encoder_output = encoder(encoder_token_ids, padding_mask=mask)
        hidden = decoder(decoder_token_ids, encoder_output, encoder_padding_mask=mask)
        # Softmax and loss want float32; the layer also gives the output its name.
        logits_layer = keras.layers.Activation("linear", dtype="float32", name="logits")
        logits = logits_layer(_project(hidden, target_embedding, output_projection))
        super().__init__(
            inputs={
                "encoder_token_ids": encoder_token_ids,
                "decoder_token_ids": decoder_token_ids,
            },
            outputs=logits,
            name=name,
            **kwargs,
        )

        # === Attributes ===
        self.config = config
        self.dtype_policy = dtype
        self.padding_mask = padding_mask
        self.encoder = encoder
        self.decoder = decoder
        self.output_projection = output_projection
        self.logits_layer = logits_layer

    def encode(self, encoder_token_ids):
        """Runs the encoder.

        Args:
            encoder_token_ids: int tensor `(B, S)`.

        Returns:
            float tensor `(B, S, D)`.
        """
        return self.encoder(encoder_token_ids, padding_mask=self.padding_mask(encoder_token_ids))

    def init_cache(self, encoder_token_ids):
        """Encodes the source and projects, once, what decoding needs of it.

        Args:
            encoder_token_ids: int tensor `(B, S)`.

        Returns:
            nested dict of tensors, the sentences on the first axis of each: for every block the
            keys and values of self-attention, `(B, N, 0, K)`, which `decode_step` grows, and those
            of encoder-decoder attention, `(B, N, S, K)`.
        """
        return self.decoder.init_cache(
            self.encode(encoder_token_ids), self.padding_mask(encoder_token_ids)
        )

    def decode_step(self, token_ids, cache, index, parents=None, return_attention_scores=False):
        """Decodes the next tokens after those in the cache.

        Args:
            token_ids: int tensor `(B, T)`, usually with `T = 1`; with `parents`, `(B, W)`: the
                last token of each of W rival hypotheses, all of the same length.
            cache: from `init_cache`, or from the step before.
            index: int or int tensor: how many tokens came before.
            parents: int tensor `(B, W)`: the hypothesis of the step before that each of these
                extends; at the first step 0. Either all steps have parents, or none.
            return_attention_scores: bool. Defaults to `False`.

        Returns:
            float32 logits `(B, T, V)`, equal to those of the full pass at these positions, and the
            grown cache; with `return_attention_scores`, also a list of one float32 `(B, N, T, S)`
            per block: where each of these tokens looked in the source.
        """
        hidden, scores, cache = self.decoder(
            token_ids,
            cache=cache,
            parents=parents,
            start_index=index,
            return_attention_scores=True,
        )
        logits = self.logits_layer(_project(hidden, self.decoder.embedding, self.output_projection))
        if return_attention_scores:
            return logits, cache, [block["encoder"] for block in scores]
        return logits, cache

    def attention_scores(self, inputs):
        """Returns what every head of every block attends to.

        Args:
            inputs: as for a call of the model.

        Returns:
            dict of lists, one float32 tensor per block: `"encoder"` `(B, N, S, S)`, `"decoder"`
            `(B, N, T, T)` and `"encoder_decoder"` `(B, N, T, S)`.
        """
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

    def get_config(self):
        return {
            "config": self.config.to_dict(),
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
            "name": self.name,
            "trainable": self.trainable,
            "frozen": [name for name, part in self._parts().items() if not part.trainable],
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        frozen = set(config.pop("frozen", []))
        model = cls(TransformerConfig.from_dict(config.pop("config")), **config)
        for name, part in model._parts().items():
            part.trainable = name not in frozen
        return model

    def _parts(self):
        """Layers, the outer ones first, since they hand `trainable` on inwards, then weights.

        By their paths within this model: it may have been made inside another one.
        """
        outside = self.encoder.path.removesuffix(self.encoder.name)
        parts = [*self._flatten_layers(include_self=False), *self.weights]
        return {(part.path or part.name).removeprefix(outside): part for part in parts}


def _embeddings(config, dtype):
    """The embeddings of source and target: one and the same layer if all are tied."""

    def embedding(vocabulary_size, name):
        return PositionalEmbedding(
            vocabulary_size,
            config.hidden_dim,
            positions=config.positions,
            max_sequence_length=config.max_sequence_length,
            dtype=dtype,
            name=name,
        )

    if config.tie_embeddings == "all":
        shared = embedding(config.vocabulary_size, "embedding")
        return shared, shared
    return (
        embedding(config.source_vocabulary_size, "source_embedding"),
        embedding(config.vocabulary_size, "target_embedding"),
    )


def _project(hidden, embedding, output_projection):
    """Hidden states to the vocabulary: by the embedding's own matrix, or by a separate one."""
    if output_projection is None:
        return embedding(hidden, reverse=True)
    return output_projection(hidden)


def load_model(path):
    """Loads a model that `model.save(path)` wrote, with its optimizer if it was compiled.

    Args:
        path: path of the `.keras` file.

    Returns:
        `Transformer`, or whatever Keras model the file holds; all classes of this package are
        known to Keras by then.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a `.keras` file, or a part of it is missing or damaged.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no model at {str(path)!r}.")
    with open(path, "rb") as file:
        try:
            member = zipfile.ZipFile(file).testzip()
            damage = member and f"{member} in it is damaged"
        except Exception as error:  # zipfile has many errors for what is no whole archive
            damage = str(error)
    if damage is not None:
        raise ValueError(f"{path} must be a whole `.keras` file. Received: {damage}")
    return keras.saving.load_model(path)
