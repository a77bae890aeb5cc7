"""One rule says which epoch is the best; everything that says "best" follows it."""

import math

import numpy as np
import pytest

from keras_transformer.runs import CheckpointFolder
from keras_transformer.training.best_epoch import best_epoch, monitor_mode

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "name, mode",
    [("loss", "min"), ("val_loss", "min"), ("val_perplexity", "min"), ("gradient_norm", "min")]
    + [("val_wer", "min"), ("val_per", "min"), ("val_cer", "min"), ("anything", "min")]
    + [("val_bleu", "max"), ("val_chrf", "max"), ("val_accuracy", "max"), ("exact_match", "max")]
    + [("val_sparse_categorical_accuracy", "max")],
)
def test_monitor_mode(name, mode):
    assert monitor_mode(name) == mode


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
@pytest.mark.parametrize("monitor", ["val_loss", "val_bleu", "val_per"])
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
