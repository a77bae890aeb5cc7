"""KerasHub: an encoder-decoder of its layers, as in its example of translation.

Its best setting with our batches is without XLA, which would compile every shape. With the fixed
padding of its example there is one shape, and XLA compiles the step.

The layers drop attention scores too if they drop anything; this is switched off, because ours do
not. The softmax shares the embedding.
"""

import keras
import keras_hub
from keras import ops

from train_peers import FIXED_LENGTH, LABEL_SMOOTHING, PAD_TOKEN_ID
from train_peers.engine import fixed_batches
from train_peers.keras_engine import KerasEngine, optimizer_of


class KerasHub(KerasEngine):
    jit_compile = False

    def make_model(self, config, policy):
        keras.config.set_dtype_policy(policy)
        model = build(config)
        loss = Smoothed(reduction="mean_with_sample_weight")
        model.compile(optimizer_of(config), loss=loss, jit_compile=self.jit_compile)
        return model


class KerasHubFixed(KerasHub):
    jit_compile = True

    def __init__(self, request):
        super().__init__(request)
        slots = max(labels.size for _, _, labels in self.batches)
        self.batches = fixed_batches(self.batches, FIXED_LENGTH, slots)
        self.tokens = sum(int((labels != PAD_TOKEN_ID).sum()) for _, _, labels in self.batches)


def build(config):
    """Returns the functional model: two inputs of token ids `(B, S)` and `(B, T)` to logits."""
    embedding = keras_hub.layers.ReversibleEmbedding(
        config.vocabulary_size,
        config.hidden_dim,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=config.hidden_dim**-0.5),
    )
    source = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    padding_mask = ops.not_equal(source, PAD_TOKEN_ID)
    sizes = {
        "intermediate_dim": config.intermediate_dim,
        "num_heads": config.num_heads,
        "dropout": config.dropout,
    }
    encoded = embed(source, embedding, config)
    for _ in range(config.num_encoder_layers):
        layer = keras_hub.layers.TransformerEncoder(**sizes)
        encoded = layer(encoded, padding_mask=padding_mask)
        keep_scores(layer._self_attention_layer)
    decoded = embed(target, embedding, config)
    for _ in range(config.num_decoder_layers):
        layer = keras_hub.layers.TransformerDecoder(**sizes)
        decoded = layer(decoded, encoded, encoder_padding_mask=padding_mask)
        keep_scores(layer._self_attention_layer)
        keep_scores(layer._cross_attention_layer)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    return keras.Model(inputs, embedding(decoded, reverse=True))


def embed(token_ids, embedding, config):
    x = embedding(token_ids) * config.hidden_dim**0.5
    x = x + keras_hub.layers.SinePositionEncoding()(x)
    return keras.layers.Dropout(config.dropout)(x)


def keep_scores(attention):
    """Switches the dropout of attention scores off."""
    attention._dropout = 0.0


class Smoothed(keras.losses.Loss):
    """Cross-entropy with label smoothing per token; Keras has it for one-hot labels."""

    def call(self, y_true, y_pred):
        labels = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1], dtype="float32")
        return keras.losses.categorical_crossentropy(
            labels, ops.cast(y_pred, "float32"), from_logits=True, label_smoothing=LABEL_SMOOTHING
        )
