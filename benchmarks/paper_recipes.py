"""Times an update of `wmt_base` and `wmt_big`, and computes how long their trainings take.

    python benchmarks/paper_recipes.py

Each model trains on one micro-batch of its recipe, of random token ids: rows of 30 slots, 28 of
them real tokens in the mean. The first update compiles and is left out; the fastest of the others
counts.
"""

import argparse
import os
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from fused_loss import make_batch
from scored_runs import NUMBER, TEXT, table
from stamp import stamp
from train_peers.ours import compiled

import keras_transformer as kt
from keras_transformer.runs import Recipe

UPDATES = {"wmt_base": 100_000, "wmt_big": 300_000}  # section 5.2 of the paper
LENGTH, LEAST = 30, 26
REAL = 0.94  # part of the slots that holds tokens, in batches of `train`


def tokens_per_second(recipe, updates):
    """Returns the real target tokens per second of the fastest update."""
    training, vocabulary_size = recipe.training, recipe.vocabulary.size
    config = recipe.model_config(vocabulary_size)
    metrics = [kt.TokenAccuracy(), kt.Perplexity()]
    model = compiled(kt.Transformer(config), weighted_metrics=metrics)
    rows = training.micro_batch_tokens // LENGTH
    inputs, labels, weights = make_batch(rows, LENGTH, LEAST, vocabulary_size)
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
