"""Inputs and helpers for the tests of layers and models, on every backend.

Random weights, padded token ids, tensors to arrays, code in a fresh process.
"""

import functools
import os
import pathlib
import sys
import tempfile
import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import Tokenizer, Transformer, TransformerConfig
from tests.processes import run

ROOT = pathlib.Path(__file__).resolve().parents[1]
# XLA compiles faster, what it compiles is slower.
QUICK_XLA = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def to_numpy(tensors):
    """Replaces the tensors of a structure by NumPy arrays of float32, bool or int."""

    def convert(x):
        is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(x.dtype))
        x = ops.copy(x)  # makes a tensor of a variable
        return np.array(ops.convert_to_numpy(ops.cast(x, "float32") if is_float else x))

    return keras.tree.map_structure(convert, tensors)


def randomize(layer, seed=0):
    """Sets every weight to random values, also biases and norms: zeros and ones hide errors."""
    rng = np.random.default_rng(seed)
    for variable in layer.trainable_variables:
        is_vector = variable.path.endswith(("bias", "beta", "gamma"))
        scale = 0.1 if is_vector else np.prod(variable.shape) ** -0.25  # (D, D): D^-0.5
        center = float(variable.path.endswith("gamma"))
        variable.assign(center + scale * rng.standard_normal(variable.shape))
    return layer


def weights_below(layer):
    """{path below the layer: variable} of all trainable variables."""
    return {v.path.removeprefix(f"{layer.path}/"): v for v in layer.trainable_variables}


def copy_weights(source, target, translation):
    """Copies weights by path; `translation` maps parts of source paths to parts of target paths."""
    targets = weights_below(target)
    for path, variable in weights_below(source).items():
        for old, new in translation.items():
            path = path.replace(old, new)
        counterpart = targets.pop(path)
        # The same values in another shape: (D, N * K) and (D, N, K).
        counterpart.assign(to_numpy(variable).reshape(counterpart.shape))
    if targets:
        raise ValueError(f"Weights without a counterpart: {sorted(targets)}")


# From the paths of our blocks to those of KerasHub's, for `copy_weights`.
HUB_NAMES = {
    "/output/": "/attention_output/",
    "feed_forward/attention_output": "feedforward_output_dense",
    "feed_forward/intermediate": "feedforward_intermediate_dense",
    "feed_forward_residual/": "feedforward_",
    "attention_residual/": "attention_",
}


def padded_ids(lengths, vocabulary_size, seed=0, width=None):
    """int32 (B, T): random tokens other than the special tokens, then padding 0."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, vocabulary_size, (len(lengths), width or max(lengths)))
    return np.where(np.arange(ids.shape[1]) < np.array(lengths)[:, None], ids, 0).astype("int32")


def quantize(layer, mode="int8", **options):
    """Quantizes a layer or a model, without the warnings of Keras."""
    with warnings.catch_warnings():
        # Of each layer without `quantize`, such as Keras's own `LayerNormalization`.
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        layer.quantize(mode, **options)


def seeded_call(layer, *args, **kwargs):
    """Calls the layer with the same random seeds every time."""
    keras.utils.set_random_seed(0)
    states = [(v, to_numpy(v)) for v in layer.non_trainable_variables]
    outputs = layer(*args, **kwargs)
    for variable, value in states:
        variable.assign(value)
    return outputs


def token_chunks(lengths):
    """[3, 1] -> (0, 3), (3, 4)."""
    ends = np.cumsum(lengths).tolist()
    return zip([0, *ends], ends, strict=False)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def largest(x):
    return np.abs(x).max()


def assert_close(actual, expected, tolerance):
    """The largest difference is at most `tolerance` times the largest expected magnitude."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert largest(actual - expected) <= tolerance * largest(expected)


def assert_same_arrays(actual, expected):
    """The same names in the same order, the same dtypes and shapes, the same bits."""
    assert list(actual) == list(expected)
    for name, array in expected.items():
        assert (actual[name].dtype, actual[name].shape) == (array.dtype, array.shape), name
        assert actual[name].tobytes() == array.tobytes(), name


def run_fresh(code, **environment):
    """Runs Python code in a new process on the same backend and returns what it printed."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": keras.backend.backend()}
    finished = run(
        [sys.executable, "-c", code],
        env={**variables, **environment},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


COMPARE = """
inputs = dict(np.load("{folder}/inputs.npz"))
expected = inputs.pop("expected")
outputs = keras.ops.convert_to_numpy(model(inputs))
print(abs(outputs - expected).max() / abs(expected).max(), model.count_params())
"""


def assert_same_in_a_fresh_process(model, inputs, load, folder):
    """`load` is code that defines `model`; "{folder}" in it is replaced by `folder`."""
    np.savez(folder / "inputs.npz", **inputs, expected=to_numpy(model(inputs)))
    code = f"import keras\nimport numpy as np\n{load}\n{COMPARE}"
    difference, parameters = run_fresh(code.replace("{folder}", str(folder))).split()[-2:]
    assert float(difference) <= 1e-6
    assert int(parameters) == model.count_params()


def new_transformer(vocabulary_size=50, dtype=None, **overrides):
    """A small Transformer of 2+2 layers with random weights."""
    sizes = {"num_encoder_layers": 2, "num_decoder_layers": 2, "hidden_dim": 32}
    config = TransformerConfig.tiny(vocabulary_size, **{**sizes, **overrides})
    return randomize(Transformer(config, dtype=dtype))


# Building a model takes a second, so tests that change no weight share models.
transformer = functools.cache(new_transformer)


def learned_tokenizer(pairs, vocabulary_size, **options):
    """A `Tokenizer` of both sides of some pairs, without its file."""
    with tempfile.TemporaryDirectory() as folder:
        lines = (line for pair in pairs for line in pair)
        return Tokenizer.train_on_lines(lines, vocabulary_size, f"{folder}/m", **options)


def tokenizer_fixture(pairs, vocabulary_size, **options):
    """A fixture of a module: `learned_tokenizer(...)`."""
    return pytest.fixture(scope="module")(
        lambda: learned_tokenizer(pairs, vocabulary_size, **options)
    )


def token_inputs(source, target):
    return {"encoder_token_ids": source, "decoder_token_ids": target}
