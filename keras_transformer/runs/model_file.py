"""The model file of a run: restored if it is missing, or averaged at the end of the training."""

from keras_transformer.runs.averaging import average_into, ema_as_weights, last_to_average
from keras_transformer.runs.checkpoint_file import read_checkpoint, read_metadata
from keras_transformer.training.distribution import is_chief, sum_over_workers
from keras_transformer.training.model_state import restore_model_state, save_model


class ModelFile:
    """`model.keras` of a run: the model of the best epoch, or the average of the last epochs.

    With several workers, every worker must call each method; only the chief writes.

    Args:
        path: `pathlib.Path` of the file.
        checkpoints: `CheckpointFolder` of the run.
        strategy: the strategy of the training.
        num_averaged: number of last epochs to average at the end; `None`: keep the best epoch.
        print_fn: called with a line of text.
    """

    def __init__(self, path, checkpoints, strategy, num_averaged, print_fn):
        self.path = path
        self.checkpoints = checkpoints
        self.strategy = strategy
        self.num_averaged = num_averaged
        self.print_fn = print_fn

    def restore(self, model, keeper):
        """Writes the model of the best epoch again if the file is missing.

        Args:
            model: `Transformer` of the run.
            keeper: its `RunKeeper`, restored from the newest checkpoint.

        Returns:
            whether the file was missing.

        Raises:
            ValueError: if the checkpoint of the best epoch is not kept, and no average will replace
                the model.
        """
        best = keeper.best()
        is_missing = is_chief(self.strategy) and not self.path.is_file()
        if best is None or not sum_over_workers(self.strategy, float(is_missing)):
            return False
        kept = self.checkpoints.best(1)
        # A checkpoint stores the epoch to resume at: one after the epoch that it was saved in.
        if kept and read_metadata(kept[0])["epoch"] == best["epoch"] + 1:
            arrays = ema_as_weights(read_checkpoint(kept[0])[0])
            restore_model_state(model, arrays, parts=("model", "optimizer"))
            self._save(model)
            keeper.restore(model, print_fn=lambda line: None)
            self.print_fn(f"{self.path} was missing and has been restored from {kept[0].name}.")
        elif self.num_averaged is None:
            raise ValueError(
                f"{str(self.path)!r} is missing, and no checkpoint of epoch {best['epoch'] + 1} "
                "is kept. Restore a copy, or start again with `--no-resume`."
            )
        return True

    def average(self, model, validation):
        """Replaces the model by the average of the last epochs, if the recipe sets `average`."""
        if self.num_averaged is None:
            return
        paths = last_to_average(self.checkpoints, self.num_averaged)
        average_into(model, paths)
        names = ", ".join(path.name for path in paths)
        self.print_fn(f"Averaged {names} (`average` is {self.num_averaged}).")
        if validation is not None:
            logs = model.evaluate(validation, verbose=0, return_dict=True)
            self.print_fn(f"Validation loss {logs['loss']:.4f}")
        self._save(model)

    def _save(self, model):
        if is_chief(self.strategy):
            save_model(model, self.path)
