"""`check_layer`: the checks that every public layer passes.

Config round trip, symbolic shapes, use in a plain functional model, compiled = eager, and policies
of half precision. The test file of each layer tests its values; `layers/test_contract.py` trains,
saves and loads each.
"""

import inspect
import json

import keras

from tests.builders import assert_close, randomize, to_numpy

HALF_PRECISION = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}
EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def check_layer(layer_class, config, inputs, call=None):
    """Checks `layer_class(**config)` called as `layer(**inputs, **call)`.

    `inputs` maps call arguments to NumPy arrays, `call` to constants. The first output has the
    compute dtype; all others are attention scores.
    """
    call = call or {}
    check_config(layer_class, config)
    model = foreign_model(layer_class(**config), inputs, call)
    outputs = flat_numpy(model(inputs))
    check_symbolic_shapes(layer_class(**config), model, inputs, outputs, call)
    check_compiled(model, inputs, outputs)
    for policy in HALF_PRECISION:
        check_half_precision(layer_class, config, inputs, call, policy)


def check_config(layer_class, config):
    layer = layer_class(**config)
    arguments = set(inspect.signature(layer_class.__init__).parameters) - {"self", "kwargs"}
    assert arguments <= set(layer.get_config())
    assert config.items() <= layer.get_config().items()
    stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    restored = keras.saving.deserialize_keras_object(stored)
    assert type(restored) is layer_class
    assert restored.get_config() == layer.get_config()
    assert layer_class.from_config(layer.get_config()).get_config() == layer.get_config()


def foreign_model(layer, inputs, call):
    """A plain functional model around the layer; only the last axis of float inputs is known."""
    symbols = {}
    for name, array in inputs.items():
        last = array.shape[-1] if array.dtype.kind == "f" else None
        shape = (*[None] * (array.ndim - 2), last)
        symbols[name] = keras.Input(shape, dtype=array.dtype.name, name=name)
    model = keras.Model(symbols, layer(**symbols, **call))
    randomize(layer)
    return model


def flat_numpy(outputs):
    return to_numpy(keras.tree.flatten(outputs))


def check_symbolic_shapes(layer, model, inputs, outputs, call):
    for symbol, array in zip(model.outputs, outputs, strict=True):
        assert len(symbol.shape) == array.ndim
        assert all(s in (None, a) for s, a in zip(symbol.shape, array.shape, strict=True))
    static = {k: keras.Input(batch_shape=a.shape, dtype=a.dtype.name) for k, a in inputs.items()}
    symbols = keras.tree.flatten(layer(**static, **call))
    assert [symbol.shape for symbol in symbols] == [array.shape for array in outputs]


def check_compiled(model, inputs, outputs):
    for compiled, eager in zip(flat_numpy(model.predict_on_batch(inputs)), outputs, strict=True):
        assert_close(compiled, eager, 1e-6)


def check_half_precision(layer_class, config, inputs, call, policy):
    half = layer_class(**config, dtype=policy)
    full = layer_class(**config)
    for layer in (half, full):
        layer(**inputs, **call)
        randomize(layer)
    outputs, *scores = keras.tree.flatten(half(**inputs, **call))
    expected = flat_numpy(full(**inputs, **call))
    dtype = HALF_PRECISION[policy]
    assert keras.backend.standardize_dtype(outputs.dtype) == dtype
    assert {keras.backend.standardize_dtype(s.dtype) for s in scores} <= {"float32"}
    assert {v.dtype for v in half.trainable_variables} <= {"float32"}
    for actual, wanted in zip(to_numpy([outputs, *scores]), expected, strict=True):
        # About 16 roundings in a row, each of at most half an epsilon.
        assert_close(actual, wanted, tolerance=8 * EPSILON[dtype])
