"""Times an update of `wmt_base` and `wmt_big`, and computes how long their trainings take.

    python benchmarks/paper_recipes.py

Each model trains on one micro-batch of its recipe, of random token ids: rows as long as the mean
sentence pair of WMT 2014, 94% of the slots real tokens, as batches of `train` have. The first
update compiles and is left out; the fastest of the others counts.
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from scored_runs import NUMBER, TEXT, table
from stamp import stamp

import keras_transformer as kt
from keras_transformer.runs import Recipe

UPDATES = {"wmt_base": 100_000, "wmt_big": 300_000}  # section 5.2 of the paper
LENGTH, REAL = 30, 0.94


def make_batch(slots, vocabulary_size):
    """Returns inputs, labels and weights of a batch with that many token slots on each side."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, vocabulary_size, (3, slots // LENGTH, LENGTH), dtype="int32")
    is_real = np.arange(LENGTH) < round(LENGTH * REAL)
    ids *= is_real
    inputs = {"encoder_token_ids": ids[0], "decoder_token_ids": ids[1]}
    return inputs, ids[2], np.broadcast_to(is_real, ids[2].shape).astype("float32")


def tokens_per_second(recipe, updates):
    """Returns the real target tokens per second of the fastest update."""
    training, vocabulary_size = recipe.training, recipe.vocabulary.size
    config = recipe.model_config(vocabulary_size)
    model = kt.Transformer(config)
    model.compile(
        kt.paper_optimizer(config, training.warmup_steps),
        kt.SmoothedCrossEntropy(training.label_smoothing),
        weighted_metrics=[kt.TokenAccuracy(), kt.Perplexity()],
    )
    inputs, labels, weights = make_batch(training.micro_batch_tokens, vocabulary_size)
    seconds = []
    for _ in range(1 + updates):
        start = time.perf_counter()
        model.train_on_batch(inputs, labels, weights)
        seconds.append(time.perf_counter() - start)
    return weights.sum() / min(seconds[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=2, help="updates to time of each model")
    arguments = parser.parse_args()
    columns = dict.fromkeys(("tokens/s", "seconds per update", "updates", "days"), NUMBER)
    rows = []
    for name, updates in UPDATES.items():
        recipe = Recipe.load(name)
        speed = tokens_per_second(recipe, arguments.updates)
        seconds = recipe.training.batch_tokens * REAL / speed
        days = seconds * updates / 86400
        rows.append((name, f"{speed:,.0f}", f"{seconds:.0f}", f"{updates:,}", f"{days:,.0f}"))
    print(*table({"recipe": TEXT, **columns}, rows), sep="\n")
    print(*stamp().values(), sep=", ")


if __name__ == "__main__":
    main()
