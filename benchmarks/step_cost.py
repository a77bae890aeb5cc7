"""Times the exact train step against Keras's own step, on one device.

    python benchmarks/step_cost.py

Both steps train the same model on the same batch with the same loss and optimizer, in turns. The
figure is the median of the ratios of neighbouring measurements, so that other load on the machine
cancels out.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import keras_transformer as kt

# size -> sentences, tokens of each, updates per measurement
SIZES = {"tiny": (64, 32, 4), "base": (32, 32, 1)}


class KerasTransformer(kt.Transformer):
    """The same model with Keras's own train step."""

    train_step = keras.Model.train_step


def stepper(model_class, size, vocabulary_size, dtype):
    """Returns a function that times some updates on one batch, in seconds."""
    sentences, tokens, updates = SIZES[size]
    rng = np.random.default_rng(0)
    ids = rng.integers(4, vocabulary_size, (3, sentences, tokens)).astype("int32")
    inputs = {"encoder_token_ids": ids[0], "decoder_token_ids": ids[1]}
    batch = inputs, ids[2], np.ones((sentences, tokens), "float32")
    config = getattr(kt.TransformerConfig, size)(vocabulary_size)
    model = model_class(config, dtype=dtype)
    model.compile(kt.paper_optimizer(config), loss=kt.SmoothedCrossEntropy(), jit_compile=False)
    model.make_train_function()
    dataset = iter(tf.data.Dataset.from_tensors(batch).repeat())

    def measure():
        began = time.perf_counter()
        for _ in range(updates):
            float(model.train_function(dataset)["loss"])
        return time.perf_counter() - began

    measure()  # traces
    return measure


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    for size in arguments.sizes:
        exact, plain = (
            stepper(model_class, size, arguments.vocabulary_size, arguments.dtype)
            for model_class in (kt.Transformer, KerasTransformer)
        )
        ratios, seconds = [], []
        for number in range(arguments.pairs):
            # Alternate the order: the second measurement profits from warm caches.
            order = (exact, plain) if number % 2 else (plain, exact)
            times = {step: step() for step in order}
            ratios.append(times[exact] / times[plain])
            seconds.append(times[exact] / SIZES[size][2])
        print(
            f"{size}, {arguments.dtype}: exact step / Keras's step = "
            f"{statistics.median(ratios):.3f} (median of {len(ratios)} pairs, "
            f"{min(ratios):.3f} to {max(ratios):.3f}); {statistics.median(seconds):.3f} s each",
            flush=True,
        )


if __name__ == "__main__":
    main()
