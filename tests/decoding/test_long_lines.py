"""Lines that are too long: no text is lost, and lines that are not translated whole are named."""

import inspect
import math

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Tokenizer, Translator, make_dataset
from keras_transformer.data.number_corpus import number_names
from keras_transformer.decoding.batches import (
    BATCH_SENTENCES,
    LONGEST_ROW,
    MOST_PAIRS,
    MOST_TOKENS,
    batch_rows,
    map_batches,
)
from keras_transformer.decoding.long_lines import LineCutter, join_translations
from tests.decoding.test_translator import make_translator

pytestmark = pytest.mark.tensorflow_only

MOST = 12  # tokens of the lines here, the end token included


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "numbers.model"
    made = make_translator(path, num_decoder_layers=1)
    settings = {"extra_length": 3, "beam_size": 1, "max_source_tokens": MOST}
    return Translator(made.model, made.source_tokenizer, **settings)


@pytest.fixture(scope="module")
def sentences(translator):
    """Lines of one sentence each; no two of them fit into one piece."""
    lines = [f"{english}." for english, _ in number_names("train", 300)]
    counts = np.array([len(row) for row in translator.source_tokenizer.encode(lines)])
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


@pytest.mark.parametrize("normalization", ["nfkc", "identity"])
@pytest.mark.parametrize("most", [1, 4, 30])
def test_pieces_end_where_the_rule_says(tmp_path, normalization, most):
    text = [*TEXTS[1:3], "spam and eggs and spam"] * 5
    options = {"normalization": normalization, "model_type": "bpe"}
    tokenizer = Tokenizer.train_on_lines(text, 330, tmp_path / "t.model", **options)
    token_ids = tokenizer.graph.tokenize(TEXTS)
    cutter = LineCutter(tokenizer)
    pieces = cutter.cut(token_ids, most, "split")
    cut = tf.function(lambda ids: cutter.cut(ids, most, "split"), autograph=False)
    in_graph = cut(token_ids)
    assert in_graph.token_ids.to_list() == pieces.token_ids.to_list()
    assert in_graph.lines.numpy().tolist() == pieces.lines.numpy().tolist()
    expected = []
    for line, tokens in enumerate(tokenizer.graph.tokens(token_ids).to_list()):
        tokens = [token.decode() for token in tokens]
        expected += [(line, piece) for piece in plain_cut(tokens, most)]
    found = [
        [t.decode() for t in piece] for piece in tokenizer.graph.tokens(pieces.token_ids).to_list()
    ]
    assert list(zip(pieces.lines.numpy(), found, strict=True)) == expected
    assert not np.any(pieces.dropped)


def test_no_lines_have_no_pieces(translator):
    empty = translator.source_tokenizer.graph.tokenize(tf.zeros([0], tf.string))
    pieces = LineCutter(translator.source_tokenizer).cut(empty, 5, "split")
    assert pieces.token_ids.nrows() == pieces.lines.shape[0] == 0


def test_joined_translations_have_one_space_between_them():
    joined = join_translations(tf.constant(["a", "", "b", "", "c"]), [0, 0, 0, 1, 3], 4)
    assert joined.numpy().tolist() == [b"a b", b"", b"", b"c"]


# === Translating ===


def test_long_line_is_the_translations_of_its_sentences(translator, sentences):
    lines = ["one", " ".join(sentences), "", " ".join(sentences[::-1])]
    assert len(sentences) == 5 and len(set(translator(sentences))) > 1
    parts = translator(sentences), translator(sentences[::-1])
    expected = [translator("one"), " ".join(filter(None, parts[0])), ""]
    expected += [" ".join(filter(None, parts[1]))]
    told = []
    with pytest.warns(UserWarning, match="line 2 in 5 pieces, line 4 in 5 pieces") as warned:
        assert translator(lines, batch_sentences=3, on_progress=told.append) == expected
    assert warned[0].filename == __file__
    assert sum(told) == len(lines) and len(told) == 4
    translated = translator.translate(tf.constant(lines)).numpy()
    assert [line.decode() for line in translated] == expected


def test_hypothesis_of_a_split_line_joins_its_pieces(translator, sentences):
    lines = ["one", " ".join(sentences)]
    hypotheses = translator(lines, beam_size=2, n_best=2)
    parts = [best for best, *_ in translator(sentences, beam_size=2, n_best=2)]
    assert [len(found) for found in hypotheses] == [2, 1]
    assert [found[0].pieces for found in hypotheses] == [1, 5]
    joined = hypotheses[1][0]
    assert joined.text == " ".join(part.text for part in parts if part.text)
    assert joined.source_tokens == [token for part in parts for token in part.source_tokens]
    assert joined.tokens == [token for part in parts for token in part.tokens]
    log_probs = [log_prob for part in parts for log_prob in part.log_probs]
    np.testing.assert_allclose(joined.log_probs, log_probs, rtol=1e-4)
    penalty = ((5 + len(log_probs)) / 6) ** 0.6
    np.testing.assert_allclose(joined.score, math.fsum(log_probs) / penalty, rtol=1e-4)
    penalty = {"length_penalty": "mean", "alpha": 1.0, "count_end_token": False}
    (joined,) = translator(lines[1], n_best=1, **penalty)
    counted = len(joined.tokens) - joined.tokens.count("</s>")
    np.testing.assert_allclose(joined.score, joined.log_prob / counted, rtol=1e-4)


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
    with pytest.warns(UserWarning, match=f"line 2 without its last {dropped} tokens"):
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
    strict = Translator(
        translator.model, translator.source_tokenizer, max_source_tokens=MOST, on_too_long="error"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"longer than {MOST} tokens"):
        strict.translate(tf.constant(lines))


def test_score_error_names_the_pair_that_does_not_fit_into_memory(translator):
    long = "a" * LONGEST_ROW
    for pair, name in (((long, "eins"), "sources"), (("one", long), "targets")):
        with pytest.raises(ValueError, match=f"at most 2,048 tokens.*line 2 of `{name}` has 2,0"):
            translator.score(["one", pair[0]], ["eins", pair[1]])
    longer = " ".join(english for english, _ in number_names("train", 30))
    scored = translator.score(longer, "eins")
    assert len(scored.source_tokens) > MOST, "a score is of the whole pair"


def test_default_bound_is_that_of_the_training_data(translator, tmp_path):
    made = Translator(translator.model, translator.source_tokenizer)
    default = inspect.signature(make_dataset).parameters["max_length"].default
    assert made.settings.max_source_tokens == default
    learned = make_translator(tmp_path / "t.model", positions="learned", max_sequence_length=70)
    assert learned.settings.max_source_tokens == 70


@pytest.mark.parametrize(
    "setting", [{"max_source_tokens": 1}, {"max_source_tokens": 9.5}, {"on_too_long": "cut"}]
)
def test_invalid_settings_of_long_lines_are_named(translator, setting):
    ((name, value),) = setting.items()
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        translator("one", **setting)


# === Memory ===


def long_and_short(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1, 5, 20, 256, 700, 3000], 150, p=[0.1, 0.3, 0.3, 0.2, 0.08, 0.02])
    return tf.RaggedTensor.from_row_lengths(rng.integers(4, 99, lengths.sum(), "int32"), lengths)


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_in_the_graph_are_bounded(seed):
    shapes, rows = [], long_and_short(seed)

    def first_ids(batch):
        shapes.append(batch.shape)
        return np.array([str(row[0]) for row in batch], dtype=object)

    @tf.function(autograph=False)
    def mapped(rows):
        def function(batch):
            texts = tf.numpy_function(first_ids, [batch], tf.string)
            return (tf.ensure_shape(texts, [None]),)

        return map_batches(function, [rows], [], 0, [tf.TensorSpec([None], tf.string)])[0]

    expected = [str(row[0]).encode() for row in rows.to_list()]
    assert mapped(rows).numpy().tolist() == expected
    assert sum(count for count, _ in shapes) == 150
    for count, longest in shapes:
        fits = count * longest <= MOST_TOKENS and count * longest**2 <= MOST_PAIRS
        assert count == 1 or (fits and count <= BATCH_SENTENCES)
    assert len(shapes) < 40, "few rows have to go alone"
    assert mapped(rows[:0]).shape == [0]


def test_batches_are_as_large_as_they_may_be():
    lengths = tf.constant([10, 4, 5, 4, 100], tf.int64)
    in_order = [1, 3, 2, 0, 4]
    for pairs, sizes in {
        1: [1, 1, 1, 1, 1],
        16: [1, 1, 1, 1, 1],
        32: [2, 1, 1, 1],
        75: [3, 1, 1],
        400: [4, 1],
        10**6: [4, 1],
    }.items():
        batches = batch_rows(lengths, 4, pairs)
        assert batches.flat_values.numpy().tolist() == in_order
        assert batches.row_lengths().numpy().tolist() == sizes
    assert batch_rows(lengths[:0], 4, 1).nrows() == 0
    same = tf.fill([300], tf.constant(MOST_TOKENS // 128, tf.int64))
    assert batch_rows(same, 256, MOST_PAIRS).row_lengths().numpy().tolist() == [128, 128, 44]
    assert batch_rows(0 * same, 256, MOST_PAIRS).row_lengths().numpy().tolist() == [256, 44]


def test_attention_of_long_lines_is_computed_for_few_at_a_time(translator, monkeypatch):
    """The scores of all blocks are in memory together; a search keeps none."""
    line = " ".join(english for english, _ in number_names("train", 40))
    settings = {"max_source_tokens": 1000, "length_ratio": 0.0, "extra_length": 1}
    searched, shapes, compute = [], [], translator._attention_scores

    def watch(source, target):
        shapes.append((*source.shape, target.shape[1]))
        return compute(source, target)

    monkeypatch.setattr(translator, "_attention_scores", watch)
    options = {"beam_size": 2, "n_best": 2, "on_progress": searched.append, **settings}
    found = translator([line] * 8, return_attention=True, **options)
    count = len(translator.source_tokenizer.encode(line)) + 1
    config = translator.model.config
    blocks = config.num_encoder_layers + 2 * config.num_decoder_layers
    assert sum(searched) == 8 and sum(size for size, _, _ in shapes) == sum(map(len, found)) == 16
    assert 1 < max(size for size, _, _ in shapes) < max(searched)
    for size, source, target in shapes:
        assert source == count >= target and size * count**2 * blocks <= MOST_PAIRS
