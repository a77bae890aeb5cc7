"""Trains the models with equal data, parameters and settings, and scores their translations."""

import functools
import pathlib
import tempfile
import time
from typing import NamedTuple

import keras
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import evaluation
from keras_transformer.data import read_parallel
from keras_transformer.data.pipeline import DatasetReport
from layer_types.models import LAYER_TYPES, SCORES, make_model

SEEDS = 1, 2, 3
# Learning rates that each layer type is tried with on number names, with another seed.
RATES = 0.001, 0.002, 0.004
RATE_SEED = 0
NUMBERS = {"num_layers": 1, "hidden_dim": 64, "num_heads": 4, "dropout": 0.0}
NUMBER_EPOCHS = 8
# The same parameters, but keys of width 16 and of width 128.
SCORE_HEADS = 8, 1
SCORE_SIZES = {"num_layers": 1, "hidden_dim": 128, "intermediate_dim": 256, "dropout": 0.0}
SCORE_EPOCHS = 4
MULTI30K = {"num_layers": 2, "hidden_dim": 128, "num_heads": 4, "dropout": 0.1}
MULTI30K |= {"normalize_first": True}
MULTI30K_EPOCHS, MULTI30K_RATE = 4, 0.004


class Task(NamedTuple):
    """Batches, tokenizer, and pairs to translate."""

    dataset: tf.data.Dataset
    report: DatasetReport
    tokenizer: kt.Tokenizer
    pairs: list

    @classmethod
    def of(cls, train_pairs, pairs, vocabulary_size, batch_tokens):
        lines = (line for pair in train_pairs for line in pair)
        with tempfile.TemporaryDirectory() as scratch:
            path = pathlib.Path(scratch, "tokenizer.json")
            tokenizer = kt.Tokenizer.train_on_lines(lines, vocabulary_size, path)
        made = kt.make_dataset(train_pairs, tokenizer, batch_tokens=batch_tokens)
        return cls(*made, tokenizer, pairs)


@functools.cache
def numbers():
    pairs = kt.number_names("held_out", 1000)
    return Task.of(kt.number_names("train", 6000), pairs, 320, batch_tokens=2048)


@functools.cache
def multi30k(folder):
    train, val = (
        list(read_parallel(*(folder / f"{split}.lc.norm.tok.{side}.gz" for side in ("en", "de"))))
        for split in ("train", "val")
    )
    return Task.of(train, val, 4000, batch_tokens=2048)


def train(model, task, epochs, rate):
    """Trains a model; returns what it cost, and the loss of the last epoch."""
    updates = epochs * task.report.batches_per_epoch
    schedule = kt.WarmupSchedule.from_peak(model.config.hidden_dim, rate, updates // 6)
    optimizer = kt.paper_optimizer(model.config, learning_rate=schedule)
    model.compile(optimizer, kt.SmoothedCrossEntropy())
    began = time.process_time()
    history = model.fit(task.dataset, epochs=epochs, shuffle=False, verbose=0).history
    return {
        "parameters": model.count_params(),
        "updates": updates,
        "target_tokens": epochs * task.report.target_tokens,
        "rate": rate,
        "cpu_seconds": round(time.process_time() - began, 1),
        "loss": round(history["loss"][-1], 4),
    }


def translate(model, task):
    """Returns the greedy translations of the task's pairs, and the references."""
    sources, references = zip(*task.pairs, strict=True)
    translator = kt.Translator(model, task.tokenizer, beam_size=1)
    return translator(list(sources)), references


def train_on_numbers(make, epochs, rate, seed):
    """Returns the figures of one training on number names; `make(**fields)` returns a model."""
    task = numbers()
    keras.utils.set_random_seed(seed)
    model = make(vocabulary_size=task.tokenizer.vocabulary_size)
    result = train(model, task, epochs, rate)
    return result | {"exact_match": evaluation.exact_match(*translate(model, task))}


def train_on_multi30k(layer_type, folder, seed):
    """Returns the figures of one training on Multi30k."""
    task = multi30k(folder)
    keras.utils.set_random_seed(seed)
    model = make_model(layer_type, task.tokenizer.vocabulary_size, **MULTI30K)
    result = train(model, task, MULTI30K_EPOCHS, MULTI30K_RATE)
    score = evaluation.bleu(*translate(model, task), tokenized=True)
    return result | {"bleu": round(score.value, 2), "signature": score.signature}


def rate_works():
    """Returns the trainings that try learning rates."""
    return {
        f"{layer_type}, rate {rate}": functools.partial(
            train_on_numbers,
            functools.partial(make_model, layer_type, **NUMBERS),
            NUMBER_EPOCHS,
            rate,
            RATE_SEED,
        )
        for layer_type in LAYER_TYPES
        for rate in RATES
    }


def best_rate(rates, layer_type):
    """Returns the rate with the most exact matches; of equal ones, the one of the lowest loss."""
    tried = [rates[f"{layer_type}, rate {rate}"] for rate in RATES]
    return max(tried, key=lambda result: (result["exact_match"], -result["loss"]))["rate"]


def number_works(rates):
    """Returns the trainings on number names, by `"layer type, seed"`."""
    return {
        f"{layer_type}, seed {seed}": functools.partial(
            train_on_numbers,
            functools.partial(make_model, layer_type, **NUMBERS),
            NUMBER_EPOCHS,
            best_rate(rates, layer_type),
            seed,
        )
        for seed in SEEDS
        for layer_type in LAYER_TYPES
    }


def score_works(rates):
    """Returns the trainings of models with other scores, by `"score, heads, seed"`."""
    return {
        f"{score}, {heads} heads, seed {seed}": functools.partial(
            train_on_numbers,
            functools.partial(SCORES[score], num_heads=heads, **SCORE_SIZES),
            SCORE_EPOCHS,
            best_rate(rates, "self-attention"),
            seed,
        )
        for seed in SEEDS
        for heads in SCORE_HEADS
        for score in SCORES
    }


def multi30k_works(folder, seeds):
    return {
        f"{layer_type}, seed {seed}": functools.partial(train_on_multi30k, layer_type, folder, seed)
        for seed in seeds
        for layer_type in LAYER_TYPES
    }
