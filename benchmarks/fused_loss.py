"""Times train steps with and without the logits, on the backend of `KERAS_BACKEND`.

    KERAS_BACKEND=jax python benchmarks/fused_loss.py

The tiny model with a vocabulary of 8,000 makes updates with one batch of 4,096 target positions,
90% of them real tokens, once by the chunked loss and once by the logits, in turns. Printed: real
target tokens per second of the fastest update, and the ratio of the medians.
"""

import argparse
import statistics
import time

import keras
import numpy as np

import keras_transformer as kt

VOCABULARY_SIZE = 8000
ROWS, LENGTH, LEAST = 256, 16, 12


def make_batch(rows=ROWS, length=LENGTH, least=LEAST, vocabulary_size=VOCABULARY_SIZE):
    """Returns inputs, labels and weights of random rows of `least` to `length` tokens."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(least, length + 1, rows)
    is_real = (np.arange(length) < lengths[:, None]).astype("int32")
    ids = rng.integers(4, vocabulary_size, (3, rows, length), dtype="int32") * is_real
    inputs = {"encoder_token_ids": ids[0], "decoder_token_ids": ids[1]}
    return inputs, ids[2], is_real.astype("float32")


def make_model(fused_loss, metrics):
    config = kt.TransformerConfig.tiny(VOCABULARY_SIZE)
    model = kt.Transformer(config)
    model.fused_loss = fused_loss
    optimizer = kt.paper_optimizer(config, warmup_steps=200)
    model.compile(optimizer, kt.SmoothedCrossEntropy(), weighted_metrics=metrics)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--metrics", action="store_true", help="with accuracy and perplexity")
    arguments = parser.parse_args()
    inputs, labels, weights = make_batch()
    models = {}
    for fused_loss in (True, False):
        metrics = [kt.TokenAccuracy(), kt.Perplexity()] if arguments.metrics else []
        models[fused_loss] = make_model(fused_loss, metrics)
        models[fused_loss].train_on_batch(inputs, labels, weights)  # compiles
    seconds = {True: [], False: []}
    for _ in range(arguments.updates):
        for fused_loss, model in models.items():
            start = time.perf_counter()
            model.train_on_batch(inputs, labels, weights)
            seconds[fused_loss].append(time.perf_counter() - start)
    chunks, logits = (weights.sum() / min(seconds[each]) for each in (True, False))
    ratio = statistics.median(seconds[False]) / statistics.median(seconds[True])
    print(
        f"{keras.backend.backend()}: {chunks:,.0f} tokens/s in chunks, {logits:,.0f} by the "
        f"logits: {ratio:.2f} times"
    )


if __name__ == "__main__":
    main()
