"""A callback of the user's own in the middle of an epoch, on every backend."""

import pickle
from types import SimpleNamespace

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
    export_ctranslate2,
    load_model,
    make_dataset,
    number_names,
)
from keras_transformer.data.pipeline import stream_of
from keras_transformer.runs.callbacks import NonFiniteLossError, StopOnNonFiniteLoss
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from tests.builders import to_numpy, tokenizer_fixture

pytestmark = pytest.mark.slow

PAIRS = number_names("train", 48)
SOURCES, TARGETS = zip(*PAIRS[:3], strict=True)
SETTINGS = {"beam_size": 1, "max_length": 8}


tokenizer = tokenizer_fixture(PAIRS, 300)


def trained(tokenizer, *make_callbacks, batch_sentences=16):
    """A model after two epochs, by default of three updates, with callbacks made of it and its
    dataset."""
    keras.utils.set_random_seed(3)
    config = TransformerConfig.tiny(
        300, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=16, intermediate_dim=16
    )
    model = Transformer(config)
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy())
    dataset, _ = make_dataset(PAIRS, tokenizer, batch_sentences=batch_sentences, shapes=1)
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
    saved = Translator(model, tokenizer, **SETTINGS)
    last = model.get_weights()
    for path, log_probs, translations in seen:
        model.set_weights(load_model(path).get_weights())
        np.testing.assert_allclose(scores(saved), log_probs, rtol=1e-5)
        assert saved(list(SOURCES)) == translations
    model.set_weights(last)

    undisturbed = trained(tokenizer)
    for one, other in zip(model.variables, undisturbed.variables, strict=True):
        np.testing.assert_array_equal(to_numpy(one), to_numpy(other), err_msg=one.path)


def of_translator(model, tokenizer, **options):
    return scores(Translator(model, tokenizer, **SETTINGS, **options))


def of_pickle(model, tokenizer, folder):
    return scores(pickle.loads(pickle.dumps(Translator(model, tokenizer, **SETTINGS))))


def of_ctranslate2(model, tokenizer, folder):
    export_ctranslate2(Translator(model, tokenizer, **SETTINGS), folder / "ct2")
    return np.frombuffer((folder / "ct2" / "model.bin").read_bytes(), "uint8")


def of_file(model, tokenizer, folder):
    keras.saving.save_model(model, folder / "model.keras")
    return load_model(folder / "model.keras").get_weights()


def of_weights_file(model, tokenizer, folder):
    keras.saving.save_weights(model, folder / "m.weights.h5")
    twin = type(model).from_config(model.get_config())
    twin.load_weights(folder / "m.weights.h5")
    return twin.get_weights()


def of_steps(model, tokenizer, folder):
    return model.decode_step(IDS, model.init_cache(IDS), 0)[0]


def arrays_of(result):
    return keras.tree.map_structure(keras.ops.convert_to_numpy, result)


IDS = np.array([[5, 6, 7, 1]], "int32")
INPUTS = {"encoder_token_ids": IDS, "decoder_token_ids": IDS}
# What a callback may do with the model: each returns what depends on all of the weights it reads.
READERS = {
    "frozen": lambda model, tokenizer, _: of_translator(model, tokenizer, frozen=True),
    "dtype": lambda model, tokenizer, _: of_translator(model, tokenizer, dtype="bfloat16"),
    "ensemble": lambda model, tokenizer, _: of_translator([model, model], tokenizer),
    "pickle": of_pickle,
    "CTranslate2": of_ctranslate2,
    "file": of_file,
    "weights file": of_weights_file,
    "JSON": lambda model, *_: np.frombuffer(model.to_json().encode(), "uint8"),
    "call": lambda model, *_: model(INPUTS),
    "attention": lambda model, *_: model.attention_scores(INPUTS)["decoder"][0],
    "encoder": lambda model, *_: model.encode(IDS),
    "steps": of_steps,
    "predict": lambda model, *_: model.predict(INPUTS, verbose=0),
    "evaluate": lambda model, *_: model.test_on_batch(INPUTS, IDS, np.ones(IDS.shape)),
    "weights": lambda model, *_: [to_numpy(weight) for weight in model.weights],
}


@pytest.mark.slow_on_jax
@pytest.mark.backends("jax", "torch")  # only JAX takes the weights away
def test_whatever_reads_weights_in_a_callback_reads_the_present_ones(tokenizer, tmp_path):
    """One reader after each batch: on JAX, the first one fetches the weights for the next ones."""
    left, seen = dict(READERS), {}

    def reader(model, _):
        def read(batch, logs):
            if left:
                name, function = left.popitem()
                found = arrays_of(function(model, tokenizer, tmp_path))
                seen[name] = found, model.get_weights()

        return keras.callbacks.LambdaCallback(on_train_batch_end=read)

    trained(tokenizer, reader, batch_sentences=6)
    assert not left
    twin = trained(tokenizer)
    for name, (found, weights) in seen.items():
        if name != "JSON":
            twin.set_weights(weights)
            expected = arrays_of(READERS[name](twin, tokenizer, tmp_path))
            keras.tree.map_structure(
                lambda a, b, name=name: np.testing.assert_allclose(a, b, 1e-4, 1e-5, err_msg=name),
                found,
                expected,
            )


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


def test_second_fit_counts_and_names_the_batches_that_it_reads(tokenizer, tmp_path):
    """Keras counts from epoch 0 again, and the dataset goes on at its second one."""
    dataset, _ = make_dataset(PAIRS, tokenizer, batch_sentences=7)
    for _ in dataset:  # the first `fit`
        pass
    stream = stream_of(dataset)
    optimizer = SimpleNamespace(learning_rate=0.1, iterations=SimpleNamespace(numpy=lambda: 1))
    logger, guard = TrainingLogger(dataset), StopOnNonFiniteLoss(stream, CheckpointFolder(tmp_path))
    for callback in (logger, guard):
        callback.set_model(SimpleNamespace(optimizer=optimizer))
        callback.on_epoch_begin(0)
    found, expected, tokens, slots = [], [], 0, 0
    for batch, (inputs, labels, _) in enumerate(dataset):
        for token_ids in map(np.asarray, (inputs["encoder_token_ids"], labels)):
            tokens, slots = tokens + np.count_nonzero(token_ids), slots + token_ids.size
        expected.append(tokens / slots)
        logs = {"loss": 1.0}
        logger.on_train_batch_end(batch, logs)
        found.append(logs["padding_efficiency"])
    assert found == expected
    numbers = ", ".join(str(row + 1) for row in sorted(stream.batches(1)[0]))
    with pytest.raises(NonFiniteLossError, match=rf"training pairs {numbers}\."):
        guard.on_train_batch_end(0, {"loss": np.nan})
