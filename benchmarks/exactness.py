"""Checks that the update is the same however a batch is split; prints a table of differences.

    python benchmarks/exactness.py

Trains the same small model on the same sentences of 1 to 60 tokens, without dropout, with 40 Adam
updates: on one device, on two replicas, in two worker processes and in micro-batches, with and
without clipping. The last batch of each epoch has fewer rows than there are micro-batches. For
comparison, the table has Keras's own step. On one device it trains the same, but `evaluate`
averages over rows; on two replicas every figure differs. The exit code is 1 if a difference is
above its tolerance.
"""

import argparse
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.runs.workers import start_workers
from keras_transformer.training import get_strategy, is_chief

VOCABULARY_SIZE = 100
EPOCHS, ROWS = 4, (9, 12, 7, 10, 11, 8, 13, 9, 10, 1)
CLIP_NORMS = (None, 0.7)
# name -> strategy, micro-batches, step
SETUPS = {
    "one device": ("single", 1, "exact"),
    "4 micro-batches": ("single", 4, "exact"),
    "2 replicas": ("mirrored", 1, "exact"),
    "2 replicas x 2 micro-batches": ("mirrored", 2, "exact"),
    "2 worker processes": ("multi_worker", 1, "exact"),
    "Keras's step, one device": ("single", 1, "keras"),
    "Keras's step, 2 replicas": ("mirrored", 1, "keras"),
}
# Softmax ignores a constant shift, so no output depends on a key bias, and its true gradient is 0.
# Adam turns the rounding error into steps of any size.
TOLERANCES = {
    "losses": 1e-5,
    "evaluate": 1e-5,
    "weights": 1e-4,
    "key biases": float("inf"),
    "logits": 1e-4,
}
NOT_EXPECTED = {
    "Keras's step, one device": ("evaluate",),
    "Keras's step, 2 replicas": tuple(TOLERANCES),
}


class KerasTransformer(kt.Transformer):
    """The same model with Keras's own train and test steps."""

    train_step = keras.Model.train_step
    test_step = keras.Model.test_step
    fit = keras.Model.fit
    evaluate = keras.Model.evaluate


class Losses(keras.callbacks.Callback):
    """Records the loss of each update, not the mean over the epoch so far."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_begin(self, batch, logs=None):
        self.model.reset_metrics()

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(logs["loss"])


def batches():
    """Yields the batches of an epoch: ids, labels and weights of sentences of 1 to 60 tokens."""
    rng = np.random.default_rng(0)
    for rows in ROWS:
        source, target = (token_ids(rng, rows) for _ in range(2))
        inputs = {
            "encoder_token_ids": source,
            "decoder_token_ids": np.pad(target, ((0, 0), (1, 0)), constant_values=1)[:, :-1],
        }
        yield inputs, target, (target > 0).astype("float32")


def token_ids(rng, rows):
    lengths = rng.integers(1, 61, (rows, 1))
    ids = rng.integers(4, VOCABULARY_SIZE, (rows, lengths.max()))
    return np.where(np.arange(lengths.max()) < lengths, ids, 0).astype("int32")


def train(setup, clip_norm):
    """Trains with one setup and returns the arrays to compare."""
    strategy_name, micro_batches, step = SETUPS[setup]
    strategy = strategy_of(strategy_name)
    keras.utils.set_random_seed(1)
    token_spec = tf.TensorSpec((None, None), tf.int32)
    dataset = tf.data.Dataset.from_generator(
        batches,
        output_signature=(
            {"encoder_token_ids": token_spec, "decoder_token_ids": token_spec},
            token_spec,
            tf.TensorSpec((None, None), tf.float32),
        ),
    ).apply(tf.data.experimental.assert_cardinality(len(ROWS)))
    with strategy.scope():
        config = kt.TransformerConfig.tiny(
            VOCABULARY_SIZE,
            num_encoder_layers=1,
            num_decoder_layers=1,
            hidden_dim=32,
            # A dead unit of relu has no gradient but rounding, which Adam scales to a whole step.
            activation="gelu",
            dropout=0.0,
        )
        model = (kt.Transformer if step == "exact" else KerasTransformer)(config)
        model.accumulation_steps = micro_batches
        model.compile(
            kt.paper_optimizer(config, warmup_steps=20, scale=0.3, global_clipnorm=clip_norm),
            loss=kt.SmoothedCrossEntropy(ignore_class=0),
        )
    losses = Losses()
    model.fit(dataset, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[losses])
    evaluated = model.evaluate(dataset, verbose=0)
    weights = {f"weights/{v.path}": v.numpy() for v in model.trainable_variables}
    logits = model(next(batches())[0]).numpy()
    if not is_chief(strategy):
        return None
    return {"losses": np.array(losses.values), "evaluate": evaluated, "logits": logits} | weights


@functools.cache
def train_in_workers(setup, clip_norms):
    """Runs `train` in two worker processes; returns its results by clip norm."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--worker", setup, folder]
        command += ["--only-clipped"] * (clip_norms != CLIP_NORMS)
        processes = start_workers(command, 2, stderr=subprocess.PIPE)
        errors = [process.communicate()[1].decode() for process in processes]
        paths = {clip_norm: pathlib.Path(folder, f"{clip_norm}.npz") for clip_norm in clip_norms}
        if not all(path.is_file() for path in paths.values()):
            raise RuntimeError("\n".join(errors))
        return {clip_norm: dict(np.load(path)) for clip_norm, path in paths.items()}


@functools.cache  # a process can have one strategy of several workers
def strategy_of(name):
    return get_strategy(name, ["CPU:0", "CPU:1"] if name == "mirrored" else None)


def differences(result, truth):
    """Returns the largest differences: relative for losses, absolute for weights and logits."""
    weights = [name for name in truth if name.startswith("weights/")]
    key_biases = [name for name in weights if name.endswith("key/bias")]

    def largest(names):
        return max(np.abs(result[name] - truth[name]).max() for name in names)

    return {
        "losses": np.abs(result["losses"] / truth["losses"] - 1).max(),
        "evaluate": np.abs(result["evaluate"] / truth["evaluate"] - 1).max(),
        "weights": largest(set(weights) - set(key_biases)),
        "key biases": largest(key_biases),
        "logits": largest(["logits"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--setups", nargs="+", choices=SETUPS, default=list(SETUPS)[1:])
    parser.add_argument("--only-clipped", action="store_true", help="no training without clipping")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    clip_norms = CLIP_NORMS[arguments.only_clipped :]
    if arguments.worker:
        setup, folder = arguments.worker
        for clip_norm in clip_norms:
            result = train(setup, clip_norm)
            if result is not None:
                np.savez(pathlib.Path(folder, f"{clip_norm}.npz"), **result)
        return
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    print(f"{'largest difference from one device':46}" + "".join(f"{n:>11}" for n in TOLERANCES))
    wrong, truths = [], []
    for clip_norm in clip_norms:
        truth = train("one device", clip_norm)
        truths.append(truth)
        for setup in arguments.setups:
            in_workers = "worker" in setup
            result = (
                train_in_workers(setup, clip_norms)[clip_norm]
                if in_workers
                else train(setup, clip_norm)
            )
            found = differences(result, truth)
            label = setup + (f", clipped at {clip_norm}" if clip_norm else "")
            print(f"{label:46}" + "".join(f"{v:>11.1e}" for v in found.values()), flush=True)
            expected = TOLERANCES.keys() - NOT_EXPECTED.get(setup, ())
            wrong += [f"{label}: {n}" for n in expected if not found[n] <= TOLERANCES[n]]
    if truths[1:] and differences(*truths)["weights"] <= TOLERANCES["weights"]:
        wrong.append("clipping changes nothing")
    sys.exit(f"Out of tolerance: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
