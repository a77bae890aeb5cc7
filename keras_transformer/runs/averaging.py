"""One model from several checkpoints of a run.

Paper, section 6.1.
"""

import itertools
from pathlib import Path

import numpy as np

from keras_transformer.atomic_file import atomic_path
from keras_transformer.models.transformer import load_model
from keras_transformer.runs.checkpoint_file import read_checkpoint, read_shapes
from keras_transformer.runs.checkpoint_folder import CheckpointFolder, step_of
from keras_transformer.runs.folder import RunFolder
from keras_transformer.training.callbacks import better
from keras_transformer.training.model_state import check_model_state, restore_model_state


def average_run(run_folder, output, last=5, best=0, print_fn=lambda line: None):
    """Writes a model whose weights are the average of a run's checkpoints.

    Of a run with `ema_momentum`, the moving averages of the weights are averaged: these are what
    was validated.

    Args:
        run_folder: path of the run's folder.
        output: path of the `.keras` file to write.
        last: int. How many of the last checkpoints: of those after an epoch or, if the run keeps
            fewer, of those after every `checkpoint_updates` updates. Defaults to `5`.
        best: int. Instead: how many of the best epochs. Defaults to `0`.
        print_fn: callable that takes a line of text. Optional.

    Returns:
        list of the paths averaged, the newest or the best first.

    Raises:
        ValueError: if the run does not keep that many.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    run = RunFolder.existing(run_folder)
    training = run.recipe().training
    monitor = training.monitor or "val_loss"
    folder = CheckpointFolder(run.checkpoints, mode=better(monitor).__name__)
    paths = folder.best(best) if best else last_to_average(folder, last)
    if not paths or len(paths) < (best or last):
        raise ValueError(
            f"The run keeps {len(paths)} such checkpoints (`keep_last` {training.keep_last}, "
            f"`keep_best` {training.keep_best} in its recipe). Received: last={last}, best={best}"
        )
    if not best and not set(paths) <= set(folder.last(last, "epoch")):
        print_fn(
            f"The run keeps fewer than {last} epochs in a row: averaging every so many updates."
        )
    model = load_model(run.model_file)
    average_into(model, paths)
    with atomic_path(output) as partial:
        model.save(partial)
    if Path(output) == run.averaged_file:
        run.add_made(run.averaged_file.name)
    return paths


def last_to_average(folder, number):
    """Returns the last checkpoints that are spaced alike; fewer than asked if there are no more.

    They are those after the last epochs or, if these are too few, those after every so many
    updates. A mixture of both would count some stretches of the training twice, and so would the
    checkpoint of a run that was told to stop. Nor are there gaps, as before an epoch that is kept
    because it is the best.

    Args:
        folder: `CheckpointFolder`.
        number: int, how many are asked for.

    Returns:
        list of paths, the newest first.
    """
    metadata = folder.metadata()
    epochs = folder.last(len(metadata), "epoch")
    epochs = _without_gap(epochs, [metadata[path].get("epoch") for path in epochs], 1)[:number]
    updates = folder.last(len(metadata), "updates")
    # What `checkpoint_updates` was at the newest: it may change when a run goes on.
    every = metadata[updates[0]].get("every") if updates else None
    updates = _without_gap(updates, [step_of(path) for path in updates], every)[:number]
    return updates if len(epochs) < number == len(updates) else epochs


def _without_gap(paths, places, distance):
    """The first of the paths, as long as their places differ by the distance."""
    if distance is None and len(places) > 1:  # a run of an earlier version
        distance = places[0] - places[1]
    ends = [n for n, (a, b) in enumerate(itertools.pairwise(places), 1) if a - b != distance]
    return paths[: min(ends, default=len(paths))]


def average_into(model, paths):
    """Gives a model the average of the weights in checkpoints.

    Args:
        model: `keras.Model` made as the one that was saved.
        paths: paths of checkpoints.

    Raises:
        ValueError: they are not of such a model.
    """
    for path in paths:
        check_model_state(model, read_shapes(path), parts=("model",))
    restore_model_state(model, average_checkpoints(paths, ema=True), parts=("model",))


def average_checkpoints(paths, prefix="model/", ema=False):
    """Averages the floats of checkpoints, in float64; one of them is in memory at a time.

    Args:
        paths: paths of checkpoints of one model, in any order.
        prefix: str. What arrays are named whose name begins otherwise is left out.
        ema: bool. Whether to take the moving averages of weights where the optimizer kept some,
            see `ema_as_weights`. Defaults to `False`.

    Returns:
        dict of name to array: the mean in the array's own dtype. Arrays that are no floats, such
        as random seeds, are those of the newest checkpoint.

    Raises:
        ValueError: no paths, no such arrays, or checkpoints with other names or shapes.
        CorruptCheckpointError: a checkpoint cannot be read.
    """
    paths = sorted(paths, key=step_of)
    first, sums, arrays = None, {}, {}
    for path in paths:
        arrays = array = None  # or two checkpoints would be in memory
        arrays = read_checkpoint(path)[0]
        arrays = ema_as_weights(arrays) if ema else arrays
        arrays = {n: a for n, a in arrays.items() if n.startswith(prefix)}
        kinds = {name: f"{a.dtype} {list(a.shape)}" for name, a in arrays.items()}
        first = first or kinds
        for name in sorted(kinds.keys() | first.keys()):
            if kinds.get(name) != first.get(name):
                raise ValueError(
                    "Checkpoints that are averaged must hold the same arrays. Received: "
                    f"{name} is {first.get(name, 'missing')} in {paths[0]}, and "
                    f"{kinds.get(name, 'missing')} in {path}"
                )
        for name, array in arrays.items():
            if "float" in array.dtype.name:  # also bfloat16, which NumPy does not count as one
                sums[name] = np.add(sums.get(name, 0.0), array, dtype="float64")
    if not arrays:
        raise ValueError(
            "`paths` must name checkpoints with arrays whose names begin with `prefix`. "
            f"Received: paths={[str(path) for path in paths]}, prefix={prefix!r}"
        )
    means = {name: total / len(paths) for name, total in sums.items()}
    return {
        name: np.asarray(means.get(name, array)).astype(array.dtype, copy=False)
        for name, array in arrays.items()
    }


def ema_as_weights(arrays):
    """Puts the moving averages of an optimizer with `use_ema=True` in place of the weights.

    Args:
        arrays: dict of name to array, as of `model_state`. It stays as it is.

    Returns:
        dict of the same names; the same arrays where there are no moving averages.
    """
    # Keras names the average of "a/kernel" "adam/a_kernel_average".
    averages = {
        name.split("/")[-1].removesuffix("_average"): array
        for name, array in arrays.items()
        if name.startswith("optimizer/") and name.endswith("_average")
    }
    return {
        name: averages.get(name.removeprefix("model/").replace("/", "_"), array)
        for name, array in arrays.items()
    }
