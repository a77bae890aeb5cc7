"""The callbacks of a run against plain counting and NumPy, on one small run."""

import time
import types
from dataclasses import replace

import keras
import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF

from keras_transformer import load_model
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.pipeline import BatchStream, make_dataset
from keras_transformer.runs import average_run, trainer
from tests.runs import tiny_run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
EPOCHS, MOMENTUM = 2, 0.8
# Five number names in a line: BLEU counts runs of four words.
PAIRS = number_names("held_out", 60)
LINES = [
    tuple(" ".join(side) for side in zip(*PAIRS[first : first + 5], strict=True))
    for first in range(0, 60, 5)
]


class Recorder(keras.callbacks.Callback):
    """Records the times of events, and the logs of each batch."""

    def __init__(self):
        super().__init__()
        self.begun, self.ended, self.logs = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(time.perf_counter())

    def on_train_batch_end(self, batch, logs=None):
        self.ended.append((len(self.begun) - 1, batch, time.perf_counter()))
        self.logs.append(dict(logs))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with averaged weights, whose translations are correct only after its first epoch."""
    folder = tmp_path_factory.mktemp("callbacks")
    (folder / "long.tsv").write_text("".join("\t".join(pair) + "\n" for pair in LINES), "utf-8")
    calls, made = [], []

    def translator(model, *tokenizers, **settings):
        made.append(settings)

        def translate(lines):
            calls.append([np.array(variable) for variable in model.trainable_variables])
            right = dict(LINES)
            return [right[line] if len(calls) == 1 else line + right[line][9:] for line in lines]

        return translate

    recipe = tiny_run.recipe(
        validation=[str(folder / "long.tsv")],
        epochs=EPOCHS,
        ema_momentum=MOMENTUM,
        monitor="val_bleu",
        translation_sample=8,
    )
    recipe = replace(recipe, search={"beam_size": 6, "length_ratio": 2.0, "on_too_long": "error"})
    before, behind = Recorder(), Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "Translator", translator)
        tiny_run.WatchedTrainer(recipe, folder / "run", [before], [behind]).train()
    path = folder / "run"
    model = load_model(path / "model.keras")
    saved = tiny_run.checkpoints(path)
    means, mean = {}, None
    for update, (arrays, _) in saved.items():
        weights = [weight.astype("float64") for weight in tiny_run.weights(arrays, model)]
        mean = (
            weights
            if mean is None
            else [MOMENTUM * m + (1 - MOMENTUM) * w for m, w in zip(mean, weights, strict=True)]
        )
        means[update] = mean
    return types.SimpleNamespace(
        path=path, model=model, saved=saved, means=means, translated=calls,
        settings=made, before=before, behind=behind, updates=len(saved) // EPOCHS,
    )  # fmt: skip


def assert_close(actual, expected, tolerance=1e-5):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# Averaged weights.


@pytest.mark.long
def test_every_checkpoint_holds_the_moving_average_of_its_weights(run):
    assert list(run.saved) == list(range(1, EPOCHS * run.updates + 1))
    for update, (arrays, _) in run.saved.items():
        averages = [a for name, a in arrays.items() if name.endswith("_average")]
        assert_close(averages, run.means[update])
    assert not np.allclose(tiny_run.weights(arrays, run.model)[0], run.means[update][0], atol=1e-3)


def test_validation_loss_is_computed_with_the_averaged_weights(run):
    dataset, _ = make_dataset(LINES, tiny_run.tokenizer(run.path), batch_tokens=1024, shuffle=False)

    def loss(weights):
        for variable, weight in zip(run.model.trainable_variables, weights, strict=True):
            variable.assign(weight)
        return run.model.evaluate(dataset, verbose=0, return_dict=True)["loss"]

    # In the first epoch they are far apart.
    logged = tiny_run.history(run.path)[0]["val_loss"]
    assert loss(run.means[run.updates]) == pytest.approx(logged, rel=1e-5)
    raw = tiny_run.weights(run.saved[run.updates][0], run.model)
    assert loss(raw) != pytest.approx(logged, rel=1e-2)


@pytest.mark.parametrize(
    "asked, updates",
    [
        ({"last": 2}, [20, 10]),
        pytest.param({"best": 1}, [10], marks=pytest.mark.long),
    ],
    ids=str,
)
def test_average_run_averages_the_moving_averages(run, tmp_path, asked, updates):
    paths = average_run(run.path, tmp_path / "mean.keras", **asked)
    assert [int(path.stem[-8:]) for path in paths] == updates
    means = [np.mean(w, axis=0) for w in zip(*(run.means[n] for n in updates), strict=True)]
    assert_close(tiny_run.saved_weights(tmp_path / "mean.keras"), means)


# Translations, and the model that they select.


def test_history_holds_the_scores_of_the_averaged_weights(run):
    sample = LINES[:8]
    wrong = [source + reference[9:] for source, reference in sample]
    references = [[reference for _, reference in sample]]
    for epoch, row in enumerate(tiny_run.history(run.path)):
        assert_close(run.translated[epoch], run.means[(epoch + 1) * run.updates])
        translations = wrong if epoch else references[0]
        assert row["val_bleu"] == BLEU().corpus_score(translations, references).score
        assert row["val_chrf"] == CHRF().corpus_score(translations, references).score


def test_sample_is_translated_greedily_under_the_other_settings_of_the_recipe(run):
    rules = {"length_ratio": 2.0, "on_too_long": "split", "beam_size": 1}
    assert run.settings == [{"max_source_tokens": 256} | rules]


def test_model_is_the_average_of_the_epoch_with_the_best_bleu(run):
    best = run.updates
    saved = tiny_run.saved_weights(run.path / "model.keras")
    tiny_run.assert_equal(saved, run.translated[0])
    assert_close(saved, run.means[best])
    scores = {update: metadata["score"] for update, (_, metadata) in run.saved.items()}
    assert max((update for update in scores if scores[update]), key=scores.get) == best
    val_losses = [row["val_loss"] for row in tiny_run.history(run.path)]
    assert np.argmin(val_losses) == 1, "the loss would select another epoch"


# Logs.


def test_logged_learning_rate_is_that_of_the_paper(run):
    rates = [logs["learning_rate"] for logs in run.behind.logs]
    # Warm-up to 0.02 in 10 updates. Keras shows the rate of the update that comes next.
    steps = np.arange(1, len(rates) + 1) + 1
    np.testing.assert_allclose(rates, 0.02 * np.minimum(steps / 10, (10 / steps) ** 0.5), rtol=1e-5)


def test_logged_efficiency_and_speed_match_counts_of_the_batches(run):
    stream = BatchStream(
        number_names("train", tiny_run.PAIRS),
        tiny_run.tokenizer(run.path),
        batch_tokens=1024,
        seed=1,
    )
    logs = iter(run.behind.logs)
    ended = zip(run.before.ended, run.behind.ended, strict=True)
    for row in tiny_run.history(run.path):
        epoch = int(row["epoch"])
        stream.seek(epoch)
        tokens = slots = target_tokens = 0
        norms = []
        for inputs, labels, weights in stream.dataset().as_numpy_iterator():
            source = inputs["encoder_token_ids"]
            tokens += np.sum(source != 0) + np.sum(labels != 0)
            slots += source.size + labels.size
            target_tokens += weights.sum()
            batch, ((*_, inner), (*_, outer)) = next(logs), next(ended)
            assert batch["padding_efficiency"] == pytest.approx(tokens / slots)
            # The measured time lies between those of the recorders before and after it.
            assert target_tokens / (outer - run.before.begun[epoch]) <= batch["tokens_per_second"]
            assert batch["tokens_per_second"] <= target_tokens / (inner - run.behind.begun[epoch])
            norms.append(batch["gradient_norm"])
        assert row["gradient_norm"] == pytest.approx(np.mean(norms))
        for name in ("padding_efficiency", "tokens_per_second", "learning_rate", "loss"):
            assert row[name] == pytest.approx(batch[name]), name
    assert next(logs, None) is None
