"""`Trainer`: resume, replacement, averages, micro-batches, `init_from`."""

import shutil
import signal
import types
from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import load_model
from keras_transformer.runs.averaging import average_run
from keras_transformer.runs.fit_scope import TrainingInterrupted
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.load import load_run, take_weights
from keras_transformer.runs.trainer import Trainer
from tests.builders import randomize
from tests.runs import tiny_run
from tests.runs.tiny_run import PLAIN, quiet

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny_run.plain_run(tmp_path_factory)


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


def assert_mean(path, run, steps):
    """The weights in a model file are the mean, by NumPy, of those in some checkpoints."""
    model, saved = load_model(path), tiny_run.checkpoints(run)
    weights = [tiny_run.weights(saved[step][0], model) for step in steps]
    means = [np.mean(values, axis=0, dtype="float64") for values in zip(*weights, strict=True)]
    for weight, mean in zip(model.trainable_variables, means, strict=True):
        np.testing.assert_allclose(np.array(weight), mean, rtol=1e-6, atol=1e-6)


# Resume and replacement.


@pytest.mark.long
def test_finished_run_resumes_with_more_epochs_and_micro_batches(copy, run, tmp_path):
    """Both change no loss."""
    recipe = tiny_run.recipe(**PLAIN, epochs=3, micro_batch_tokens=400)
    assert recipe.training.micro_batches(replicas=1) == 3
    assert not quiet(recipe, copy).finished
    report = quiet(recipe, copy).train()
    assert tiny_run.history(copy)[:2] == tiny_run.history(run)
    assert quiet(recipe, copy).finished
    quiet(recipe, tmp_path / "whole").train()
    assert report["epochs"] == 3
    assert report["updates"] == max(tiny_run.checkpoints(tmp_path / "whole"))
    losses = tiny_run.losses(tmp_path / "whole")
    np.testing.assert_allclose(losses[:2], tiny_run.losses(run), rtol=1e-6)
    np.testing.assert_allclose(losses, tiny_run.losses(copy), rtol=1e-4)


def test_finished_run_takes_another_search_and_is_not_trained(copy, run):
    recipe = replace(tiny_run.recipe(**PLAIN), search={"beam_size": 2, "length_penalty": None})
    printed = []
    trainer = Trainer(recipe, ".", copy, print_fn=printed.append)
    trainer._callbacks_of_chief = None  # they are of training alone
    trainer.train()
    assert "This run is finished: 2 epochs, 20 updates." in printed
    assert not any("Resuming" in line for line in printed)
    assert RunFolder(copy).recipe() == recipe and load_run(copy).settings.beam_size == 2
    for name in ("history.csv", "model.keras", "report.json"):
        assert (copy / name).read_bytes() == (run / name).read_bytes()


def test_run_of_another_recipe_is_rejected_unless_replaced(copy):
    other = tiny_run.recipe(dropout=0.0, learning_rate=0.001, epochs=1)
    with pytest.raises(ValueError, match="another recipe.*--no-resume"):
        quiet(other, copy)
    (copy / "notes.txt").write_text("mine")
    trainer = quiet(
        replace(other, training=replace(other.training, average=None)), copy, resume=False
    )
    trainer._fit = lambda *args: None
    assert trainer.train()["updates"] == 0
    assert RunFolder(copy).recipe() == other
    assert {path.name for path in copy.iterdir()} == {
        *("config.yaml", "notes.txt", "report.json", "run.json", "tokenizer.json", "tokenizer.spm"),
    }


@pytest.mark.long
def test_interrupted_start_with_no_resume_goes_on_in_a_second_call(tmp_path):
    stop = tiny_run.AtUpdate(3, lambda: signal.raise_signal(signal.SIGTERM))
    trainer = tiny_run.WatchedTrainer(tiny_run.recipe(epochs=1), tmp_path / "run", [stop])
    trainer.resume = False
    with pytest.raises(TrainingInterrupted):
        trainer.train()
    printed, trainer._before = [], ()
    trainer.print_fn = printed.append
    assert trainer.train()["updates"] == 10
    assert any("Resuming after 3 updates" in line for line in printed)


# Averages.


def test_recipe_with_average_averages_the_last_epochs(run):
    assert_mean(run / "model.keras", run, (10, 20))


def test_average_of_a_run_is_the_mean_of_its_last_checkpoints(copy):
    """Of update checkpoints, because there are only two epochs. It belongs to the run then."""
    before = (copy / "model.keras").read_bytes()
    path = copy / "checkpoints" / ".." / "averaged.keras"
    paths = average_run(copy, path, last=4)
    names = sorted((path.name for path in (copy / "checkpoints").iterdir()), reverse=True)
    assert [path.name for path in paths] == names[:4]
    assert_mean(path, copy, range(17, 21))
    assert "averaged.keras" in RunFolder(copy).owned_files()
    assert (copy / "model.keras").read_bytes() == before


FEWER = "The run keeps only [0-9]+ checkpoints.*keep_last"
NONE = "`last` must be at least 1, and `best` at least 0"


@pytest.mark.parametrize(
    "asked, message",
    [({"last": 100}, FEWER), ({"best": 3}, FEWER), ({"last": 0}, NONE), ({"best": -1}, NONE)],
)
def test_average_of_more_than_is_kept_is_an_error(run, tmp_path, asked, message):
    with pytest.raises(ValueError, match=message):
        average_run(run, tmp_path / "mean.keras", **asked)
    assert not list(tmp_path.iterdir())


# `init_from`.


@pytest.mark.long
def test_init_from_starts_with_the_weights_and_a_new_schedule_and_resumes_alone(run, tmp_path):
    """To resume, it does not need the other run."""
    seen = types.SimpleNamespace()

    class First(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.weights = [np.array(variable) for variable in self.model.trainable_variables]
            seen.rate = float(self.model.optimizer.learning_rate)
            seen.updates = int(self.model.optimizer.iterations)

        def on_train_batch_end(self, batch, logs=None):
            seen.__dict__.setdefault("loss", logs["loss"])

    other = shutil.copytree(run, tmp_path / "other")
    recipe = tiny_run.recipe(**PLAIN | {"average": None}, init_from=str(other), epochs=1)
    stop = tiny_run.AtUpdate(4, lambda: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(TrainingInterrupted):
        tiny_run.WatchedTrainer(recipe, tmp_path / "run", [First(), stop]).train()
    tiny_run.assert_equal(seen.weights, tiny_run.saved_weights(run / "model.keras"))
    assert seen.updates == 0 and seen.rate == pytest.approx(0.02 / 10)
    files = [RunFolder(folder).tokenizer_files(joint=True)[0] for folder in (run, tmp_path / "run")]
    assert files[0].read_bytes() == files[1].read_bytes()
    # The loss of one batch, compared with the mean over an epoch in which the loss falls.
    losses = [row["loss"] for row in tiny_run.history(run)]
    assert abs(seen.loss - losses[-1]) < (losses[0] - losses[-1]) / 2
    shutil.rmtree(other)
    assert quiet(recipe, tmp_path / "run").train()["epochs"] == 1


def test_fewer_layers_take_evenly_spaced_ones_of_a_run(tmp_path):
    def model(num_encoder_layers, num_decoder_layers):
        sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
        layers = {
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
        }
        made = kt.Transformer(kt.TransformerConfig.tiny(20, **sizes, **layers))
        randomize(made)
        return made

    teacher = model(4, 3)
    teacher.save(tmp_path / "model.keras")
    for layers, places in {(2, 1): ([0, 3], [0]), (3, 2): ([0, 1, 3], [0, 2])}.items():
        student = model(*layers)
        take_weights(student, tmp_path)
        for mine, theirs, kept in zip(stacks(student), stacks(teacher), places, strict=True):
            tiny_run.assert_equal(mine.embedding.get_weights(), theirs.embedding.get_weights())
            for block, place in zip(mine.blocks, kept, strict=True):
                tiny_run.assert_equal(block.get_weights(), theirs.blocks[place].get_weights())
    with pytest.raises(ValueError, match="more layers.*where num_decoder_layers is 3, not 4"):
        take_weights(model(4, 4), tmp_path)


def stacks(model):
    return model.encoder, model.decoder
