"""`Trainer`: resume, replacement, averages, micro-batches, `init_from`."""

import shutil
import signal
import types
from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_transformer.data.number_corpus import number_names
from keras_transformer.models.transformer import load_model
from keras_transformer.runs import build
from keras_transformer.runs.averaging import average_run
from keras_transformer.runs.build import make_tokenizers
from keras_transformer.runs.fit_scope import TrainingInterrupted
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.load import load_run
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from tests.runs import tiny_run
from tests.session import made_once

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

# With the paper's 1e-9, Adam makes whole steps of gradients that are nothing but rounding.
PLAIN = {"dropout": 0.0, "adam_epsilon": 1e-6}


def quiet(recipe, run, **options):
    return Trainer(recipe, ".", run, print_fn=lambda line: None, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of two epochs."""
    recipe = tiny_run.recipe(**PLAIN)
    return made_once(tmp_path_factory, "trainer", lambda run: quiet(recipe, run).train())


@pytest.fixture(scope="module")
def longer(tmp_path_factory):
    """The same with three epochs, three micro-batches, and an average as its model."""
    recipe = tiny_run.recipe(**PLAIN, epochs=3, micro_batch_tokens=400, average=3)
    assert recipe.training.micro_batches(replicas=1) == 3
    return made_once(tmp_path_factory, "longer", lambda run: quiet(recipe, run).train())


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def mean_of(run, steps):
    """The mean, by NumPy, of the trainable weights in the checkpoints of these updates."""
    model = load_model(RunFolder(run).model_file)
    last = [tiny_run.checkpoints(run)[step] for step in steps]
    weights = [tiny_run.weights(arrays, model) for arrays, _ in last]
    return [np.mean(values, axis=0, dtype="float64") for values in zip(*weights, strict=True)]


def assert_close(actual, expected, tolerance=1e-6):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


# Resume and replacement.


@pytest.mark.long
def test_model_is_that_of_the_best_epoch(run):
    rows = tiny_run.history(run)
    best = min(rows, key=lambda row: row["val_loss"])
    saved = tiny_run.checkpoints(run)
    arrays, metadata = saved[int(best["epoch"] + 1) * len(saved) // len(rows)]
    assert metadata["score"] == best["val_loss"]
    path = run / "model.keras"
    tiny_run.assert_equal(tiny_run.saved_weights(path), tiny_run.weights(arrays, load_model(path)))


@pytest.mark.long
def test_finished_run_resumes_with_more_epochs(copy, run, longer):
    recipe = tiny_run.recipe(**PLAIN, epochs=3)
    assert not quiet(recipe, copy).finished
    report = quiet(recipe, copy).train()
    assert tiny_run.history(copy)[:2] == tiny_run.history(run)
    assert report["epochs"] == 3 and report["updates"] == max(tiny_run.checkpoints(longer))
    np.testing.assert_allclose(tiny_run.losses(copy), tiny_run.losses(longer), rtol=1e-4)
    assert quiet(recipe, copy).finished


def test_finished_run_takes_another_search_and_is_not_trained(copy, run):
    recipe = replace(tiny_run.recipe(**PLAIN), search={"beam_size": 2, "length_penalty": None})
    quiet(recipe, copy).train()
    assert RunFolder(copy).recipe() == recipe and load_run(copy).settings.beam_size == 2
    assert tiny_run.history(copy) == tiny_run.history(run)
    saved = [tiny_run.saved_weights(folder / "model.keras") for folder in (run, copy)]
    tiny_run.assert_equal(*saved)


def test_resumed_run_is_not_finished_until_it_ends(copy):
    class Killed(BaseException):
        pass

    def kill(model):
        raise Killed

    recipe = tiny_run.recipe(**PLAIN, epochs=3)
    updates = max(tiny_run.checkpoints(copy))
    with pytest.raises(Killed):
        tiny_run.WatchedTrainer(
            recipe, copy, [tiny_run.AtUpdate(updates + 1, kill, before=True)]
        ).train()
    assert not quiet(recipe, copy).finished
    # As `evaluate` writes it for the best model so far.
    RunFolder(copy).add_to_report(exact_match=0.5)
    assert not quiet(recipe, copy).finished


def test_run_of_another_recipe_is_rejected_unless_replaced(copy):
    other = tiny_run.recipe(**PLAIN, learning_rate=0.001, epochs=1)
    with pytest.raises(ValueError, match="another recipe.*--no-resume"):
        quiet(other, copy)
    (copy / "notes.txt").write_text("mine")
    assert quiet(other, copy, resume=False).train()["epochs"] == 1
    assert RunFolder(copy).recipe() == other and len(tiny_run.history(copy)) == 1
    assert (copy / "notes.txt").read_text() == "mine"
    assert quiet(other, copy).finished


def test_missing_tokenizer_of_a_finished_run_is_made_again(copy, monkeypatch):
    recipe, file = tiny_run.recipe(**PLAIN), copy / "tokenizer.model"
    content, model = file.read_bytes(), (copy / "model.keras").read_bytes()
    assert quiet(recipe, copy).finished
    file.unlink()
    assert not quiet(recipe, copy).finished
    vocabulary = replace(recipe.vocabulary, model_type="unigram")
    other = replace(recipe, vocabulary=vocabulary)
    with monkeypatch.context() as patch:
        patch.setattr(build, "make_tokenizers", lambda _, *rest: make_tokenizers(other, *rest))
        with pytest.raises(ValueError, match="training pairs differ"):
            quiet(recipe, copy).train()
    assert not file.exists()
    quiet(recipe, copy).train()
    assert file.read_bytes() == content and quiet(recipe, copy).finished
    assert (copy / "model.keras").read_bytes() == model


def test_model_that_lost_tokenizer_and_checkpoints_is_not_trained_over(copy):
    (copy / "tokenizer.model").unlink()
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ValueError, match="tokenizer.model.*missing.*--no-resume"):
        quiet(tiny_run.recipe(**PLAIN), copy)


def test_finished_run_that_lost_its_checkpoints_is_not_trained_over(copy):
    before = (copy / "model.keras").read_bytes(), (copy / "report.json").read_bytes()
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ValueError, match="no checkpoint to resume from.*--no-resume"):
        quiet(tiny_run.recipe(**PLAIN, epochs=5), copy).train()
    assert before == ((copy / "model.keras").read_bytes(), (copy / "report.json").read_bytes())


@pytest.mark.parametrize("parents", ["", "a/b"])
def test_start_that_failed_leaves_nothing_behind(tmp_path, parents):
    recipe = tiny_run.recipe(validation=["nowhere.tsv"])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        quiet(recipe, tmp_path / parents / "run").train()
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        quiet(recipe, tmp_path / "run").train()
    assert [path.name for path in tmp_path.rglob("*")] == ["run"], "an empty folder was there"


# Averages.


def test_average_of_a_run_is_the_mean_of_its_last_checkpoints(run, tmp_path):
    """Of update checkpoints, because there are only two epochs."""
    before = (run / "model.keras").read_bytes()
    paths = average_run(run, tmp_path / "mean.keras", last=4)
    assert [path.name for path in paths] == sorted(
        (path.name for path in (run / "checkpoints").iterdir()), reverse=True
    )[:4]
    assert_close(tiny_run.saved_weights(tmp_path / "mean.keras"), mean_of(run, range(17, 21)))
    assert (run / "model.keras").read_bytes() == before
    assert len(load_run(run, model=tmp_path / "mean.keras")(["one", "two"])) == 2


def test_average_of_the_best_is_the_mean_of_the_epochs_with_the_best_loss(run, tmp_path):
    paths = average_run(run, tmp_path / "mean.keras", best=2)
    per_epoch = len(tiny_run.checkpoints(run)) // 2
    epochs = sorted(tiny_run.history(run), key=lambda row: row["val_loss"])
    assert [int(path.stem[-8:]) for path in paths] == [
        int(row["epoch"] + 1) * per_epoch for row in epochs
    ]


@pytest.mark.parametrize("asked", [{"last": 100}, {"best": 3}, {"last": 0}], ids=str)
def test_average_of_more_than_is_kept_is_an_error(run, tmp_path, asked):
    with pytest.raises(ValueError, match="The run keeps only [0-9]+ checkpoints.*keep_last"):
        average_run(run, tmp_path / "mean.keras", **asked)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_recipe_with_average_averages_the_last_epochs(longer):
    assert_close(tiny_run.saved_weights(longer / "model.keras"), mean_of(longer, (10, 20, 30)))


# Micro-batches.


@pytest.mark.long
def test_micro_batches_change_no_loss(run, longer):
    np.testing.assert_allclose(tiny_run.losses(longer)[:2], tiny_run.losses(run), rtol=1e-6)


# `init_from`.


@pytest.mark.long
def test_init_from_starts_with_the_weights_and_a_new_schedule(run, tmp_path):
    seen = types.SimpleNamespace()

    class First(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.weights = [np.array(variable) for variable in self.model.trainable_variables]
            seen.rate = float(self.model.optimizer.learning_rate)
            seen.updates = int(self.model.optimizer.iterations)

        def on_train_batch_end(self, batch, logs=None):
            seen.__dict__.setdefault("loss", logs["loss"])

    recipe = tiny_run.recipe(**PLAIN, init_from=str(run), epochs=1)
    tiny_run.WatchedTrainer(recipe, tmp_path / "run", [First()]).train()
    tiny_run.assert_equal(seen.weights, tiny_run.saved_weights(run / "model.keras"))
    assert seen.updates == 0 and seen.rate == pytest.approx(0.02 / 10)
    files = [RunFolder(folder).tokenizer_files(joint=True)[0] for folder in (run, tmp_path / "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # The loss of one batch, compared with the mean over an epoch in which the loss falls.
    losses = [row["loss"] for row in tiny_run.history(run)]
    assert abs(seen.loss - losses[-1]) < (losses[0] - losses[-1]) / 2


def test_init_from_another_model_names_the_fields_that_differ(run, tmp_path):
    recipe = tiny_run.recipe(init_from=str(run))  # dropout may differ
    model = recipe.model | {"num_heads": 4, "intermediate_dim": 96}
    other = recipe.from_dict(recipe.to_dict() | {"model": model})
    with pytest.raises(ValueError, match="init_from") as caught:
        quiet(other, tmp_path / "run").train()
    message = str(caught.value)
    assert "num_heads is 2, not 4" in message and "intermediate_dim is 64, not 96" in message
    assert "dropout" not in message and "vocabulary" not in message


@pytest.mark.long
def test_float16_run_resumes_bit_identically(tmp_path):
    """A loss-scaling optimizer wraps its optimizer and has other variable names."""
    recipe = tiny_run.recipe(precision="mixed_float16", epochs=1)
    quiet(recipe, tmp_path / "whole").train()
    stop = tiny_run.AtUpdate(4, lambda model: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(TrainingInterrupted):
        tiny_run.WatchedTrainer(recipe, tmp_path / "run", before=[stop]).train()
    quiet(recipe, tmp_path / "run").train()
    expected, found = (tiny_run.checkpoints(tmp_path / name) for name in ("whole", "run"))
    tiny_run.assert_equal(found[max(found)][0].values(), expected[max(expected)][0].values())


def test_run_does_not_resume_with_other_data(tmp_path):
    stop = tiny_run.AtUpdate(4, lambda model: signal.raise_signal(signal.SIGTERM))
    files = [tmp_path / "train.en", tmp_path / "train.de"]
    for size in (300, 200):
        sides = zip(*number_names("train", size), strict=True)
        for file, lines in zip(files, sides, strict=True):
            file.write_text("\n".join(lines) + "\n")
        recipe = tiny_run.recipe().to_dict()
        recipe["data"]["train"] = [str(file) for file in files]
        trainer = tiny_run.WatchedTrainer(Recipe.from_dict(recipe), tmp_path / "run", before=[stop])
        error = TrainingInterrupted if size == 300 else ValueError
        with pytest.raises(error) as caught:
            trainer.train()
    assert "pairs differ" in str(caught.value) and "--no-resume" in str(caught.value)


@pytest.mark.long
def test_run_with_init_from_resumes_without_the_other_run(run, tmp_path):
    shutil.copytree(run, tmp_path / "other")
    recipe = tiny_run.recipe(init_from=str(tmp_path / "other"), epochs=1)
    stop = tiny_run.AtUpdate(4, lambda model: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(TrainingInterrupted):
        tiny_run.WatchedTrainer(recipe, tmp_path / "run", before=[stop]).train()
    shutil.rmtree(tmp_path / "other")
    assert quiet(recipe, tmp_path / "run").train()["epochs"] == 1
