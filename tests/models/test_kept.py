"""What a file, a copy and a config keep: what was done to parts, and the attributes of training."""

import copy
import functools
import json
import pickle

import keras
import numpy as np
import pytest

from keras_transformer import SmoothedCrossEntropy, Transformer, TransformerConfig, layers
from keras_transformer.models import TransformerDecoder, TransformerEncoder
from tests.builders import normal, padded_ids, quantize, randomize, to_numpy, token_inputs

V, D, T = 11, 8, 4
SIZES = {"num_heads": 2, "intermediate_dim": 16}
CONFIG = TransformerConfig(vocabulary_size=V, hidden_dim=D, num_layers=1, dropout=0.0, **SIZES)
LEARNED = {"positions": "learned", "max_sequence_length": 6}
EMBEDDING = {"vocabulary_size": V, "hidden_dim": D, **LEARNED}
ids, x = padded_ids([T, 3], V, seed=1), normal(2, T, D)


@keras.saving.register_keras_serializable(package="test_kept")
class Gated(layers.EncoderBlock):
    """A block whose `build` adds a part after that of its base class."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        self.gate = keras.layers.Dense(D, name="gate")
        self.gate.build(inputs_shape)

    def call(self, inputs, training=None):
        return self.gate(super().call(inputs, training=training))


@keras.saving.register_keras_serializable(package="test_kept")
class Unnamed(layers.EncoderBlock):
    """A block with parts that Keras numbers in a process: `dense_7`, `dense_8`."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        self.first, self.second = keras.layers.Dense(D), keras.layers.Dense(D)
        for dense in (self.first, self.second):
            dense.build(inputs_shape)

    def call(self, inputs, training=None):
        return self.second(self.first(super().call(inputs, training=training)))


def foreign(layer, array):
    inputs = keras.Input((None, *array.shape[2:]), dtype=array.dtype.name)
    return keras.Model(inputs, layer(inputs)), [array]


def block():
    return foreign(layers.EncoderBlock(**SIZES, name="part"), x)


def gated():
    return foreign(Gated(**SIZES, name="part"), x)


def embedding():
    return foreign(layers.PositionalEmbedding(**EMBEDDING, name="part"), ids)


def encoding():
    return foreign(layers.PositionalEncoding(**LEARNED, name="part"), x)


def stacks():
    """Encoder and decoder, which share an embedding."""
    shared = layers.PositionalEmbedding(V, D, **LEARNED, name="shared")
    source, target = (keras.Input((None,), dtype="int32") for _ in range(2))
    encoded = TransformerEncoder(CONFIG, shared, name="part")(source)
    hidden = TransformerDecoder(CONFIG, shared, name="decoder")(target, encoded)
    return keras.Model([source, target], shared(hidden, reverse=True)), [ids, ids[:, :3]]


def transformer():
    return Transformer(CONFIG, name="part"), list(token_inputs(ids, ids[:, :3]).values())


def part_of(model):
    return model if isinstance(model, Transformer) else model.get_layer("part")


def freeze(find):
    def freeze(model):
        find(part_of(model)).trainable = False

    return freeze


def freeze_but_inner(model):
    part_of(model).trainable = False
    encoder = getattr(part_of(model), "encoder", part_of(model))
    getattr(encoder, "blocks", [encoder])[-1].feed_forward.trainable = True


def lora(model):
    for layer in model._flatten_layers():
        if isinstance(layer, layers.EncoderBlock | layers.DecoderBlock):
            layer.enable_lora(2, lora_alpha=6)


def lora_of_the_embedding(model):
    part_of(model).embedding.enable_lora(2)


def int8(filters=None):
    return functools.partial(quantize, filters=filters)


ROWS = {
    "whole block": (block, freeze(lambda part: part)),
    "block but an inner part": (block, freeze_but_inner),
    "one weight of a block": (block, freeze(lambda part: part.feed_forward.output_dense.bias)),
    "block in int8, in part": (block, int8("intermediate")),
    "part that a subclass adds": (gated, freeze(lambda part: part.gate)),
    "int8 of a part that a subclass adds": (gated, int8("gate")),
    "learned positions": (embedding, freeze(lambda part: part.position_embeddings)),
    "matrix without positions": (embedding, freeze(lambda part: part.embeddings)),
    "positions alone": (encoding, freeze(lambda part: part.position_embeddings)),
    "block of a stack": (stacks, freeze(lambda part: part.blocks[0])),
    "stack but an inner part": (stacks, freeze_but_inner),
    "shared embedding": (stacks, freeze(lambda part: part.embedding)),
    "shared positions": (stacks, freeze(lambda part: part.embedding.position_embeddings)),
    "LoRA of stacks": (stacks, lora),
    "LoRA of a shared embedding": (stacks, lora_of_the_embedding),
    "stacks in int8": (stacks, int8()),
    "stacks in int8, in part": (stacks, int8("intermediate")),
    "block of a model": (transformer, freeze(lambda part: part.encoder.blocks[0])),
    "model but an inner part": (transformer, freeze_but_inner),
    "LoRA of a model": (transformer, lora),
    "model in int8, in part": (transformer, int8("intermediate")),
}


def state_of(model):
    # The stack that is built first gives a shared embedding its path.
    paths = [v.path.removeprefix("part/") for v in model.trainable_variables]
    int8 = sum(v.dtype == "int8" for v in model.variables)
    return {"trainable": sorted(paths), "int8": int8, "weights": len(model.weights)}


# One of each kind; the others run with `--long`.
ALWAYS = ["part that a subclass adds", "learned positions", "stack but an inner part"]
ALWAYS += ["LoRA of a shared embedding", "stacks in int8, in part", "LoRA of a model"]
CASES = [
    pytest.param(*row, id=name, marks=[] if name in ALWAYS else pytest.mark.long)
    for name, row in ROWS.items()
]


@pytest.mark.parametrize(("make", "adapt"), CASES)
def test_what_was_done_to_parts_is_kept(make, adapt, tmp_path):
    model, inputs = make()
    inputs = inputs if len(inputs) > 1 else inputs[0]
    untouched = state_of(model)
    adapt(model)
    assert state_of(model) != untouched
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert state_of(loaded) == state_of(model)
    np.testing.assert_allclose(to_numpy(loaded(inputs)), to_numpy(model(inputs)), atol=1e-6)


def test_parts_without_names_are_found_whatever_their_numbers_are(tmp_path):
    model, (array,) = foreign(Unnamed(**SIZES, name="part"), x)
    part_of(model).first.trainable = False
    quantize(part_of(model).second)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    first, second = part_of(loaded).first, part_of(loaded).second
    assert second.name != part_of(model).second.name
    assert (first.trainable, first.quantization_mode) == (False, None)
    assert (second.trainable, second.quantization_mode) == (True, "int8")
    np.testing.assert_allclose(to_numpy(loaded(array)), to_numpy(model(array)), atol=1e-6)


@pytest.mark.parametrize("layer_class", [layers.EncoderBlock, layers.PositionalEmbedding])
def test_file_holds_lora_in_the_precision_of_the_weights(layer_class, tmp_path):
    """In half precision, Keras's `kernel` and `embeddings` are rounded."""
    config, array = (SIZES, x) if layer_class is layers.EncoderBlock else (EMBEDDING, ids)
    layer = layer_class(**config, dtype="mixed_bfloat16", name="part")
    model, _ = foreign(layer, array)
    layer.enable_lora(2, lora_alpha=6)
    randomize(layer)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    before, after = ({w.path: to_numpy(w) for w in each.weights} for each in (model, loaded))
    pairs = [path.removesuffix("_a") for path in before if path.endswith("_a")]
    assert pairs
    for path in pairs:  # such as part/.../lora_kernel
        weight = path.replace("lora_", "")
        expected = before[weight] + 3 * before[f"{path}_a"] @ before[f"{path}_b"]
        np.testing.assert_allclose(after[weight], expected, atol=1e-5)


@pytest.mark.parametrize("make", [block, gated, embedding, encoding, stacks, transformer])
def test_from_config_leaves_the_config_as_it_is(make):
    model, _ = make()
    if make in (block, stacks, transformer):
        freeze_but_inner(model)
    for layer in [part_of(model), *([model.get_layer("decoder")] if make is stacks else [])]:
        config = layer.get_config()
        before = json.dumps(config, default=str)
        twins = [type(layer).from_config(config) for _ in range(2)]
        for each in (config, *(twin.get_config() for twin in twins)):
            assert json.dumps(each, default=str) == before


def test_model_that_is_made_frozen_is_frozen_in_a_larger_one():
    """And so are stacks, but for the embedding, which is made before."""
    sizes = {"hidden_dim": D, "num_layers": 1, "normalize_first": True, **SIZES}
    config = TransformerConfig(vocabulary_size=V, **sizes)
    symbols = [keras.Input((None,), dtype="int32") for _ in range(2)]
    frozen = Transformer(config, trainable=False)
    assert keras.Model(symbols, frozen(symbols)).trainable_weights == []
    shared = layers.PositionalEmbedding(V, D)
    encoder = TransformerEncoder(config, shared, trainable=False)
    model = keras.Model(symbols[0], encoder(symbols[0]))
    assert [w.path for w in model.trainable_weights] == [w.path for w in shared.weights]


KEPT = {
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "load_model": lambda model, path: model.save(path) or keras.saving.load_model(path),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_attributes_of_training_are_kept(kept, tmp_path):
    model, path = Transformer(CONFIG), tmp_path / "model.keras"
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    defaults = kept(model, path)
    assert (defaults.accumulation_steps, defaults.r_drop, defaults.fused_loss) == (1, 0.0, True)
    model.accumulation_steps, model.r_drop, model.fused_loss = np.int64(2), 0.5, False
    twin = kept(model, path)
    assert (twin.accumulation_steps, twin.r_drop, twin.fused_loss) == (2, 0.5, False)
