"""What an update of a Transformer is on JAX: kernels, arrays, and what Python adds to it.

    python benchmarks/jax_step.py
    python benchmarks/jax_step.py --size base --rows 64

A kernel is what the program that XLA compiled starts: a fusion, a matrix product, a copy, a loop.
An array is one that it is given, besides the batch. Python's share: 1 - the time of the program
alone / the time of an update of `fit`, the median of some rounds in turns. Fewer rows show more of
it.
"""

import argparse
import collections
import os
import re
import statistics
import time

os.environ["KERAS_BACKEND"] = "jax"

import jax
import numpy as np

import keras_transformer as kt

VOCABULARY_SIZE, LENGTH, ROUNDS = 8_000, 24, 5
KINDS = "fusion", "dot", "copy", "custom-call", "while"
STATE = [
    "trainable_variables",
    "non_trainable_variables",
    "optimizer_variables",
    "metrics_variables",
    "purge_model_variables",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=("tiny", "base", "big"), default="tiny")
    parser.add_argument("--rows", type=int, default=2, help=f"sentences of {LENGTH} tokens")
    parser.add_argument("--updates", type=int, default=50, help="updates of a round")
    arguments = parser.parse_args()
    model, batch = prepare(arguments.size, arguments.rows)
    state = copied_state(model)
    print(f"{arguments.size}: {len(jax.tree.leaves(state))} arrays")
    began = time.perf_counter()
    traced = jax.jit(model.train_step, donate_argnums=0).lower(state, batch)
    seconds = time.perf_counter() - began
    program = traced.compile()
    both = time.perf_counter() - began
    print(f"{seconds:.1f} s to trace it, {both - seconds:.1f} s to compile it")
    print(", ".join(f"{number} x {kind}" for kind, number in kernels(program).most_common()))
    print_python_share(model, batch, program, arguments.updates)


def prepare(size, rows):
    """Returns a compiled model whose optimizer is built, and a batch."""
    config = getattr(kt.TransformerConfig, size)(VOCABULARY_SIZE)
    model = kt.Transformer(config)
    model.compile(kt.paper_optimizer(config), loss=kt.SmoothedCrossEntropy(label_smoothing=0.1))
    ids = np.random.default_rng(0).integers(4, VOCABULARY_SIZE, (rows, LENGTH), "int32")
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    batch = inputs, ids, np.ones(ids.shape, "float32")
    model._symbolic_build(data_batch=batch)
    model.optimizer.build(model.trainable_variables)
    return model, jax.device_put(batch)


def copied_state(model):
    """Returns what `fit` passes to its first update, copied: a program overwrites it."""
    state = model._get_jax_state(**dict.fromkeys(STATE, True))
    copied = jax.block_until_ready(jax.tree.map(jax.numpy.copy, state))
    model.jax_state_sync()
    return copied


def kernels(program):
    """Counts what the program starts, by kind; loops count once."""
    entry = program.as_text().split("\nENTRY ")[1].split("\n}")[0]
    found = re.findall(r"^ .*? = .*? ([a-z-]+)\(", entry, re.MULTILINE)
    return collections.Counter(kind for kind in found if kind in KINDS)


def print_python_share(model, batch, program, updates):
    """Times updates of `fit`, and those of the program alone."""

    def batches():
        while True:
            yield batch

    def fit():
        model.fit(batches(), steps_per_epoch=updates, epochs=1, verbose=0)

    def alone():
        state = copied_state(model)
        began = time.perf_counter()
        for _ in range(updates):
            _, state = program(state, batch)
        jax.block_until_ready(state)
        return time.perf_counter() - began

    fit()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        fit()
        times.append((time.perf_counter() - began, alone()))
    of_fit, of_program = (
        1e3 * statistics.median(column) / updates for column in zip(*times, strict=True)
    )
    share = statistics.median(1 - program / fit for fit, program in times)
    print(f"an update of `fit`: {of_fit:.1f} ms, of the program: {of_program:.1f} ms")
    print(f"Python's share: {share:.0%}")


if __name__ == "__main__":
    main()
