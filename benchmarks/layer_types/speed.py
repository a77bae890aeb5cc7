"""CPU time of updates and translations of the models by length.

On one thread, that is the time on an idle machine, and other programs hardly change it.
"""

import functools
import time

import keras
import numpy as np
from decode_peers.ours import Ours

import keras_transformer as kt
from layer_types.models import LAYER_TYPES, make_model

LENGTHS = 10, 20, 50, 100, 200
# Tokens of an update, on each side: short sentences come in large batches.
TOKENS = 2000
BATCHES = 1, 32
SIZES = {"vocabulary_size": 1000, "hidden_dim": 128, "num_layers": 2, "num_heads": 4}
ROUNDS, MIN_SECONDS = 5, 0.2


def new_model(layer_type):
    keras.utils.set_random_seed(1)
    return make_model(layer_type, dropout=0.0, **SIZES)


def update_work(layer_type, length):
    """Returns a function that makes an update with sentences of a length."""
    model = new_model(layer_type)
    model.compile(keras.optimizers.Adam(1e-4), kt.SmoothedCrossEntropy(ignore_class=0))
    ids = random_ids(3 * (TOKENS // length), length).reshape(3, -1, length)
    inputs = {"encoder_token_ids": ids[0], "decoder_token_ids": ids[1]}
    return functools.partial(model.train_on_batch, inputs, ids[2])


def translation_work(layer_type, length, batch):
    """Returns a function that translates sentences of a length into as many tokens, greedily."""
    decoder = Ours(new_model(layer_type), compiled=False)
    sentences = random_ids(batch, length).tolist()
    return functools.partial(decoder.decode, sentences, beam_size=1, length=length)


def random_ids(rows, length):
    ids = np.random.default_rng(0).integers(4, SIZES["vocabulary_size"], (rows, length))
    return ids.astype("int32")


def timed(make_work, *arguments):
    """Returns milliseconds of CPU time by layer type: the least of several rounds, in turns."""
    works = {layer_type: make_work(layer_type, *arguments) for layer_type in LAYER_TYPES}
    repeats = {}
    for name, work in works.items():
        work()  # traces
        repeats[name] = int(MIN_SECONDS / cpu_seconds(work)) + 1
    rounds = [
        {name: cpu_seconds(work, repeats[name]) for name, work in works.items()}
        for _ in range(ROUNDS)
    ]
    return {name: round(1e3 * min(each[name] for each in rounds), 2) for name in works}


def cpu_seconds(work, repeats=1):
    began = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - began) / repeats


def speed_works():
    """Returns the measurements by key."""
    works = {f"update, {n}": functools.partial(timed, update_work, n) for n in LENGTHS}
    for batch in BATCHES:
        for n in LENGTHS:
            key = f"translation of {batch}, {n}"
            works[key] = functools.partial(timed, translation_work, n, batch)
    return works
