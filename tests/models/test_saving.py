"""Models are saved and loaded: `.keras`, `.weights.h5`, config."""

import dataclasses
import json
import tracemalloc
import zipfile

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, Transformer, paper_optimizer
from keras_transformer.training.model_state import save_model
from tests.builders import (
    assert_same_in_a_fresh_process,
    new_transformer,
    padded_ids,
    randomize,
    to_numpy,
    token_inputs,
    transformer,
)

V = 50
inputs = token_inputs(padded_ids([6, 3], V, seed=1), padded_ids([5, 4], V, seed=2))
labels = padded_ids([5, 4], V, seed=3)
VARIANT = {"normalize_first": True, "tie_embeddings": "none", "source_vocabulary_size": 60}
VARIANT |= {"positions": "tensor2tensor", "first_position": 1}
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_dim": 16, "num_heads": 2}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a trained model, its weights and its config; and the model."""
    folder = tmp_path_factory.mktemp("saved")
    model = new_transformer(**SMALL, **VARIANT)
    model.compile(
        optimizer=paper_optimizer(model.config),
        loss=SmoothedCrossEntropy(ignore_class=0),
        metrics=[TokenAccuracy(ignore_class=0)],
        run_eagerly=keras.config.backend() == "tensorflow",  # tracing takes longer than the step
    )
    model.train_on_batch(inputs, labels)
    model.save(folder / "model.keras")
    model.save_weights(folder / "model.weights.h5")
    (folder / "config.yaml").write_text(model.config.to_yaml())
    return folder, model


def test_weights_are_saved_without_a_copy_of_the_embeddings(tmp_path):
    model = new_transformer(**SMALL | {"vocabulary_size": 2**18})
    # NumPy 2.0 copies what `__array__` returns, so the embeddings while they are written.
    copies = 1 if np.__version__.startswith("2.0.") else 0
    tracemalloc.start()
    try:
        save_model(model, tmp_path / "model.keras")
        assert tracemalloc.get_traced_memory()[1] < (copies + 0.5) * 2**24, "of 16 MiB"
    finally:
        tracemalloc.stop()
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]
    loaded = keras_transformer.load_model(tmp_path / "model.keras")
    for weight, expected in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), to_numpy(expected))


def test_file_outlives_the_modules_of_its_classes(saved, tmp_path):
    (folder, model), path = saved, tmp_path / "moved.keras"
    with zipfile.ZipFile(folder / "model.keras") as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                content = content.replace(b'"keras_transformer.', b'"keras_transformer.elsewhere.')
                assert content.count(b"keras_transformer.elsewhere.") > 3
            new.writestr(name, content)
    loaded = keras_transformer.load_model(path)
    np.testing.assert_array_equal(to_numpy(loaded(inputs)), to_numpy(model(inputs)))
    assert loaded.optimizer.beta_2 == model.optimizer.beta_2


LOADS = [
    'import keras_transformer; model = keras_transformer.load_model("{folder}/model.keras")',
    """
from keras_transformer import SmoothedCrossEntropy, TokenAccuracy, Transformer, paper_optimizer
model = keras.saving.load_model("{folder}/model.keras")
""",
    """
import yaml
from keras_transformer import Transformer, TransformerConfig
config = TransformerConfig.from_dict(yaml.safe_load(open("{folder}/config.yaml")))
model = Transformer(config)
model.load_weights("{folder}/model.weights.h5")
""",
]


@pytest.mark.parametrize(
    "load", [LOADS[0], *(pytest.param(load, marks=pytest.mark.long) for load in LOADS[1:])]
)
@pytest.mark.slow
def test_model_answers_the_same_in_a_fresh_process(saved, load):
    folder, model = saved
    assert_same_in_a_fresh_process(model, inputs, load, folder)


def test_damaged_model_file_raises(saved, tmp_path):
    """It is truncated, a byte of a member is changed, it is no archive, or a member is missing."""
    content = (saved[0] / "model.keras").read_bytes()
    size, path = len(content), tmp_path / "cut.keras"
    broken = [content[:length] for length in (0, 1, 30, size // 4, size // 2, size - 1)]
    with zipfile.ZipFile(saved[0] / "model.keras") as archive:
        for member in archive.infolist():
            # The middle of the content, which follows a header of 30 bytes and the name.
            place = member.header_offset + 30 + len(member.filename) + member.compress_size // 2
            broken.append(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    for wrong in (*broken, b"text"):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="cut.keras must be a complete `.keras` file"):
            keras_transformer.load_model(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
    with pytest.raises(ValueError, match="Missing: config.json, model.weights.h5"):
        keras_transformer.load_model(path)


def test_loaded_model_has_config_and_optimizer(saved):
    folder, model = saved
    loaded = keras_transformer.load_model(folder / "model.keras")
    assert type(loaded) is Transformer
    assert loaded.config == model.config
    assert int(loaded.optimizer.iterations) == 1
    assert not keras_transformer.load_model(folder / "model.keras", compile=False).compiled
    for ours, theirs in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.parametrize("variant", [{"positions": "relative"}, VARIANT], ids=["tied", "untied"])
def test_config_and_file_make_the_same_model(variant, tmp_path):
    """Also its dtype policy, and that the stacks share their embedding."""
    model = transformer(**variant, dtype="mixed_bfloat16")
    twin = randomize(Transformer.from_config(json.loads(json.dumps(model.get_config()))))
    model.save(tmp_path / "half.keras")
    loaded = keras_transformer.load_model(tmp_path / "half.keras")
    for each in (twin, loaded):
        assert (each.config, each.name) == (model.config, model.name)
        assert each.dtype_policy.name == "mixed_bfloat16"
        paths = [[v.path for v in one.trainable_variables] for one in (each, model)]
        assert paths[0] == paths[1]
        assert (each.encoder.embedding is each.decoder.embedding) == (variant is not VARIANT)
        np.testing.assert_array_equal(to_numpy(each(inputs)), to_numpy(model(inputs)))
    assert keras.models.model_from_json(model.to_json()).config == model.config


OWN_BLOCK = """
import keras
from keras_transformer.layers import EncoderBlock
from keras_transformer.models import Transformer, TransformerEncoder


@keras.saving.register_keras_serializable()
class GatedBlock(EncoderBlock):
    def build(self, inputs_shape):
        super().build(inputs_shape)
        self.gate = self.add_weight(name="gate", shape=())

    def call(self, inputs, attention_mask=None, return_attention_scores=False, training=None):
        outputs, scores = super().call(
            inputs, attention_mask, return_attention_scores=True, training=training
        )
        outputs = inputs + self.gate * outputs
        return (outputs, scores) if return_attention_scores else outputs


@keras.saving.register_keras_serializable()
class GatedEncoder(TransformerEncoder):
    block_class = GatedBlock


@keras.saving.register_keras_serializable()
class GatedTransformer(Transformer):
    encoder_class = GatedEncoder
"""


@pytest.mark.slow
def test_block_of_ones_own_is_trained_saved_and_loaded(tmp_path):
    """Only the block is new: encoder and model are named, not copied."""
    names = {}
    exec(OWN_BLOCK, names)
    model = randomize(names["GatedTransformer"](transformer().config, name="gated"))
    gates = [v for v in model.trainable_variables if v.path.endswith("gate")]
    assert len(gates) == model.config.num_encoder_layers
    assert model.count_params() == transformer().count_params() + len(gates)
    model.save(tmp_path / "own.keras")
    load = OWN_BLOCK + 'model = keras.saving.load_model("{folder}/own.keras")\n'
    assert_same_in_a_fresh_process(model, inputs, load, tmp_path)


@pytest.mark.long
def test_frozen_parts_stay_frozen_and_keep_their_optimizer(tmp_path):
    """A frozen layer, a trainable layer inside it, and a single frozen weight."""
    small = {**VARIANT, "num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0}
    with keras.name_scope("outer"):  # as inside another model
        model = new_transformer(**small)
    model.encoder.trainable = False
    model.encoder.blocks[0].feed_forward.trainable = True
    model.decoder.blocks[0].self_attention.query_dense.kernel.trainable = False
    model.compile("adam", SmoothedCrossEntropy(ignore_class=0))
    model.train_on_batch(inputs, labels)
    model.save(tmp_path / "frozen.keras")
    loaded = keras_transformer.load_model(tmp_path / "frozen.keras")
    assert [f"outer/{v.path}" for v in loaded.trainable_variables] == [
        v.path for v in model.trainable_variables
    ]
    assert not loaded.encoder.trainable and loaded.encoder.blocks[0].feed_forward.trainable
    for each in (model, loaded):
        each.train_on_batch(inputs, labels)
    for found, expected in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-6)
    trainable = Transformer.from_config({**model.get_config(), "frozen": []})
    assert len(trainable.trainable_variables) == len(new_transformer(**small).trainable_variables)


def test_missing_file_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.keras"):
        keras_transformer.load_model(tmp_path / "nowhere.keras")


def test_what_does_not_fit_is_named(saved, tmp_path):
    """The error names HDF5, or the shape of the weights of another vocabulary."""
    weights = tmp_path / "mine.weights.h5"
    saved[1].save_weights(weights)
    with pytest.raises(ValueError, match="must be a `.keras` file. Received: a file of HDF5"):
        keras_transformer.load_model(weights)
    config = saved[1].config
    larger = keras_transformer.Transformer(dataclasses.replace(config, source_vocabulary_size=99))
    with pytest.raises(ValueError, match=rf"shape \(99, {config.hidden_dim}\).*`vocabulary_size`"):
        larger.load_weights(weights)
