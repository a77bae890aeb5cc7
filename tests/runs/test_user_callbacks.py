"""A callback of the user's own in the middle of an epoch, on every backend."""

import keras
import numpy as np
import pytest

from keras_transformer import (
    RunKeeper,
    SmoothedCrossEntropy,
    TrainingLogger,
    Transformer,
    TransformerConfig,
    Translator,
    load_model,
    make_dataset,
    number_names,
)
from keras_transformer.data.pipeline import stream_of
from keras_transformer.runs.callbacks import StopOnNonFiniteLoss
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from tests.builders import to_numpy, tokenizer_fixture

pytestmark = pytest.mark.slow

PAIRS = number_names("train", 48)
SOURCES, TARGETS = zip(*PAIRS[:3], strict=True)
SETTINGS = {"beam_size": 1, "max_length": 8}


tokenizer = tokenizer_fixture(PAIRS, 300)


def trained(tokenizer, *make_callbacks):
    """A model after two epochs of three updates, with callbacks made of it and its dataset."""
    keras.utils.set_random_seed(3)
    config = TransformerConfig.tiny(
        300, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16, intermediate_dim=16
    )
    model = Transformer(config)
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
    dataset, _ = make_dataset(PAIRS, tokenizer, batch_sentences=16, shapes=1)
    callbacks = [make(model, dataset) for make in make_callbacks]
    model.fit(dataset, epochs=2, verbose=0, shuffle=False, callbacks=callbacks)
    return model


def scores(translator):
    return [each.log_prob for each in translator.score(list(SOURCES), list(TARGETS))]


def test_callback_translates_scores_and_saves_the_present_weights(tokenizer, tmp_path):
    """The second batch of each epoch is in its middle."""
    seen = []

    def looker(model, _):
        translator = Translator(model, tokenizer, **SETTINGS)

        def look(batch, logs):
            if batch != 1:
                return
            # Once `score` comes first, once `save`: on JAX, the first one fetches the weights.
            path = tmp_path / f"{len(seen)}.keras"
            if seen:
                model.save(path)
            seen.append((path, scores(translator), translator(list(SOURCES))))
            model.save(path)

        return keras.callbacks.LambdaCallback(on_train_batch_end=look)

    model = trained(tokenizer, looker)
    assert seen[0][1] != seen[1][1], "the weights change, or this shows nothing"
    for path, log_probs, translations in seen:
        saved = Translator(load_model(path), tokenizer, **SETTINGS)
        np.testing.assert_allclose(scores(saved), log_probs, rtol=1e-5)
        assert saved(list(SOURCES)) == translations

    undisturbed = trained(tokenizer)
    for one, other in zip(model.variables, undisturbed.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other), err_msg=one.path)


@pytest.mark.backends("jax")
def test_callbacks_of_a_run_do_not_fetch_the_weights_after_each_batch(
    tokenizer, tmp_path, monkeypatch
):
    """Keras copies all weights out of the update whenever a callback looks at `self.model`."""
    fetched, fetch = [], Transformer.jax_state_sync

    def counted(model):
        fetched.append(model)
        fetch(model)

    monkeypatch.setattr(Transformer, "jax_state_sync", counted)
    of_batches = []
    lambdas = keras.callbacks.LambdaCallback
    trained(
        tokenizer,
        lambda *_: lambdas(on_train_batch_end=lambda batch, logs: fetched.clear()),
        lambda _, dataset: TrainingLogger(dataset),
        lambda _, dataset: StopOnNonFiniteLoss(stream_of(dataset), CheckpointFolder(tmp_path)),
        lambda _, dataset: RunKeeper(tmp_path, dataset, print_fn=str),
        lambda *_: lambdas(on_train_batch_end=lambda batch, logs: of_batches.append(len(fetched))),
    )
    assert of_batches == [0] * 6
