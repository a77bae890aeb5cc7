"""One model from several checkpoints of a run.

Paper, section 6.1.
"""

import itertools
from pathlib import Path

from keras_transformer.models.transformer import load_model
from keras_transformer.run_folder import RunFolder, replaced
from keras_transformer.training.callbacks import better
from keras_transformer.training.checkpoints import (
    CheckpointFolder,
    average_checkpoints,
    check_model_state,
    read_shapes,
    restore_model_state,
    step_of,
)


def average_run(run_folder, output, last=5, best=0, say=lambda line: None):
    """Writes a model whose weights are the average of a run's checkpoints.

    Of a run with `ema_momentum`, the moving averages of the weights are averaged: these are what
    was validated.

    Args:
        run_folder: path of the run's folder.
        output: path of the `.keras` file to write.
        last: int. How many of the last checkpoints: of those after an epoch or, if the run keeps
            fewer, of those after every `checkpoint_updates` updates. Defaults to `5`.
        best: int. Instead: how many of the best epochs. Defaults to `0`.
        say: callable that takes a line of text: that they are no epochs, if they are not. Optional.

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
        say(f"The run keeps fewer than {last} epochs in a row: averaging every so many updates.")
    model = load_model(run.model_file)
    average_into(model, paths)
    with replaced(output) as partial:
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
