"""Runs `keras-transformer` with a train step that records the sentences it receives.

    python -m tests.runs.recording_worker FILE train RECIPE ...

Writes to FILE.<worker> one JSON line per update: a list of [source ids, target ids].
"""

import json
import os
import sys

import tensorflow as tf

from keras_transformer import Transformer
from keras_transformer.cli import app

train_step = Transformer.train_step


def recorded_step(model, data):
    inputs, labels, weights = data
    tf.numpy_function(record, [inputs["encoder_token_ids"], labels, weights], [])
    return train_step(model, data)


def record(sources, targets, weights):
    rows = zip(sources.tolist(), targets.tolist(), weights.tolist(), strict=True)
    seen = [[real(source), real(target)] for source, target, weight in rows if any(weight)]
    with open(path, "a") as file:
        file.write(json.dumps(seen) + "\n")


def real(token_ids):
    return [token_id for token_id in token_ids if token_id]


if __name__ == "__main__":
    worker = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    path = f"{sys.argv.pop(1)}.{worker}"
    Transformer.train_step = recorded_step
    app()
