"""BPE-dropout: against SentencePiece, against the paper's algorithm, and from epoch to epoch."""

import collections
import functools
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_agreement import train_sentencepiece

from keras_transformer import Tokenizer, make_dataset, number_names
from keras_transformer.data.bpe_dropout import BpeDropout
from keras_transformer.data.noise import Noise
from keras_transformer.data.pipeline import BatchStream
from tests.builders import learned_tokenizer

pytestmark = pytest.mark.tensorflow_only
LINES = ["low lower lowest", "new newer newest", "wide wider widest", "slow slower"] * 5
PAIRS = number_names("train", 200)


@pytest.fixture(scope="module")
def tokenizers():
    rules = "nfkc", "identity"
    return {rule: learned_tokenizer([*PAIRS, LINES], 400, normalization=rule) for rule in rules}


def normalized(tokenizer, texts):
    return [tokenizer.normalize(text) for text in texts]


@pytest.mark.parametrize("rule", ["nfkc", "identity"])
@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=40), min_size=1, max_size=8))
def test_without_dropout_it_is_the_tokenizer(tokenizers, rule, texts):
    tokenizer = tokenizers[rule]
    texts = [*texts, "seventy-two  lowest", " new\u2581wide er", "\u65e5\u672c 12"]
    split = BpeDropout(tokenizer, 0.0).split(normalized(tokenizer, texts), np.random.default_rng())
    assert split == tokenizer.encode(texts)


@pytest.mark.parametrize("rate", [0.1, 0.9, 1.0])
def test_every_split_is_one_of_the_same_text(tokenizers, rate):
    tokenizer = tokenizers["nfkc"]
    texts = [text for pair in PAIRS for text in pair]
    split = BpeDropout(tokenizer, rate).split(texts, np.random.default_rng(0))
    assert tokenizer.decode(split) == texts
    usual = tokenizer.encode(texts)
    assert sum(map(len, split)) > sum(map(len, usual))
    if rate == 1.0:  # the space before the first word is a character too
        assert list(map(len, split)) == [len(text) + 1 for text in texts]


def algorithm_1(word, merges, rate):
    """The probability of each split of a word, by the paper's algorithm in plain Python.

    `merges` are pairs in the order in which they were learned.
    """

    @functools.cache
    def splits_of(symbols):
        found = collections.Counter()
        pairs = list(itertools.pairwise(symbols))
        places = [place for place, pair in enumerate(pairs) if pair in merges]
        for kept in itertools.product((True, False), repeat=len(places)):
            probability = np.prod([1 - rate if keep else rate for keep in kept])
            left = [place for place, keep in zip(places, kept, strict=True) if keep]
            if not left:
                found[symbols] += probability
                continue
            place = min(left, key=lambda place: (merges.index(pairs[place]), place))
            joined = "".join(symbols[place : place + 2])
            merged = (*symbols[:place], joined, *symbols[place + 2 :])
            for split, share in splits_of(merged).items():
                found[split] += probability * share
        return found

    return splits_of(tuple(word))


def test_splits_have_the_probabilities_of_the_paper(tokenizers):
    tokenizer, word, rate, draws = tokenizers["nfkc"], "seventy", 0.3, 20_000
    pieces = tokenizer.vocabulary
    # A BPE vocabulary is in the order of learning; any two halves of a piece are its merge.
    merges = [
        (piece[:middle], piece[middle:])
        for piece in pieces[260:]
        for middle in range(1, len(piece))
        if piece[:middle] in pieces and piece[middle:] in pieces
    ]
    expected = algorithm_1("\u2581" + word, merges, rate)
    assert len(expected) > 10 and sum(expected.values()) == pytest.approx(1)
    split = BpeDropout(tokenizer, rate).split([word] * draws, np.random.default_rng(0))
    seen = collections.Counter(tuple(pieces[token_id] for token_id in each) for each in split)
    assert set(seen) <= set(expected)
    for tokens, probability in expected.items():
        deviation = (probability * (1 - probability) / draws) ** 0.5
        assert abs(seen[tokens] / draws - probability) < 5 * deviation + 1e-9, tokens


def batches_of(tokenizer, epoch, batch=0, **arguments):
    stream = BatchStream(PAIRS, tokenizer, batch_tokens=400, seed=3, **arguments)
    stream.seek(epoch, batch)
    left = stream.report.batches_per_epoch - batch
    return list(itertools.islice(stream.dataset().as_numpy_iterator(), left))


def test_noise_is_a_function_of_seed_epoch_and_pairs(tokenizers):
    tokenizer = tokenizers["nfkc"]
    noise = {"subword_regularization": 0.5, "word_dropout": 0.1}
    first, again, later = (batches_of(tokenizer, epoch, **noise) for epoch in (0, 0, 1))
    resumed = batches_of(tokenizer, 0, batch=2, **noise)
    for one, other in [*zip(first, again, strict=True), *zip(first[2:], resumed, strict=True)]:
        keras.tree.map_structure(np.testing.assert_array_equal, one, other)

    def labels(batches):
        return {tuple(row[row > 0]) for _, rows, _ in batches for row in rows}

    assert len(labels(first) & labels(later)) < len(labels(first)) / 2


def test_noise_keeps_texts_and_labels(tokenizers):
    tokenizer = tokenizers["nfkc"]
    targets = collections.Counter(target for _, target in PAIRS)
    found = collections.Counter()
    dropped, read = 0, 0
    noise = {"subword_regularization": 0.1, "word_dropout": 0.1}
    for inputs, labels, weights in batches_of(tokenizer, 5, **noise):
        found.update(tokenizer.decode(labels))
        assert (weights == (labels != tokenizer.pad_token_id)).all()
        decoder_ids = inputs["decoder_token_ids"]
        assert (decoder_ids[:, 0] == tokenizer.start_token_id).all()
        is_dropped = decoder_ids[:, 1:] == tokenizer.unk_token_id
        same = decoder_ids[:, 1:] == np.where(weights[:, 1:] > 0, labels[:, :-1], 0)
        assert (same | is_dropped).all()
        source = inputs["encoder_token_ids"]
        assert (source == tokenizer.end_token_id).any(axis=1).all()
        dropped += is_dropped.sum() + (source == tokenizer.unk_token_id).sum()
        read += weights[:, 1:].sum() + (source > tokenizer.end_token_id).sum()
    assert found == targets
    assert dropped / read == pytest.approx(0.1, abs=0.02)


def test_tag_of_the_tokenizer_stays_in_front():
    plain = learned_tokenizer([LINES], 300, tags=["<a>"])
    tagged = plain.with_tag("<a>")
    rows = [np.append(row, 2).astype(int) for row in tagged.encode(["", *LINES])]
    noise, rng = Noise([tagged] * 2, 0.5, 0.9), np.random.default_rng(0)
    split = noise.split(0, rows, rng, 256)
    assert split[0].tolist() == [2]
    assert {row[0] for row in split[1:]} == {tagged.vocabulary.index("<a>")}
    assert tagged.decode(split) == ["", *LINES]
    tags = np.array([row[:1] for row in split[1:]])
    noise.drop_words(0, tags, rng)
    assert {*tags[:, 0]} == {split[1][0]}


def test_split_that_would_be_too_long_is_the_usual_one(tokenizers):
    tokenizer = tokenizers["nfkc"]
    arguments = {"max_length": 12, "max_length_ratio": None}
    usual = BatchStream(PAIRS, tokenizer, batch_tokens=400, **arguments)
    split = BatchStream(PAIRS, tokenizer, batch_tokens=400, subword_regularization=1.0, **arguments)
    for rows, others in zip(usual.batches(0), split.batches(0), strict=True):
        np.testing.assert_array_equal(rows, others)
        _, labels, _ = split.arrays(others)
        assert labels.shape[1] <= 12
        for row, label in zip(rows, labels, strict=True):
            text = PAIRS[row][1]
            usual_ids = [*tokenizer.encode(text), tokenizer.end_token_id]
            if len(text) + 2 > 12:
                assert label[label > 0].tolist() == usual_ids


def test_tokenizers_without_bpe_are_refused():
    unigram = learned_tokenizer([LINES], 275, model_type="unigram")
    foreign = Tokenizer.from_sentencepiece(train_sentencepiece(LINES, 275, pad_id=3))
    for tokenizer in (unigram, foreign):
        with pytest.raises(ValueError, match="BPE-dropout needs a `Tokenizer`.*bpe"):
            make_dataset(PAIRS, tokenizer, batch_tokens=400, subword_regularization=0.1)
