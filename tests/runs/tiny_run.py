"""Tiny runs and readers of their files, for the tests of `runs`."""

import keras
import numpy as np

from keras_transformer import load_model
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.runs.checkpoint_file import read_checkpoint
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from tests.session import made_once

PAIRS = 500


def recipe(dropout=0.1, validation=None, **training):
    """1+1 layers on number names: ten updates per epoch, a checkpoint after every update."""
    quick = {"batch_tokens": 1024, "epochs": 2, "learning_rate": 0.02, "warmup_steps": 10}
    kept = {"checkpoint_updates": 1, "keep_last": 500}
    return Recipe.from_dict(
        {
            "data": {
                "train": {"number_names": "train", "size": PAIRS},
                "validation": validation or {"number_names": "held_out", "size": 40},
            },
            "vocabulary": {"size": 330},
            "model": {
                **{"preset": "tiny", "num_encoder_layers": 1, "num_decoder_layers": 1},
                **{"hidden_dim": 32, "intermediate_dim": 64, "num_heads": 2, "dropout": dropout},
            },
            "training": {**quick, **kept, **training},
        }
    )


# With the paper's 1e-9, Adam makes whole steps of gradients that are nothing but rounding.
PLAIN = {"dropout": 0.0, "adam_epsilon": 1e-6, "average": 2}


def quiet(recipe, run, **options):
    """A trainer that prints nothing."""
    return Trainer(recipe, ".", run, print_fn=lambda line: None, **options)


def plain_run(tmp_path_factory):
    """A finished run of two epochs, whose model is their average, trained once in a session."""
    return made_once(tmp_path_factory, "plain", lambda run: quiet(recipe(**PLAIN), run).train())


class WatchedTrainer(Trainer):
    """A trainer with more callbacks, before and after its own."""

    def __init__(self, recipe, run, before=(), behind=()):
        super().__init__(recipe, ".", run, print_fn=lambda line: None)
        self._before, self._behind = before, behind

    def model(self, tokenizers, stream):
        model = super().model(tokenizers, stream)
        fit = model.fit
        model.fit = lambda *data, callbacks, **options: fit(
            *data, callbacks=[*self._before, *callbacks, *self._behind], **options
        )
        return model


class AtUpdate(keras.callbacks.Callback):
    """Calls a function after an update of the optimizer, counted from 1."""

    def __init__(self, update, function):
        super().__init__()
        self._update, self._function = update, function

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations == self._update:
            self._function()


def history(run):
    return RunFolder(run).history()


def losses(run):
    return [(row["epoch"], row["loss"], row["val_loss"]) for row in history(run)]


def checkpoints(run):
    """{update: (arrays, metadata)}, oldest first."""
    paths = sorted(RunFolder(run).checkpoints.glob("*.npz"))
    return {int(path.stem.removeprefix("checkpoint-")): read_checkpoint(path) for path in paths}


def weights(arrays, model):
    """The trainable weights in a checkpoint, in the order of the model."""
    return [arrays[f"model/{variable.path}"] for variable in model.trainable_variables]


def saved_weights(path):
    """The trainable weights in a `.keras` file."""
    return [np.array(variable) for variable in load_model(path).trainable_variables]


def tokenizer(run):
    return Tokenizer.load(RunFolder(run).tokenizer_files(joint=True)[0])


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)
