"""One model from several checkpoints of a run: the average of their weights.

Paper, section 6.1.
"""

import itertools
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from keras_transformer.models.loading import load_model
from keras_transformer.runs.checkpoint_file import read_checkpoint, read_metadata
from keras_transformer.runs.checkpoint_folder import CheckpointFolder, step_of
from keras_transformer.runs.fine_tuning import base_of, merged_arrays, set_weights
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.identity import check_base
from keras_transformer.runs.load import take_weights
from keras_transformer.training.best_epoch import monitor_mode, ranked
from keras_transformer.training.model_state import (
    TRAINED,
    model_state,
    restore_model_state,
    save_model,
)
from keras_transformer.types import Path


def average_run(run_folder: Path, output: Path, last: int = 5, best: int = 0) -> list[pathlib.Path]:
    """Writes a model whose weights are the average of a run's checkpoints.

    If the run has `ema_momentum`, the EMA of the weights is averaged, because validation used it.

    Args:
        run_folder: path of the run's folder.
        output: path of the `.keras` file to write.
        last: number of last epochs to average. If fewer consecutive epochs are kept, the last
            checkpoints written every `checkpoint_updates` are averaged instead. Defaults to `5`.
        best: number of best epochs to average instead. Defaults to `0`: the last ones.

    Returns:
        paths of the averaged checkpoints: the newest first; with `best`, the best first.

    Raises:
        ValueError: if `last` or `best` is too small, or the run keeps fewer checkpoints, or not
            those of its best epochs.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    if last < 1 or best < 0:
        raise ValueError(
            f"`last` must be at least 1, and `best` at least 0. Received: {last=}, {best=}"
        )
    run = RunFolder.existing(run_folder)
    recipe = run.recipe()
    folder = CheckpointFolder(run.checkpoints, mode=monitor_mode(recipe.monitor))
    paths = folder.best(best) if best else last_to_average(folder, last)
    if len(paths) < (best or last):
        raise ValueError(
            f"The run keeps only {len(paths)} checkpoints to average: lower `last` or `best`, or "
            f"train with a larger `keep_last` or `keep_best`. Received: last={last}, best={best}"
        )
    _require_best(paths[:best], run.history(), recipe.monitor)
    model = load_model(run.model_file)
    base = base_of(recipe.training)
    if base is not None:
        check_base(base, read_metadata(paths[0]), paths[0])
        take_weights(model, recipe.training.init_from)
    average_into(model, paths, has_base=base is not None)
    save_model(model, output)
    if pathlib.Path(output).resolve() == run.averaged_file.resolve():
        run.add_owned_files(run.averaged_file.name)
    return paths


def _require_best(paths, history, monitor):
    """Raises a `ValueError` unless some checkpoints are those of the best epochs of a run.

    Args:
        paths: paths of the best checkpoints that the run keeps.
        history: a row for each epoch.
        monitor: name of the metric.
    """
    number = len(paths)
    kept = {read_metadata(path)["epoch"] for path in paths}
    best = {int(row["epoch"]) + 1 for row in ranked(history, monitor)[:number]}
    if missing := sorted(best - kept):
        raise ValueError(
            f"The run keeps no checkpoint of some of its {number} best epochs: "
            f"{', '.join(map(str, missing))}. Lower `best`, or train with a larger `keep_best`. "
            f"Received: best={number}"
        )


def last_to_average(folder, number):
    """Returns the last checkpoints that are equally spaced, at most `number`.

    They are those of the last epochs or, if too few are consecutive, those written every
    `checkpoint_updates`. A mixture of both would count some updates twice. Checkpoints of the kinds
    `"start"` and `"stop"` are never used.

    Args:
        folder: `CheckpointFolder`.
        number: how many checkpoints to return.

    Returns:
        paths, the newest first.
    """
    metadata = folder.metadata()
    epochs = folder.last(len(metadata), "epoch")
    epochs = _equally_spaced(epochs, [metadata[path].get("epoch") for path in epochs], 1)[:number]
    updates = folder.last(len(metadata), "updates")
    # `checkpoint_updates` may have changed on resume: the newest value counts.
    every = metadata[updates[0]].get("every") if updates else None
    updates = _equally_spaced(updates, [step_of(path) for path in updates], every)[:number]
    if len(epochs) < number and len(updates) == number:
        return updates
    return epochs


def _equally_spaced(paths, positions, distance):
    """Returns the longest prefix of the paths whose neighbours are `distance` apart."""
    for index, (newer, older) in enumerate(itertools.pairwise(positions), 1):
        if newer - older != distance:
            return paths[:index]
    return paths


def average_into(model, paths, has_base=False):
    """Sets the weights of a model to the average of the checkpoints' weights.

    Args:
        model: built like the model that was saved. With a base, a plain or an adapted model that
            has the weights of the base.
        paths: paths of checkpoints.
        has_base: whether the checkpoints hold only what was trained. Defaults to `False`.

    Raises:
        ValueError: the checkpoints do not match the model.
    """
    if not has_base:
        restore_model_state(model, average_checkpoints(paths, ema=True), parts=("model",))
        return
    model.prepare_training()
    base = model_state(model, ("model",))
    arrays = average_checkpoints(paths, ema=True, base=base)
    set_weights(model, lambda path: arrays[f"model/{path}"])


def average_checkpoints(
    paths: Iterable[Path], ema: bool = False, base: Mapping[str, np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Averages the floats of checkpoints in float64, with one checkpoint in memory at a time.

    Args:
        paths: paths of checkpoints of one model, in any order.
        ema: whether to average the EMA of the weights, if the optimizer has it; see
            `ema_as_weights`. Defaults to `False`.
        base: state of the model that the run was trained from, if the checkpoints hold only what
            was trained. Differences of LoRA are added to the weights of the base. Optional.

    Returns:
        name to array: the mean in the array's own dtype. Arrays of other dtypes, such as random
        seeds, are taken from the newest checkpoint.

    Raises:
        ValueError: checkpoints whose arrays differ in name, shape or dtype, or int8 or LoRA
            weights, which cannot be averaged array by array.
        CorruptCheckpointError: a checkpoint cannot be read.
    """
    paths = sorted(paths, key=step_of)
    expected: dict[str, str] = {}  # name -> dtype and shape in the first checkpoint
    sums: dict[str, np.ndarray] = {}
    arrays: dict[str, np.ndarray] = {}
    for path in paths:
        arrays.clear()  # frees the previous checkpoint before the next is loaded
        arrays |= _weights_in(path, ema, base)
        kinds = {name: f"{a.dtype} {list(a.shape)}" for name, a in arrays.items()}
        expected = expected or kinds
        for name in sorted(kinds.keys() | expected.keys()):
            if kinds.get(name) != expected.get(name):
                raise ValueError(
                    "Checkpoints that are averaged must hold the same arrays. Received: "
                    f"{name} is {expected.get(name, 'missing')} in {paths[0]}, and "
                    f"{kinds.get(name, 'missing')} in {path}"
                )
        _add_floats(arrays, sums)
    adapted = [name for name, a in arrays.items() if a.dtype == "int8" or "/lora_" in name]
    if adapted:
        raise ValueError(
            "Checkpoints with int8 or LoRA weights cannot be averaged array by array. "
            f"Received: {adapted[0]}. Average them before `quantize` or `enable_lora`."
        )
    for name, total in sums.items():
        arrays[name] = np.asarray(total / len(paths)).astype(arrays[name].dtype, copy=False)
    return arrays


def _weights_in(path, ema, base):
    """Returns the weights of a checkpoint; the arguments are those of `average_checkpoints`."""
    arrays = read_checkpoint(path)[0]
    if ema:
        arrays = ema_as_weights(arrays)
    prefix = "model/" if base is None else f"{TRAINED}/"
    weights = {name: array for name, array in arrays.items() if name.startswith(prefix)}
    return weights if base is None else merged_arrays(base, weights)


# A function, so that its variable `array` does not keep a checkpoint in memory.
def _add_floats(arrays, sums):
    for name, array in arrays.items():
        if "float" in array.dtype.name:  # `np.floating` would leave out bfloat16
            sums[name] = np.add(sums.get(name, 0.0), array, dtype="float64")


def ema_as_weights(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replaces the weights by their EMA, which an optimizer with `use_ema=True` keeps.

    Args:
        arrays: name to array, as returned by `model_state`. Not changed.

    Returns:
        arrays under the same names. Without EMA, the arrays are unchanged.
    """
    # Keras stores the EMA of "a/kernel" under the name "adam/a_kernel_average".
    averages = {
        name.split("/")[-1].removesuffix("_average"): array
        for name, array in arrays.items()
        if name.startswith("optimizer/") and name.endswith("_average")
    }
    return {
        name: averages.get(name.partition("/")[2].replace("/", "_"), array)
        for name, array in arrays.items()
    }
