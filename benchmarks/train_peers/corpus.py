"""Multi30k as batches: the recipe's files, one joint vocabulary, batches of `make_dataset`."""

import functools
import os
import pathlib

import numpy as np

import keras_transformer as kt
from keras_transformer.data import read_parallel
from keras_transformer.data.pipeline import BatchStream
from train_peers import PAD_TOKEN_ID

FILES = "train.lc.norm.tok.en.gz", "train.lc.norm.tok.de.gz"


@functools.cache
def read_pairs(folder):
    """Returns the sentence pairs of a folder with the files of the recipe `multi30k_en_de`."""
    return list(read_parallel(*(os.path.join(folder, name) for name in FILES)))


def make_tokenizer(folder, vocabulary_size, path):
    """Trains a SentencePiece vocabulary on both languages; writes it to `path`."""
    lines = (line for pair in read_pairs(folder) for line in pair)
    return kt.Tokenizer.train_on_lines(lines, vocabulary_size, path)


def sample_batches(folder, tokenizer, batch_tokens, number):
    """Returns a fixed random sample of the first epoch's batches; see `save_batches`."""
    stream = BatchStream(read_pairs(folder), tokenizer, batch_tokens=batch_tokens)
    batches = stream.batches(0)
    chosen = np.random.default_rng(0).permutation(len(batches))[:number]
    return [_arrays(stream, batches[index]) for index in chosen]


def _arrays(stream, rows):
    inputs, labels, sample_weight = stream.arrays(rows)
    if not np.array_equal(sample_weight, labels != PAD_TOKEN_ID):
        raise ValueError("Exactly the padding must have the padding's label.")
    sides = inputs["encoder_token_ids"], inputs["decoder_token_ids"], labels
    return tuple(np.asarray(side, "int32") for side in sides)


def full_dataset(folder, vocabulary, batch_tokens):
    """Returns the whole corpus as `make_dataset` makes it, and its report."""
    tokenizer = kt.Tokenizer.load(pathlib.Path(vocabulary))
    return kt.make_dataset(read_pairs(folder), tokenizer, batch_tokens=batch_tokens)
