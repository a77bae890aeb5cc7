"""One rule says which epoch is the best; everything that says "best" follows it."""

import functools
import math

import numpy as np
import pytest

from keras_transformer.data.pipeline import BatchStream
from keras_transformer.runs import CheckpointFolder, RunKeeper
from keras_transformer.training import BestModel
from keras_transformer.training.best_epoch import best_epoch, monitor_mode

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "name, mode",
    [("loss", "min"), ("val_loss", "min"), ("val_perplexity", "min"), ("decoder_loss", "min")]
    + [("val_wer", "min"), ("val_per", "min"), ("val_cer", "min")]
    + [("val_bleu", "max"), ("val_chrf", "max"), ("val_accuracy", "max"), ("exact_match", "max")]
    + [
        ("val_sparse_categorical_accuracy", "max"),
        ("val_accuracy@5", "max"),
        ("accuracy@1", "max"),
    ],
)
def test_monitor_mode(name, mode):
    assert monitor_mode(name) == mode
    for given in ("min", "max"):
        assert monitor_mode(name, given) == given


UNKNOWN = ("val_f1", "gradient_norm", "lower", "bleurt", "bleu@5", "accuracy@n_best", "", "gloss")


@pytest.mark.parametrize("name", UNKNOWN)
def test_metric_that_is_not_in_the_table_needs_a_mode(name, tmp_path):
    values = [{name: 1.0}, {name: 3.0}, {name: 2.0}]

    def keeper(mode=None):
        checkpoints = CheckpointFolder(tmp_path, mode=mode)
        stream = object.__new__(BatchStream)  # not read
        return RunKeeper(tmp_path, stream, monitor=name, checkpoints=checkpoints)

    askers = {
        "monitor_mode": functools.partial(monitor_mode, name),
        "best_epoch": functools.partial(best_epoch, values, name),
        "BestModel": functools.partial(BestModel, tmp_path / "best.keras", name),
        "RunKeeper": keeper,
    }
    for ask in askers.values():
        with pytest.raises(ValueError, match="`mode` must be 'min' or 'max'"):
            ask()
        with pytest.raises(ValueError, match="`mode`.* 'min' or 'max'"):
            ask(mode="more")
        ask(mode="max")
    with pytest.raises(ValueError, match="`mode` must be 'min' or 'max'"):
        RunKeeper(tmp_path, object.__new__(BatchStream), monitor=name)
    for mode, best in (("min", 0), ("max", 1)):
        kept = keeper(mode=mode)
        kept.state.history.extend(values)
        assert kept.best() is values[best] is best_epoch(values, name, mode)


def test_checkpoints_of_the_other_mode_are_refused(tmp_path):
    checkpoints = CheckpointFolder(tmp_path)
    with pytest.raises(ValueError, match="`checkpoints` must keep the highest 'val_bleu'"):
        RunKeeper(
            "unused", object.__new__(BatchStream), monitor="val_bleu", checkpoints=checkpoints
        )


# (values of the epochs, `...` where the column is missing; the best epoch if less is better, and
# if more is better).
CASES = {
    "no epochs": ([], None, None),
    "one": ([2.0], 0, 0),
    "falls": ([3.0, 2.0, 1.0], 2, 0),
    "ties: the first": ([2.0, 1.0, 1.0, 2.0], 1, 0),
    "NaN first": ([NAN, 3.0, 2.0], 2, 1),
    "NaN last": ([3.0, 2.0, NAN], 1, 0),
    "all NaN": ([NAN, NAN], None, None),
    "missing": ([..., 3.0, ..., 2.0], 3, 1),
    "all missing": ([..., ...], None, None),
    "None": ([None, 2.0, 1.0], 2, 1),
    "infinity": ([INF, 2.0, -INF, 3.0], 1, 3),
    "all infinite": ([INF, -INF], None, None),
    "zero and signs": ([0.0, -1.0, 1.0, -0.0], 1, 2),
    "NumPy": ([np.float32(NAN), np.float32(2.0), np.float64(1.0)], 2, 1),
    "whole numbers": ([3, 2, 2], 1, 0),
    "all kinds": ([NAN, ..., INF, None, 5.0, -INF, 4.0], 6, 4),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("monitor", ["val_loss", "val_bleu"])
def test_best_epoch_and_all_that_name_it(case, monitor, tmp_path):
    values, *expected = CASES[case]
    best = expected[monitor == "val_bleu"]
    rows = [
        {"epoch": epoch} | ({} if value is ... else {monitor: value})
        for epoch, value in enumerate(values)
    ]
    found = best_epoch(rows, monitor)
    assert found is (None if best is None else rows[best])
    folder = CheckpointFolder(tmp_path, keep_last=len(CASES), mode=monitor_mode(monitor))
    paths = [folder.save(row["epoch"], {}, {}, score=row.get(monitor)) for row in rows]
    assert folder.best(1) == ([] if best is None else [paths[best]])
