"""Which epoch is the best: the one rule of early stopping, checkpoints, averages and reports.

Pure Python.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar

from keras_transformer.evaluation import METRICS

Row = TypeVar("Row", bound=Mapping[str, Any])


def monitor_mode(name: str) -> Literal["min", "max"]:
    """Returns `"max"` if the name ends with a metric of which more is better, else `"min"`."""
    better = tuple(metric for metric, row in METRICS.items() if row.more_is_better)
    return "max" if name.endswith(better) else "min"


def ranked(rows: Iterable[Row], monitor: str, mode: str | None = None) -> list[Row]:
    """Returns the rows that have a finite value of a metric: the best first, ties in their order.

    A missing value, `None`, NaN and infinity are never the best.

    Args:
        rows: a mapping of name to value for each epoch, in the order of the epochs.
        monitor: name of the metric.
        mode: `"min"` or `"max"`: which value is better. Defaults to that of `monitor_mode`.
    """
    sign = 1 if (mode or monitor_mode(monitor)) == "min" else -1
    known = [row for row in rows if row.get(monitor) is not None]
    finite = [row for row in known if math.isfinite(row[monitor])]
    return sorted(finite, key=lambda row: sign * row[monitor])


def best_epoch(rows: Iterable[Row], monitor: str) -> Row | None:
    """Returns the first row with the best value of a metric, see `ranked`; `None` without any."""
    return next(iter(ranked(rows, monitor)), None)
