"""Shapes of batches: padding for several numbers of them; on JAX, compilations and tokens a second.

    python benchmarks/shapes.py --data MULTI30K
    KERAS_BACKEND=jax python benchmarks/shapes.py --data MULTI30K --train 3 --pairs 4000

The recipe is `multi30k_en_de`. `--train` trains that many epochs with each number of shapes, in a
process of its own without a cache of compiled programs.
"""

import argparse
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import keras

from keras_transformer.data.pipeline import BatchStream
from keras_transformer.runs import build
from keras_transformer.runs.devices import run_devices
from keras_transformer.runs.recipe import Recipe

NUMBERS = 4, 8, 12, 16, 32, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of Multi30k")
    parser.add_argument("--pairs", type=int, help="only so many pairs, evenly from the corpus")
    parser.add_argument("--train", type=int, default=0, help="epochs with each of --shapes")
    parser.add_argument("--shapes", nargs="*", default=["8", "None"])
    parser.add_argument("--vocabulary", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    recipe = Recipe.load("multi30k_en_de")
    pairs = list(recipe.data.pairs("train", options.data))
    count = min(options.pairs or len(pairs), len(pairs))
    pairs = [pairs[number * len(pairs) // count] for number in range(count)]
    if options.vocabulary is not None:
        train(recipe, pairs, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / "joint.json"]
        build.make_tokenizers(recipe, options.data, files)
        print(f"{len(pairs):,} pairs, batches of {recipe.training.batch_tokens:,} slots")
        for number in NUMBERS:
            report = stream_of(recipe, pairs, files[0], number).report
            print(
                f"shapes={number}: {report.efficiency:.2%} of the slots are real tokens, "
                f"{report.batches_per_epoch} batches"
            )
        for number in options.shapes if options.train else ():
            command = [sys.executable, *sys.argv, "--vocabulary", files[0], "--shapes", number]
            hidden = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
            subprocess.run([str(part) for part in command], env=os.environ | hidden, check=True)


def stream_of(recipe, pairs, vocabulary, number):
    tokenizers = build.load_tokenizers([vocabulary])
    training = recipe.training
    noise = {"word_dropout": training.word_dropout}
    sizes = {"batch_tokens": training.batch_tokens, "seed": training.seed, "shapes": number}
    return BatchStream(pairs, *tokenizers, **sizes, **noise)


def train(recipe, pairs, options):
    """Trains with one number of shapes, and prints a line for each epoch."""
    (name,) = options.shapes
    number = None if name == "None" else int(name)
    stream = stream_of(recipe, pairs, options.vocabulary, number)
    tokenizers = build.load_tokenizers([options.vocabulary])
    strategy = run_devices(recipe.training)
    model = build.build_model(recipe, tokenizers, strategy, batches_per_epoch=250)
    compiled = Compilations()
    used = set()
    for epoch in range(options.train):
        stream.seek(epoch)
        used |= {stream.shape(rows) for rows in stream.batches(epoch)}
        started = time.perf_counter()
        model.fit(stream.dataset(), verbose=0, shuffle=False)
        seconds = time.perf_counter() - started
        print(
            f"shapes={number}, epoch {epoch + 1}: {stream.report.target_tokens / seconds:,.0f} "
            f"target tokens/s, {seconds:.1f} s; so far {len(used)} shapes, "
            f"{compiled.number} compilations of the step",
            flush=True,
        )


class Compilations(logging.Handler):
    """Counts how often JAX compiles the train step."""

    def __init__(self):
        super().__init__()
        self.number = 0
        if keras.config.backend() == "jax":
            import jax

            jax.config.update("jax_log_compiles", True)
            logger = logging.getLogger("jax")
            logger.addHandler(self)
            logger.propagate = False

    def emit(self, record):
        text = record.getMessage()
        self.number += text.startswith("Finished XLA compilation of") and "train_step" in text


if __name__ == "__main__":
    main()
