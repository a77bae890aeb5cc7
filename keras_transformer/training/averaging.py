"""One model from several checkpoints of a run.

Paper, section 6.1.
"""

from keras_transformer.models.transformer import load_model
from keras_transformer.run_folder import RunFolder, replaced
from keras_transformer.training.callbacks import better
from keras_transformer.training.checkpoints import (
    CheckpointFolder,
    average_checkpoints,
    restore_model_state,
)


def average_run(run_folder, output, last=5, best=0):
    """Writes a model whose weights are the average of a run's checkpoints.

    Args:
        run_folder: path of the run's folder.
        output: path of the `.keras` file to write.
        last: int. How many of the last checkpoints. Defaults to `5`.
        best: int. Instead: how many of the best ones. Defaults to `0`.

    Returns:
        list of the paths averaged.

    Raises:
        ValueError: if the run does not keep that many.

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    run = RunFolder.existing(run_folder)
    training = run.recipe().training
    monitor = training.monitor or "val_loss"
    folder = CheckpointFolder(run.checkpoints, mode=better(monitor).__name__)
    paths = folder.best(best) if best else folder.last(last)
    if not paths or len(paths) < (best or last):
        raise ValueError(
            f"The run keeps {len(paths)} such checkpoints (`keep_last` {training.keep_last}, "
            f"`keep_best` {training.keep_best} in its recipe). Received: last={last}, best={best}"
        )
    model = load_model(run.model_file)
    restore_model_state(model, average_checkpoints(paths), parts=("model",))
    with replaced(output) as partial:
        model.save(partial)
    return paths
