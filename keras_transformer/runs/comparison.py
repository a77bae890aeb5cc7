"""What is compared of runs: their settings, their figures and their scores.

Pure Python, so that a comparison needs no TensorFlow.
"""

from collections.abc import Iterable
from typing import Any

from keras_transformer import types
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.evaluation import METRICS
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe, align, differing
from keras_transformer.training.best_epoch import best_epoch

# Figures of `report.json`; only a finished run has them.
REPORTED = ("backend", "updates", "parameters", "tokens_per_second", "seconds")


class RunRecord:
    """What the files of a run say, without its model. It may be unfinished, or have no recipe.

    Args:
        path: path of the run's folder.

    Attributes:
        name: the path, as given.
        settings: section to key to value, see `effective_settings`; `None` if the run has no
            recipe.
        history: a row for each epoch.
        report: content of `report.json`.
        best: the row of the best epoch; `{}` without any.
        scores: name to value and signature of the scores that `evaluate` wrote.

    Raises:
        FileNotFoundError: if the folder holds neither a recipe nor a history.
    """

    def __init__(self, path: types.Path) -> None:
        run = RunFolder(path)
        if not (run.recipe_file.is_file() or run.history_file.is_file()):
            raise FileNotFoundError(
                f"There is no run in {str(path)!r}: it must hold {run.recipe_file.name} or "
                f"{run.history_file.name}."
            )
        self.name = str(path)
        self.history, self.report = run.history(), run.report()
        self.settings: dict[str, dict[str, Any]] | None = None
        monitor = "val_loss" if any("val_loss" in row for row in self.history) else "loss"
        if run.recipe_file.is_file():
            recipe = run.recipe()
            self.settings, monitor = effective_settings(recipe), recipe.monitor
        self.best = best_epoch(self.history, monitor) or {}
        self.scores = {
            name: score
            for name, score in self.report.items()
            if isinstance(score, dict) and {"value", "signature"} <= score.keys()
        }

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns section to name to value; what is not known is missing."""
        values = {name: score["value"] for name, score in self.scores.items()}
        if "exact_match" in self.report:
            values["exact_match"] = self.report["exact_match"]
        reported = {name: self.report[name] for name in REPORTED if name in self.report}
        reported = {n: v if isinstance(v, str) else round(v) for n, v in reported.items()}
        return {
            "run": {"finished": "updates" in self.report, "epochs": len(self.history)} | reported,
            "best epoch": _row_figures(self.best),
            "last epoch": _row_figures(self.history[-1] if self.history else {}),
            "scores": values,
        }


def differing_settings(records: Iterable[RunRecord]) -> dict[str, dict[str, list[Any]]]:
    """Returns section to key to values of the settings that differ, among runs with a recipe.

    If all of them have scores, the section `search` holds the settings of these scores' search,
    and otherwise those of the recipes.
    """
    known = [record for record in records if record.settings is not None]
    settings: list[dict[str, Any]] = [record.settings or {} for record in known]
    if all("search" in record.report for record in known):
        searches = [{"search": record.report["search"]} for record in known]
        settings = [each | search for each, search in zip(settings, searches, strict=True)]
    return differing(align(*settings))


def effective_settings(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Returns the settings of a recipe: section to key to value.

    In `model`, the preset is replaced by the fields that it sets, and `search` has all fields, so
    that two recipes that mean the same model and search have the same settings.
    """
    model = recipe.model_config(recipe.vocabulary.size).to_dict()
    sizes = ("vocabulary_size", "source_vocabulary_size")  # `size` of `vocabulary`
    fields = {name: value for name, value in model.items() if name not in sizes}
    search = SearchSettings(**recipe.search).to_dict()
    return recipe.to_dict() | {"model": fields, "search": search}


def _row_figures(row):
    """Returns the epoch, from 1, and the qualities of a row of the history."""
    epoch = {"epoch": int(row["epoch"]) + 1} if "epoch" in row else {}
    return epoch | {name: value for name, value in row.items() if name.endswith(tuple(METRICS))}
