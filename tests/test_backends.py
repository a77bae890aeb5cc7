"""Layers and model on the current backend and without TensorFlow; imports without a backend."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer import (
    Perplexity,
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
    paper_optimizer,
)
from tests.builders import QUICK_XLA

TRAIN_WITHOUT_TENSORFLOW = """
import sys
for name in ("tensorflow", "tensorflow_text"):
    sys.modules[name] = None  # importing it would fail
import numpy as np
from keras_transformer import Transformer, TransformerConfig, layers
from keras_transformer import SmoothedCrossEntropy, paper_optimizer
config = TransformerConfig.tiny(20, num_encoder_layers=1, num_decoder_layers=1)
model = Transformer(config)
model.compile(optimizer=paper_optimizer(config), loss=SmoothedCrossEntropy(ignore_class=0))
ids = np.array([[5, 6, 2]])
inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
before = [w.numpy().copy() for w in model.trainable_weights]
model.fit(inputs, ids, verbose=0)
assert any((w.numpy() != b).any() for w, b in zip(model.trainable_weights, before))
assert layers.MultiHeadAttention(2, 4)(query=np.ones((1, 2, 8)), value=np.ones((1, 2, 8))).shape
"""


def run(code, **environment):
    command = [sys.executable, "-c", code]
    environment = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.tensorflow_only  # it starts a process with a backend of its own
@pytest.mark.slow
def test_package_trains_a_step_where_tensorflow_cannot_be_imported():
    ran = run(TRAIN_WITHOUT_TENSORFLOW, KERAS_BACKEND="jax", XLA_FLAGS=QUICK_XLA)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.tensorflow_only  # it starts a process with a backend of its own
@pytest.mark.parametrize(
    "statement",
    [
        "import keras_transformer",
        "import keras_transformer.runs.recipe",
        "from keras_transformer.cli import app",
    ],
)
def test_import_imports_no_backend(statement):
    """`keras-transformer --help` must answer at once."""
    heavy = "{'keras', 'tensorflow', 'jax', 'torch', 'numpy', 'matplotlib', 'sacrebleu'}"
    ran = run(f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))")
    assert ran.stdout.strip() == "[]", ran.stderr


@pytest.mark.tensorflow_only
def test_every_public_name_resolves():
    for name in keras_transformer.__all__:
        assert getattr(keras_transformer, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        keras_transformer.Nothing  # noqa: B018


@pytest.mark.long
def test_every_public_name_resolves_in_a_fresh_process():
    """Data, decoding and export import TensorFlow, which is installed with every backend."""
    ran = run("import keras_transformer as k; [getattr(k, name) for name in k.__all__]")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="not on TensorFlow")
def test_translator_on_another_backend_raises():
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        keras_transformer.Translator(0, 0)


@pytest.mark.long
def test_model_learns_to_copy():
    """End to end on every backend: encoder, decoder, loss, schedule, metrics, fit."""
    config = TransformerConfig.tiny(
        14, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=32, dropout=0.0
    )
    model = Transformer(config)
    model.compile(
        optimizer=paper_optimizer(config, warmup_steps=60),
        loss=SmoothedCrossEntropy(0.0, ignore_class=0),
        metrics=[TokenAccuracy(ignore_class=0), Perplexity(ignore_class=0)],
    )
    rng = np.random.default_rng(0)

    def copies(count):
        words = rng.integers(4, 14, (count, 5)).astype("int32")
        end = np.full((count, 1), 2, "int32")
        source = np.concatenate([words, end], axis=1)
        given = np.concatenate([np.ones_like(end), words], axis=1)
        return {"encoder_token_ids": source, "decoder_token_ids": given}, source

    inputs, labels = copies(2560)
    model.fit(inputs, labels, batch_size=64, epochs=12, verbose=0)
    inputs, labels = copies(200)
    scores = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert scores["accuracy"] > 0.98, scores
    np.testing.assert_allclose(np.log(scores["perplexity"]), scores["loss"], atol=1e-4)
