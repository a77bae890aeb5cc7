"""A Transformer with LoRA, or in int8: trains, decodes step by step, saves and loads."""

import warnings

import keras
import numpy as np
import pytest

from keras_transformer.layers import FeedForward
from tests.builders import assert_close, new_transformer, padded_ids, to_numpy, token_inputs

V, T = 50, 5
source, target = padded_ids([4, 3], V, seed=1), padded_ids([T] * 2, V, seed=2)
inputs = token_inputs(source, target)
SIZES = {"num_encoder_layers": 1, "num_decoder_layers": 1, "dropout": 0.0, "hidden_dim": 16}


def trainable(model):
    return {variable.path for variable in model.trainable_variables}


def with_lora(model):
    for block in [*model.encoder.blocks, *model.decoder.blocks]:
        block.enable_lora(2)
    model.encoder.embedding.enable_lora(2)
    return model


def in_int8(model):
    model.encoder.trainable = False
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        model.quantize("int8")
    assert sum(v.dtype == "int8" for v in model.variables) == 2 * 6 + 4 + 1
    return model


@pytest.mark.slow
@pytest.mark.slow_on_jax
@pytest.mark.parametrize("adapt", [with_lora, pytest.param(in_int8, marks=pytest.mark.long)])
def test_adapted_model_trains_decodes_and_loads(adapt, tmp_path):
    exact = new_transformer(**SIZES)
    model = adapt(new_transformer(**SIZES))
    assert_close(to_numpy(model(inputs)), to_numpy(exact(inputs)), 0.05)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    eager = keras.config.backend() == "tensorflow"  # tracing takes longer than the steps
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss=loss, run_eagerly=eager)
    losses = [float(model.train_on_batch(inputs, target)) for _ in range(3)]
    assert losses[-1] < losses[0]
    logits = to_numpy(model(inputs))
    cache, steps = model.init_cache(source), []
    for index in range(T):
        step, cache = model.decode_step(target[:, index : index + 1], cache, index)
        steps.append(to_numpy(step)[:, 0])
    # In int8, a rounding difference may move an activation to the next of 127 levels.
    assert_close(np.stack(steps, axis=1), logits, 1e-6 if adapt is with_lora else 0.02)
    model.save(tmp_path / "adapted.keras")
    loaded = keras.saving.load_model(tmp_path / "adapted.keras")
    assert trainable(loaded) == trainable(model)
    assert_close(to_numpy(loaded(inputs)), logits, 1e-6)
    assert loaded.get_config() == model.get_config()


def test_kind_of_quantization_is_kept(tmp_path):
    """Weights in int8 and activations as they are, which differs from the default of int8."""
    config = getattr(keras.quantizers, "Int8QuantizationConfig", None)
    if config is None:
        pytest.skip("this version of Keras has no such configuration")
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    model = keras.Sequential([keras.Input((None, 8)), FeedForward(16)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        model.quantize(config=config(activation_quantizer=None))
    model.save(tmp_path / "quantized.keras")
    loaded = keras.saving.load_model(tmp_path / "quantized.keras")
    np.testing.assert_array_equal(to_numpy(loaded(x)), to_numpy(model(x)))
