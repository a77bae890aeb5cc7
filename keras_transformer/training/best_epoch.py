"""Which epoch is the best: the one rule of early stopping, checkpoints, averages and reports.

Pure Python.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from keras_transformer.evaluation import METRICS

Row = TypeVar("Row", bound=Mapping[str, Any])


def monitor_mode(name: str, mode: str | None = None) -> str:
    """Returns which value of a metric is best, `"min"` or `"max"`: `mode`, else by `METRICS`.

    Args:
        name: the metric's name in the logs. It ends with a name of `METRICS`: `val_bleu`.
        mode: `"min"` or `"max"`. Needed for a metric that is not in `METRICS`.

    Raises:
        ValueError: if `mode` is neither, or is missing although it is needed.
    """
    if mode in ("min", "max"):
        return mode
    logged = "_" + re.sub(r"@\d+$", "@n", name)  # `accuracy@5` is a row `accuracy@n`
    rows = [row for metric, row in METRICS.items() if logged.endswith(f"_{metric}")]
    if mode is not None or not rows:
        raise ValueError(
            "`mode` must be 'min' or 'max' for a metric that is not one of "
            f"{', '.join(METRICS)}. Received: mode={mode!r} for {name!r}. Pass `mode='max'` if "
            "more is better, else `mode='min'`. A `RunKeeper` takes it from the `CheckpointFolder` "
            "that it gets as `checkpoints`."
        )
    return "max" if rows[0].more_is_better else "min"


def ranked(rows: Iterable[Row], monitor: str, mode: str | None = None) -> list[Row]:
    """Returns the rows that have a finite value of a metric: the best first, ties in their order.

    Rows without the metric, or with `None`, NaN or infinity, are left out.

    Args:
        rows: a mapping of name to value for each epoch, in the order of the epochs.
        monitor: name of the metric.
        mode: `"min"` or `"max"`: which value is better. Defaults to that of `monitor_mode`.
    """
    sign = 1 if monitor_mode(monitor, mode) == "min" else -1
    logged_rows = [row for row in rows if row.get(monitor) is not None]
    finite_rows = [row for row in logged_rows if math.isfinite(row[monitor])]
    return sorted(finite_rows, key=lambda row: sign * row[monitor])


def best_epoch(rows: Iterable[Row], monitor: str, mode: str | None = None) -> Row | None:
    """Returns the first row with the best value of a metric, see `ranked`; `None` without any."""
    return next(iter(ranked(rows, monitor, mode)), None)
