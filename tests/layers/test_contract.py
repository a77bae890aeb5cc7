"""Every public layer in every kind of Keras model: trains, saves, loads, LoRA, int8.

The files are loaded in one fresh process, which imports only this module; on other backends than
TensorFlow in this one, because only compiling differs there.
"""

import json
from dataclasses import dataclass, field

import keras
import numpy as np
import pytest

from keras_transformer import layers
from tests.builders import normal, padded_ids, quantize, run_fresh, to_numpy

BACKEND = keras.config.backend()
# Equal sizes: JAX compiles each operation for each shape.
B, T, D, V = 2, 4, 8, 11
x, y, ids = normal(B, T, D, seed=1), normal(B, T, D, seed=2), padded_ids([T, 3], V)
BLOCK = {"num_heads": 2, "intermediate_dim": 16}
NO_WEIGHTS = "it has no weights"
ADDED = "its table is added, not multiplied"


@dataclass(frozen=True)
class Case:
    config: dict
    inputs: dict
    freeze: str = ""  # the attribute that is frozen
    not_adapted: str = ""  # why there is no LoRA and no int8
    kinds: list = field(default_factory=lambda: ["functional", "sequential", "subclassed"])


SEVERAL_INPUTS = ["functional", "subclassed"]
LEARNED = {"positions": "learned", "max_sequence_length": 6}
OF_POSITIONS = ["functional", "sequential", "subclassed", "of unknown length"]
CASES = {
    "DecoderBlock": Case(
        BLOCK, {"inputs": x, "encoder_output": y}, "encoder_attention", kinds=SEVERAL_INPUTS
    ),
    "Dropout": Case({"rate": 0.5}, {"inputs": x}, not_adapted=NO_WEIGHTS),
    "EncoderBlock": Case(BLOCK | {"normalize_first": True}, {"inputs": x}, "self_attention"),
    "FeedForward": Case({"intermediate_dim": 16, "seed": 1}, {"inputs": x}, "output_dense"),
    "MultiHeadAttention": Case(
        {"num_heads": 2, "key_dim": 4, "max_relative_position": 1},
        {"query": x, "value": y},
        "key_dense",
        kinds=SEVERAL_INPUTS,
    ),
    "PaddingMask": Case({}, {"token_ids": ids}, not_adapted=NO_WEIGHTS),
    "PositionalEmbedding": Case(
        {"vocabulary_size": V, "hidden_dim": D, **LEARNED}, {"inputs": ids}, kinds=OF_POSITIONS
    ),
    "PositionalEncoding": Case(LEARNED, {"inputs": x}, not_adapted=ADDED, kinds=OF_POSITIONS),
}


def test_every_public_layer_has_a_case():
    public = {name: getattr(layers, name) for name in layers.__all__}
    assert set(CASES) == {name for name, value in public.items() if isinstance(value, type)}


@keras.saving.register_keras_serializable(package="test_contract")
class Subclassed(keras.Model):
    def __init__(self, layer, **kwargs):
        super().__init__(**kwargs)
        self.layer = layer

    def call(self, inputs):
        return self.layer(**inputs)

    def get_config(self):
        return {"layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["layer"]))


def symbols(inputs, unknown=0):
    """Symbolic inputs, whose first `unknown` axes behind the batch have an unknown length."""
    shapes = {k: (*[None] * unknown, *a.shape[1 + unknown :]) for k, a in inputs.items()}
    return {k: keras.Input(shapes[k], dtype=a.dtype.name, name=k) for k, a in inputs.items()}


def new_model(name, kind):
    """A built model, its layer, and what it is called with."""
    case = CASES[name]
    layer = getattr(layers, name)(**case.config)
    if kind == "functional":
        inputs = symbols(case.inputs)
        return keras.Model(inputs, layer(**inputs)), layer, case.inputs
    if kind in ("subclassed", "of unknown length"):
        model = Subclassed(layer)
        model(case.inputs if kind == "subclassed" else symbols(case.inputs, 1))
        return model, layer, case.inputs
    ((argument, array),) = case.inputs.items()
    return keras.Sequential([symbols(case.inputs)[argument], layer]), layer, array


def train_a_step(model, inputs):
    """Exactly the trainable weights change, and stay finite."""
    outputs = model(inputs)
    # Compiling and tracing take longer than the step; the tests of `training` compile.
    how = {"jit_compile": True} if BACKEND == "jax" else {"run_eagerly": True}
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss="mse", **how)
    before = to_numpy([*model.weights])
    model.train_on_batch(inputs, normal(*outputs.shape, seed=3))
    after = to_numpy([*model.weights])
    assert all(np.isfinite(value).all() for value in after)
    weights = zip(model.weights, before, after, strict=True)
    changed = {v.path for v, old, new in weights if (new != old).any()}
    shift_invariant = {p for p in trainable(model) if p.endswith("key/bias")}
    unused = {p for p in trainable(model) if p.endswith("lora_kernel_a")}  # times zero, at first
    unused |= {p for p in trainable(model) if p.endswith("lora_embeddings_a")}
    assert changed - shift_invariant == trainable(model) - shift_invariant - unused


def trainable(model):
    return {v.path for v in model.trainable_variables}


def adapted(name, kind):
    """A model of the layer: frozen in part, with LoRA or in int8, trained a step."""
    case = CASES[name]
    model, layer, inputs = new_model(name, kind)
    assert hasattr(layer, "enable_lora") == (not case.not_adapted)
    if kind == "functional" and case.freeze:
        getattr(layer, case.freeze).trainable = False
    if kind == "subclassed" and not case.not_adapted:
        layer.enable_lora(2, lora_alpha=6)
        assert any("lora" in path for path in trainable(model))
    if trainable(model):
        train_a_step(model, inputs)
    if kind == "sequential" and not case.not_adapted:
        before = to_numpy(model(inputs))
        quantize(model)
        assert "int8" in {v.dtype for v in model.variables}
        np.testing.assert_allclose(to_numpy(model(inputs)), before, atol=0.1)
    return model, inputs


def state_of(model, inputs):
    """What has to be the same after loading."""
    return {
        "outputs": np.asarray(to_numpy(model(inputs)), "float64").tolist(),
        "trainable": sorted("/".join(path.split("/")[-2:]) for path in trainable(model)),
        "int8": sum(v.dtype == "int8" for v in model.variables),
    }


def every_model():
    for name, case in CASES.items():
        for kind in case.kinds:
            yield name, kind


def loaded_states(folder):
    """Runs in the fresh process."""
    states = {}
    for name, kind in every_model():
        case = CASES[name]
        inputs = next(iter(case.inputs.values())) if kind == "sequential" else case.inputs
        model = keras.saving.load_model(f"{folder}/{name}-{kind}.keras")
        states[f"{name} {kind}"] = state_of(model, inputs)
    return json.dumps(states)


@pytest.mark.long
def test_every_layer_trains_and_answers_the_same_in_a_fresh_process(tmp_path):
    expected = {}
    for name, kind in every_model():
        model, inputs = adapted(name, kind)
        model.save(tmp_path / f"{name}-{kind}.keras")
        expected[f"{name} {kind}"] = state_of(model, inputs)
    if BACKEND == "tensorflow":
        code = "from tests.layers.test_contract import *; print(loaded_states({!r}))"
        loaded = json.loads(run_fresh(code.format(str(tmp_path))).splitlines()[-1])
    else:
        loaded = json.loads(loaded_states(tmp_path))
    for model, state in expected.items():
        outputs, loaded_outputs = state.pop("outputs"), loaded[model].pop("outputs")
        assert loaded[model] == state, model
        np.testing.assert_allclose(loaded_outputs, outputs, atol=1e-6, err_msg=model)


@pytest.mark.parametrize("name", CASES)
def test_kinds_of_models_compute_the_same(name):
    case = CASES[name]
    expected = None
    for kind in case.kinds:
        model, layer, inputs = new_model(name, kind)
        rng = np.random.default_rng(0)
        layer.set_weights([rng.standard_normal(w.shape) for w in layer.get_weights()])
        outputs = to_numpy(model(inputs))
        expected = outputs if expected is None else expected
        np.testing.assert_allclose(outputs, expected, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_summary_of_a_subclassed_model_shows_the_shape_of_the_layer(name):
    """`PaddingMask` has none: Keras would also make a symbol of floats of it."""
    model, _, inputs = new_model(name, "subclassed")
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    shape = "?" if name == "PaddingMask" else str(tuple(model(inputs).shape))
    assert f" {shape} " in "\n".join(lines)


def test_embedding_refuses_int4_and_two_of_int8_lora_and_last_rows():
    with_lora, quantized = (layers.PositionalEmbedding(V, D) for _ in range(2))
    with_lora.build()
    with pytest.raises(NotImplementedError, match="int8 only.*Received: mode='int4'"):
        with_lora.quantize("int4")
    with_lora.enable_lora(2)
    with pytest.raises(NotImplementedError, match="not with LoRA.*lora_enabled=True"):
        with_lora.quantize("int8")
    quantize(keras.Sequential([keras.Input((None,), dtype="int32"), quantized]))
    with pytest.raises(ValueError, match="quantized before.*quantization_mode='int8'"):
        quantized.enable_lora(2)
    with_rows = layers.PositionalEmbedding(V, D)
    with_rows.build()
    with_rows.train_last_rows(3)
    with pytest.raises(NotImplementedError, match="while its last rows.*Received: 3 rows"):
        with_rows.quantize("int8")
    with pytest.raises(ValueError, match="while its last rows.*Received: 3 rows"):
        with_rows.enable_lora(2)
    for layer in (with_lora, quantized, with_rows):
        with pytest.raises(ValueError, match="`train_last_rows` needs a matrix as it was built"):
            layer.train_last_rows(3)


def test_lora_before_building_raises():
    with pytest.raises(ValueError, match="must be built before `enable_lora`"):
        layers.EncoderBlock(**BLOCK).enable_lora(2)


def test_lora_trains_on_after_loading(tmp_path):
    """Keras loads zeros into both LoRA matrices; the gradient of both would be 0."""
    for name in ("EncoderBlock", "PositionalEmbedding"):
        model, inputs = adapted(name, "subclassed")
        model.save(tmp_path / "lora.keras")
        train_a_step(keras.saving.load_model(tmp_path / "lora.keras"), inputs)


def test_int8_projects_to_the_vocabulary():
    layer = layers.PositionalEmbedding(V, D)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), layer])
    exact = to_numpy(layer(x, reverse=True))
    quantize(model)
    assert np.abs(to_numpy(layer(x, reverse=True)) - exact).max() < 0.02 * np.abs(exact).max()
