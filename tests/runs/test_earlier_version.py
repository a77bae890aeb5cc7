"""Files that an earlier version wrote: the run resumes, the model and its optimizer load.

`fixtures/earlier_version.zip` holds a run that was interrupted after 7 of 12 updates, and what the
earlier version made of it later: its history, its model, and the model's translations.
"""

import csv
import json
import re
import zipfile

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.runs import CheckpointFolder, RunFolder, Trainer, read_checkpoint
from keras_transformer.training import model_state
from tests.builders import ROOT, run_fresh

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

LINES = ["twenty-one", "three hundred and five"]
UPDATES, ALL_UPDATES = 7, 12
# Other processors add up in another order.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The folder with the files of the earlier version."""
    folder = tmp_path_factory.mktemp("earlier_version")
    with zipfile.ZipFile(ROOT / "tests" / "fixtures" / "earlier_version.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def model(earlier):
    return kt.load_model(earlier / "finished.keras")


def losses(file):
    with open(file, encoding="utf-8", newline="") as opened:
        return [(float(row["loss"]), float(row["val_loss"])) for row in csv.DictReader(opened)]


def assert_close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_checkpoint_is_read(earlier):
    checkpoints = earlier / "run" / "checkpoints"
    arrays, metadata = read_checkpoint(checkpoints / f"checkpoint-{UPDATES:08d}.npz")
    assert metadata["step"] == UPDATES == arrays["optimizer/adam/iteration"]
    assert metadata["kinds"] == ["stop"] and (metadata["epoch"], metadata["batch"]) == (1, 1)
    (epoch,) = metadata["history"]
    assert (epoch["loss"], epoch["val_loss"]) == losses(earlier / "run" / "history.csv")[0]
    assert CheckpointFolder(checkpoints).newest()[2] == metadata


def test_finished_model_loads_with_its_optimizer(model):
    assert isinstance(model, kt.Transformer) and isinstance(model.loss, kt.SmoothedCrossEntropy)
    assert model.optimizer.iterations == ALL_UPDATES
    moments = [v.numpy() for v in model.optimizer.variables if v.path.endswith("_velocity")]
    assert len(moments) == len(model.trainable_variables)
    assert all(moment.any() for moment in moments)


def test_interrupted_run_resumes_and_ends_as_in_the_earlier_version(earlier, model):
    lines = []
    run = RunFolder(earlier / "run")
    report = Trainer(run.recipe(), ".", run.path, print_fn=lines.append).train()
    assert any(line.startswith(f"Resuming after {UPDATES} updates") for line in lines)
    assert report["updates"] == ALL_UPDATES and report["epochs"] == 2
    assert_close(losses(run.history_file), losses(earlier / "finished_history.csv"))
    actual, expected = model_state(kt.load_model(run.model_file)), model_state(model)
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        # Keras saves no random states and metrics; the gradient of a key bias is rounding noise.
        if not re.search("^metrics/|seed_generator|key.bias", name):
            assert_close(actual[name], array)


def test_finished_model_translates_with_the_scores_of_the_earlier_version(earlier, model):
    """By a search, because the tokens of the hypotheses do not follow from their texts."""
    tokenizer = kt.Tokenizer(earlier / "run" / "tokenizer.model")
    translator = kt.Translator(model, tokenizer, frozen=True, max_source_tokens=256)
    expected = json.loads((earlier / "translations.json").read_text("utf-8"))
    for hypotheses, rows in zip(translator(LINES, n_best=2), expected, strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        np.testing.assert_allclose(scores, [row["score"] for row in rows], rtol=TOLERANCE)


FRESH = """
import keras_transformer as kt
model = kt.load_model({path!r})
print(type(model).__name__, type(model.loss).__name__, int(model.optimizer.iterations.numpy()))
"""


def test_model_loads_in_a_fresh_process_whatever_modules_it_names(earlier):
    """Keras finds the classes by their registered names: modules may move."""
    moved = earlier / "moved.keras"
    with zipfile.ZipFile(earlier / "finished.keras") as old, zipfile.ZipFile(moved, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "config.json":
                assert b'"keras_transformer.training.losses"' in content
                content = content.replace(b'"module": "keras_transformer.', b'"module": "nowhere.')
            new.writestr(name, content)
    printed = run_fresh(FRESH.format(path=str(moved)))
    assert printed.split() == ["Transformer", "SmoothedCrossEntropy", str(ALL_UPDATES)]
