"""`TrainingState`: where a training stands, apart from the variables of its model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.training.best_epoch import best_epoch


@dataclasses.dataclass
class TrainingState:
    """Where a training stands; a checkpoint stores it beside the weights.

    Attributes:
        epoch: number of finished epochs; also the index of the present epoch.
        batch: number of batches trained in the present epoch.
        updates: number of batches trained in all.
        history: for each finished epoch, its index as `"epoch"` and what it logged.
        sums: sums over the present epoch, for the means that callbacks log.
        metrics: if the present epoch was interrupted, the variables of its metrics by name.
    """

    epoch: int = 0
    batch: int = 0
    updates: int = 0
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    sums: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_checkpoint(
        cls, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
    ) -> "TrainingState":
        """Returns the state that a checkpoint holds."""
        return cls(
            epoch=metadata["epoch"],
            batch=metadata["batch"],
            updates=metadata["step"],
            history=metadata["history"],
            sums=metadata.get("sums", {}),
            metrics={name: array for name, array in arrays.items() if name.startswith("metrics/")},
        )

    def metadata(self) -> dict[str, Any]:
        """Returns what a checkpoint stores of the state as JSON: all but the metrics."""
        return {
            "step": self.updates,
            "epoch": self.epoch,
            "batch": self.batch,
            "history": self.history,
            "sums": self.sums,
        }

    def end_batch(self, batch: int) -> None:
        """Sets the number of batches trained in this epoch; one call may end several batches."""
        self.updates += batch - self.batch
        self.batch = batch

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        """Adds what the epoch logged to the history, and begins the next epoch."""
        self.history.append(
            {"epoch": self.epoch, **{name: float(value) for name, value in logs.items()}}
        )
        self.epoch, self.batch = self.epoch + 1, 0

    def epochs_without_improvement(self, monitor: str, mode: str) -> int:
        """Returns the number of epochs since the best value of a metric, see `best_epoch`.

        0 if the metric has no value.
        """
        best = best_epoch(self.history, monitor, mode)
        if best is None:
            return 0
        newest = max(row["epoch"] for row in self.history if monitor in row)
        return int(newest - best["epoch"])
