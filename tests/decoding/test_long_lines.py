"""Lines that are too long: no text is lost, and lines that are not translated whole are named."""

import inspect
import math

import keras
import numpy as np
import pytest

from keras_transformer import Tokenizer, TransformerConfig, Translator, make_dataset
from keras_transformer.data.number_corpus import number_names
from keras_transformer.decoding import keras_engine
from keras_transformer.decoding.batches import (
    BATCH_SENTENCES,
    LONGEST_ROW,
    MOST_PAIRS,
    MOST_TOKENS,
    batch_rows,
)
from keras_transformer.decoding.long_lines import LineCutter
from keras_transformer.decoding.model_search import run_on_pairs
from keras_transformer.decoding.text_settings import TextSettings
from tests.decoding.test_translator import make_translator

IS_TENSORFLOW = keras.config.backend() == "tensorflow"
if IS_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.export import graph_batches
    from keras_transformer.export.graph_lines import GraphLineReader

MOST = 12  # tokens of the lines here, the end token included


@pytest.fixture(scope="module")
def translator():
    made = make_translator(num_decoder_layers=1)
    settings = {"extra_length": 3, "beam_size": 1, "max_source_tokens": MOST}
    return Translator(made.model, made.source_tokenizer, **settings)


@pytest.fixture(scope="module")
def sentences(translator):
    """Lines of one sentence each; no two of them fit into one piece."""
    lines = [f"{english}." for english, _ in number_names("train", 300)]
    counts = map(len, translator.source_tokenizer.encode(lines))
    return [line for line, count in zip(lines, counts, strict=True) if MOST / 2 < count < MOST][:5]


# === Cutting ===


def plain_cut(tokens, most):
    """The rule in plain Python, on the tokens as strings."""

    def rank(place):
        before, after = tokens[place - 1].replace("<0x2E>", "."), tokens[place]
        end = before.rstrip("\"'”’»)]」』）")[-1:]
        if end in ("。", "！", "？") or (end in (".", "!", "?", "…") and after[0] == "▁"):
            return 3
        is_inside = after.startswith("<0x") and "80" <= after[3:5] <= "BF"
        return 2 if after[0] == "▁" else 0 if is_inside else 1

    starts = [0]
    while len(tokens) - starts[-1] > most:
        places = range(starts[-1] + 1, starts[-1] + most + 1)
        starts.append(max(places, key=lambda place: (rank(place), place)))
    return [tokens[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


TEXTS = [
    "",
    "Hello there. It works! Does it? Yes... (it does.) And so on, and on, and on; 3.14 is no end.",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
    "我爱你。我爱你们!他说:“好。”再见。 我爱你",
    "\U0001f600\U0001f601\U0001f602\U0001f603\U0001f604",
    "Donaudampfschifffahrtsgesellschaftskapitän" * 3,
    "a",
]


@pytest.mark.parametrize(
    "normalization, most", [("nfkc", 1), ("nfkc", 4), ("nfkc", 30), ("identity", 4)]
)
def test_pieces_end_where_the_rule_says(tmp_path, normalization, most):
    text = [*TEXTS[1:3], "spam and eggs and spam"] * 5
    options = {"normalization": normalization, "model_type": "bpe"}
    tokenizer = Tokenizer.train_on_lines(text, 330, tmp_path / "t.model", **options)
    token_ids, vocabulary = tokenizer.encode(TEXTS), tokenizer.vocabulary
    cutter = LineCutter(tokenizer)
    for row in token_ids:
        pieces, dropped = cutter.cut(row, most, "split")
        found = [[vocabulary[i] for i in piece] for piece in pieces]
        assert found == plain_cut([vocabulary[i] for i in row], most) and dropped == 0
    if IS_TENSORFLOW:
        assert_truncated_in_graph_too(tokenizer, TEXTS, most)


def assert_truncated_in_graph_too(tokenizer, texts, most):
    """The graph of a SavedModel cuts lines as `LineCutter` does with "truncate"."""
    cutter, rows = LineCutter(tokenizer), tokenizer.encode(texts)
    expected = [cutter.cut(row, most, "truncate") for row in rows]
    settings = TextSettings(max_source_tokens=most + 1)
    config = TransformerConfig.tiny(tokenizer.vocabulary_size)
    reader = GraphLineReader((tokenizer, tokenizer), config, settings)
    read = tf.function(reader.read, autograph=False)
    token_ids, is_cut = read(tf.constant(texts), tf.constant([""]))
    end = config.end_token_id
    assert token_ids.to_list() == [[*map(int, row), end] for (row,), _ in expected]
    assert is_cut.numpy().tolist() == [dropped > 0 for _, dropped in expected]


# === Translating ===


def test_long_line_is_the_translations_of_its_sentences(translator, sentences):
    lines = ["one", " ".join(sentences), "", " ".join(sentences[::-1])]
    assert len(sentences) == 5 and len(set(translator(sentences))) > 1
    parts = translator(sentences), translator(sentences[::-1])
    expected = [translator("one"), " ".join(filter(None, parts[0])), ""]
    expected += [" ".join(filter(None, parts[1]))]
    told = []
    report = r"is \d+. (Line [24] is too long for one piece: translated in 5 pieces. ?){2}$"
    with pytest.warns(UserWarning, match=report) as warned:
        assert translator(lines, batch_sentences=3, on_progress=told.append) == expected
    # One of lines that are too long, one of unfinished translations.
    assert [each.filename for each in warned if each.category is UserWarning] == [__file__] * 2
    assert sum(told) == len(lines) and len(told) == 4


def test_hypothesis_of_a_split_line_joins_its_pieces(translator, sentences):
    lines = ["one", " ".join(sentences)]
    hypotheses = translator(lines, beam_size=2, n_best=2)
    parts = [best for best, *_ in translator(sentences, beam_size=2, n_best=2)]
    assert [[one.pieces for one in found] for found in hypotheses] == [[1, 1], [5, 5]]
    second = [ranks[1] for ranks in translator(sentences, beam_size=2, n_best=2)]
    assert hypotheses[1][1].text == " ".join(part.text for part in second if part.text)
    joined = hypotheses[1][0]
    assert joined.text == " ".join(part.text for part in parts if part.text)
    assert joined.source_tokens == [token for part in parts for token in part.source_tokens]
    assert joined.tokens == [token for part in parts for token in part.tokens]
    log_probs = [log_prob for part in parts for log_prob in part.log_probs]
    np.testing.assert_allclose(joined.log_probs, log_probs, rtol=1e-4)
    penalty = ((5 + len(log_probs)) / 6) ** 0.6
    np.testing.assert_allclose(joined.score, math.fsum(log_probs) / penalty, rtol=1e-4)
    penalty = {"length_penalty": "mean", "alpha": 1.0}
    (joined,) = translator(lines[1], n_best=1, **penalty)
    np.testing.assert_allclose(joined.score, joined.log_prob / len(joined.tokens), rtol=1e-4)


def test_prefix_is_forced_on_the_first_piece_only(translator, sentences):
    line, prefixes = " ".join(sentences), ["drei", "acht"]
    parts = translator(sentences)
    first = translator(sentences[0], target_prefix="drei")
    with pytest.warns(UserWarning, match="pieces"):
        translations = translator([line, "one"], target_prefix=prefixes)
    assert translations[0] == " ".join(filter(None, [first, *parts[1:]])) != " ".join(parts)
    assert translations[1] == translator("one", target_prefix="acht")


def test_truncated_line_is_its_first_words(translator):
    words = " ".join(english for english, _ in number_names("train", 30)).split()
    tokenizer = translator.source_tokenizer
    count = max(n for n in range(len(words)) if len(tokenizer.encode(" ".join(words[:n]))) < MOST)
    kept, line = " ".join(words[:count]), " ".join(words)
    dropped = len(tokenizer.encode(line)) - len(tokenizer.encode(kept))
    with pytest.warns(UserWarning, match=f"Line 2 is too long: its last {dropped} tokens"):
        translations = translator(["one", line], on_too_long="truncate")
    assert translations == translator(["one", kept])
    (best,) = translator(line, n_best=1, on_too_long="truncate", return_attention=True)
    assert (best.dropped_tokens, best.pieces) == (dropped, 1)
    assert best.attention.encoder.shape[-1] == len(best.source_tokens) <= MOST
    assert translator("one", n_best=1)[0].dropped_tokens == 0


def test_error_names_the_line_that_must_be_whole(translator, sentences):
    lines = ["one", " ".join(sentences), "two"]
    count = len(translator.source_tokenizer.encode(lines[1])) + 1
    received = f"at most {MOST} tokens.*line 2 of `lines` has {count} tokens"
    with pytest.raises(ValueError, match=received):
        translator(lines, on_too_long="error")
    with pytest.raises(ValueError, match=f"attention.*truncate|{received}"):
        translator(lines, return_attention=True)


def test_score_error_names_the_pair_that_does_not_fit_into_memory(translator):
    long = "a" * LONGEST_ROW
    for pair, name in (((long, "eins"), "sources"), (("one", long), "targets")):
        with pytest.raises(ValueError, match=f"at most 2,048 tokens.*line 2 of `{name}` has 2,0"):
            translator.score(["one", pair[0]], ["eins", pair[1]])
    (longest, *_), _ = translator.pairs([long], ["eins"], max_source_tokens=LONGEST_ROW + 9)
    assert len(longest) > LONGEST_ROW, "the bound that the error advises"
    with pytest.raises(ValueError, match="line 1 of `target_prefix` has 2,0.*Shorten it$"):
        translator("one", target_prefix=long)
    longer = " ".join(english for english, _ in number_names("train", 30))
    scored = translator.score(longer, "eins")
    assert len(scored.source_tokens) > MOST, "a score is of the whole pair"


def test_default_bound_is_that_of_the_training_data(translator):
    made = Translator(translator.model, translator.source_tokenizer)
    default = inspect.signature(make_dataset).parameters["max_length"].default
    assert made.text_settings.max_source_tokens == default
    learned = make_translator(positions="learned", max_sequence_length=70)
    assert learned.text_settings.max_source_tokens == 70


# === Memory ===


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_are_bounded_and_few(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1, 5, 20, 256, 700, 3000], 150, p=[0.1, 0.3, 0.3, 0.2, 0.08, 0.02])
    batches = batch_rows(lengths)
    assert np.sort(np.concatenate(batches)).tolist() == [*range(150)]
    for rows in batches:
        count, longest = len(rows), lengths[rows].max()
        fits = count * longest <= MOST_TOKENS and count * longest**2 <= MOST_PAIRS
        assert count == 1 or (fits and count <= BATCH_SENTENCES)
    assert len(batches) < 40, "few rows have to go alone"
    if IS_TENSORFLOW:
        in_graph = tf.function(graph_batches.batch_rows, autograph=False)(tf.constant(lengths))
        assert in_graph.to_list() == [rows.tolist() for rows in batches]


@pytest.mark.backends("tensorflow")
def test_batches_in_the_graph_return_each_row_in_its_place():
    rows = tf.ragged.constant([[n] * (1 + n * 37 % 150) for n in range(1, 90)], tf.int32)

    @tf.function(autograph=False)
    def first_ids(rows):
        specs = {"first": tf.TensorSpec([None], tf.int32)}
        first = lambda ids: {"first": ids[:, 0]}  # noqa: E731
        return graph_batches.map_batches(first, [rows], [], 0, specs)["first"]

    assert first_ids(rows).numpy().tolist() == [*range(1, 90)]
    assert first_ids(rows[:0]).shape == [0]


def test_batches_are_as_large_as_they_may_be():
    lengths = [10, 4, 5, 4, 100]
    for pairs, sizes in {
        16: [1, 1, 1, 1, 1],
        32: [2, 1, 1, 1],
        75: [3, 1, 1],
        400: [4, 1],
        10**6: [4, 1],
    }.items():
        batches = batch_rows(lengths, 4, pairs)
        assert np.concatenate(batches).tolist() == [1, 3, 2, 0, 4]
        assert [*map(len, batches)] == sizes
    assert batch_rows([], 4, 1) == []
    assert [*map(len, batch_rows([MOST_TOKENS // 128] * 300))] == [128, 128, 44]
    assert [*map(len, batch_rows([0] * 300))] == [256, 44]


def test_attention_of_long_lines_is_computed_for_few_at_a_time(translator, monkeypatch):
    """The scores of all blocks are in memory together; a search keeps none."""
    line = " ".join(english for english, _ in number_names("train", 40))
    settings = {"max_source_tokens": 1000, "length_ratio": 0.0, "extra_length": 1}
    searched, shapes = [], []

    def watch(function, model, source, target, language_ids):
        shapes.append((*source.shape, target.shape[1]))
        return run_on_pairs(function, model, source, target, language_ids)

    monkeypatch.setattr(keras_engine, "run_on_pairs", watch)
    options = {"beam_size": 2, "n_best": 2, "on_progress": searched.append, **settings}
    found = translator([line] * 8, return_attention=True, **options)
    count = len(translator.source_tokenizer.encode(line)) + 1
    config = translator.model.config
    blocks = config.num_encoder_layers + 2 * config.num_decoder_layers
    assert sum(searched) == 8 and sum(size for size, _, _ in shapes) == sum(map(len, found)) == 16
    assert 1 < max(size for size, _, _ in shapes) < max(searched)
    for size, source, target in shapes:
        assert source == count >= target and size * count**2 * blocks <= MOST_PAIRS
