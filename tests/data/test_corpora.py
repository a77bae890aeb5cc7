"""What a split is: several corpora, cleaned and counted, with a fingerprint."""

import collections
import json
import pickle
import random

import numpy as np
import pytest

from keras_transformer.data import cleaning, token_store
from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.corpus import read_parallel
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.data.tokenizer import Tokenizer
from keras_transformer.decoding.long_lines import LineCutter
from tests.builders import tokenizer_fixture

PAIRS = [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("two", "zwei"), ("two", "drei")]


REASONS = {
    "duplicates": "duplicate",
    "identical": "identical sides",
    "max_word_length": "long word",
    "max_character_ratio": "character ratio",
    "max_other_script": "other script",
}
LATIN = [("Eins und zwei", "one and two")] * 50
GREEK = [("\u0391\u03b2\u03b3", "abc")] * 50
KATAKANA = "\u30e6\u30fc\u30b6\u30fc", "\u30b3\u30fc\u30d2\u30fc"
JAPANESE = [("\u6f22\u5b57\u304b\u306a", "abc")] * 150  # `KATAKANA` is less than 5% of it
KANA = [("\u3042\u30a2", "abc")] * 50
CHEROKEE = [("\u13a0\u13a1", "abc")] * 50
MIXED = ("\u00e9\u00df 12!? \u0434", "naive")  # a third of the letters is Cyrillic


@pytest.mark.parametrize(
    ("rule", "limit", "kept", "left_out"),
    [
        ("duplicates", True, PAIRS[:3] + PAIRS[4:], [PAIRS[3]]),
        ("duplicates", True, [("a", "b c"), ("a b", "c"), ("a", "b C")], []),
        ("identical", True, [("a", "A"), ("", "")], [("a", "a ")]),
        ("max_word_length", 3, [("abc de", "f")], [("a", "b abcd")]),
        ("max_word_length", 3, [("\u4e00\u4e8c\u4e09\u56db\u3002", "one")], []),
        ("max_word_length", 3, [], [("\u4e00\u4e8c abcd", "a")]),
        ("max_character_ratio", 2, [("ab", "abcd")], [("ab", "abcde"), ("abc", "")]),
        ("max_other_script", 0.3, LATIN, [("\u043e\u0434\u0438\u043d", "one"), MIXED]),
        ("max_other_script", 0.5, [*LATIN, MIXED, ("1", "!")], []),
        ("max_other_script", 0.3, [*JAPANESE, *((word, "user") for word in KATAKANA)], []),
        (
            "max_other_script",
            0.3,
            [*KANA, ("\u6f22\u5b57", "abc")],
            [("\u30fc\u0434", "\u30fc\u30fc")],
        ),
        ("max_other_script", 0, [*LATIN, ("\u00b5 \u2113 \u02b0 \u00aa \uff21", "naive")], []),
        ("max_other_script", 0.3, [*CHEROKEE, ("\u16a0 \u13a0", "abc")], [("a", "abc")]),
        ("max_other_script", 0, [*GREEK, ("\u0391", "abc")], [("\u0391 b", "abc")]),
    ],
)
def test_rule_leaves_out_and_names_its_pairs(rule, limit, kept, left_out):
    pairs = Corpora([Corpus("a", kept + left_out)], CleaningSettings(**{rule: limit}))
    assert sorted(pairs) == sorted(kept)
    found = {REASONS[rule]: [len(left_out), [list(pair) for pair in left_out]]} if left_out else {}
    assert pairs.counts["pairs"] == [len(kept)] and pairs.counts["left_out"] == found


@pytest.mark.parametrize("chunk", [1, 7, 1 << 16])
def test_scripts_are_those_of_the_corpus_so_far(monkeypatch, chunk):
    """Neither of the first corpus, nor of its first chunk."""
    monkeypatch.setattr(cleaning, "CHECKED_AT_ONCE", chunk)
    names = [("Berlin", "Berlin")] * 2
    russian = [("one", "\u043e\u0434\u0438\u043d")] * 50
    parts = [Corpus("a", names), Corpus("b", russian), Corpus("c", [*names, *russian])]
    corpora = Corpora(parts, CleaningSettings(max_other_script=0.3))
    assert list(corpora) == [*names, *russian, *names, *russian]


def test_duplicates_are_those_of_a_set(monkeypatch):
    monkeypatch.setattr(cleaning, "CHECKED_AT_ONCE", 7)
    rng = random.Random(1)
    pairs = [(str(rng.randrange(30)), str(rng.randrange(30))) for _ in range(2000)]
    parts = [Corpus("a", pairs[:900]), Corpus("b", pairs[900:])]
    corpora = Corpora(parts, CleaningSettings(duplicates=True, identical=True))
    expected = [pair for pair in dict.fromkeys(pairs) if pair[0] != pair[1]]
    assert list(corpora) == list(corpora) == expected
    assert sum(corpora.counts["pairs"]) == len(expected)
    left_out = corpora.counts["left_out"]
    assert left_out["duplicate"][0] + left_out["identical sides"][0] == 2000 - len(expected)
    assert all(len(examples) == 3 for _, examples in left_out.values())


def test_corpus_of_weight_0_is_left_out_and_named():
    corpora = Corpora(
        [Corpus("a", PAIRS[:1]), Corpus("b", PAIRS, weight=0), Corpus("c", PAIRS[1:2], 3, "<c>")]
    )
    assert list(corpora) == PAIRS[:2]
    assert corpora.counts["pairs"] == [1, 0, 1]
    assert corpora.notes() == [
        "a: 1 pairs, 1 times an epoch",
        "b: left out, its weight is 0",
        "c: 1 pairs, 3 times an epoch, tag <c>",
    ]


def test_pairs_that_are_held_out_are_counted_and_kept():
    held_out = {"test": Corpora([Corpus("t", [("two", "zwei"), ("one", "ein")])])}
    corpora = Corpora([Corpus("a", PAIRS)], held_out=held_out)
    assert list(corpora) == PAIRS
    assert corpora.overlaps == {"test": {"sources": 4, "pairs": 2}}
    assert corpora.notes() == ["also in `test`: the source of 4 pairs, and 2 pairs"]


@pytest.mark.parametrize("languages", ["de", ["de"], ["en", "de", "fr"]])
def test_languages_that_are_not_two_are_refused(languages):
    with pytest.raises(ValueError, match="`languages` must be two codes, of source and target"):
        Corpus("a", PAIRS, languages=languages)


def test_report_of_files_says_how_they_were_read(tokenizer, tmp_path):
    """Also without `Corpora`, from `read_parallel` itself."""
    path = tmp_path / "a.tsv"
    path.write_text("1\tone\t2\teins\n" * 4)
    for pairs in (read_parallel(path), Corpora([Corpus("a", read_parallel(path))])):
        stream = BatchStream(pairs, tokenizer, batch_sentences=2)
        example = ", ".join(["'1' | 'one'"] * 3)
        assert (
            stream.report.notes[-1] == f"read as columns 1 and 2 of 4: 4 pairs, such as {example}"
        )


def test_fingerprint_changes_with_all_that_decides_the_pairs(tmp_path):
    for name in ("1.tsv", "2.tsv"):
        (tmp_path / name).write_text(f"{name}\tx\n")
    one, other = (Corpus(name, read_parallel(tmp_path / name)) for name in ("1.tsv", "2.tsv"))
    tagged = Corpus("1", one.pairs, tag="<t>")
    weighed = Corpus("1", one.pairs, weight=2)
    prints = [
        Corpora(parts, settings and CleaningSettings(**settings)).fingerprint()
        for parts, settings in (
            ([one, other], None), ([other, one], None), ([one], None), ([tagged], None),
            ([one], {"identical": True}), ([Corpus("1", [("1.tsv", "x")])], None),
            ([Corpus("2", other.pairs, weight=0), one], None),  # stored counts have two numbers
        )
    ]  # fmt: skip
    assert len({*prints}) == len(prints)
    assert Corpora([weighed]).fingerprint() == prints[2], "weights choose among the same rows"


tokenizer = tokenizer_fixture(number_names("train", 300), 320, tags=["<a>", "<b>"])


def split(weights=(1, 2, 0, 3), tags=("<a>", "<b>", "<b>", None)):
    """Corpora of 40 pairs each. The first pair of each has no source."""
    pairs = number_names("train", 160, seed=3)
    parts = zip("1234", weights, tags, strict=True)
    return Corpora([
        Corpus(name, [("", "leer"), *pairs[40 * number :][:39]], weight, tag)
        for number, (name, weight, tag) in enumerate(parts)
    ])  # fmt: skip


@pytest.mark.parametrize("shapes", [None, 4])
def test_every_epoch_passes_as_often_as_the_weight_and_tags_every_row(tokenizer, shapes):
    options = {"batch_tokens": 512, "max_length": 24, "shapes": shapes, "seed": 4}
    noise = {"subword_regularization": 0.5, "word_dropout": 0.5}
    stream = BatchStream(split(), tokenizer, **options, **noise)
    lengths = BatchStream(split(tags=(None,) * 4), tokenizer, **options).lengths.copy()
    lengths[:80, 0] += lengths[:80, 0] > 1
    kept = np.flatnonzero((lengths.min(axis=1) > 1) & (lengths.max(axis=1) <= 24)).tolist()
    a, b = (tokenizer.vocabulary.index(tag) for tag in ("<a>", "<b>"))
    weights, tags = np.repeat([1, 2, 3], 40), np.repeat([a, b, -1], 40)
    assert stream.report.pairs_kept == len(kept) and stream.report.dropped["empty"] == 3
    again = BatchStream(split(), tokenizer, **options, **noise)  # as after a resume
    other = BatchStream(split((1, 2, 0, 2)), tokenizer, **options, **noise)
    assert stream.fingerprint == again.fingerprint != other.fingerprint
    for epoch in range(3):
        batches = stream.batches(epoch)
        assert len(batches) == stream.report.batches_per_epoch
        found = collections.Counter(np.concatenate(batches).tolist())
        assert found == {row: weights[row] for row in kept}
        for pair in zip(batches, again.batches(epoch), strict=True):
            np.testing.assert_array_equal(*pair)
        for rows in batches:
            token_ids = stream.arrays(rows, epoch)[0]["encoder_token_ids"]
            same = again.arrays(rows, epoch)[0]["encoder_token_ids"]
            np.testing.assert_array_equal(token_ids, same)
            found = np.where(np.isin(token_ids, [a, b]), token_ids, -1)[: len(rows)]
            np.testing.assert_array_equal(found[:, 0], tags[rows])
            assert (found[:, 1:] == -1).all() and token_ids.shape[1] <= 24


def test_corpora_without_weights_and_tags_are_their_pairs(tokenizer):
    """Bit for bit, so that runs of one corpus stay what they were."""
    pairs = list(number_names("train", 99))
    corpora = Corpora([Corpus("a", pairs[:50]), Corpus("b", pairs[50:])])
    streams = [BatchStream(each, tokenizer, batch_sentences=7) for each in (pairs, corpora)]
    for batches in zip(*(stream.batches(1) for stream in streams), strict=True):
        np.testing.assert_array_equal(*batches)
    assert streams[0].fingerprint == streams[1].fingerprint


def test_tag_that_the_vocabulary_lacks_is_named(tokenizer):
    corpora = Corpora([Corpus("a", [("one", "eins")], tag="<c>")])
    with pytest.raises(ValueError, match="`tag` must be one token .* Received: tag='<c>'"):
        BatchStream(corpora, tokenizer, batch_sentences=2)
    with pytest.raises(ValueError, match="`tag` must be a token of the vocabulary. .*'<c>'"):
        tokenizer.with_tag("<c>")


def test_tag_and_languages_of_a_corpus_of_weight_0_need_no_tokens(tokenizer):
    spoken = tokenizer.with_language("eng", "__eng__").with_language("deu", "__deu__")
    read = Corpus("a", PAIRS, languages=["eng", "deu"])
    for left_out in (Corpus("b", PAIRS, 0, "<c>", ["eng", "fra"]), Corpus("b", PAIRS, 0)):
        stream = BatchStream(Corpora([left_out, read]), spoken, batch_sentences=9, shapes=None)
        assert stream.report.pairs_read == len(PAIRS)
        (rows,) = stream.batches(0)
        first = stream.arrays(rows)[0]["encoder_token_ids"][:, 0]
        assert {*first.tolist()} == {spoken.language_ids["eng"]}


def test_tokenizer_puts_its_tag_in_front_and_reads_it_in_no_text(tokenizer):
    tagged = tokenizer.with_tag("<a>")
    texts = ["", "one <a> two", "<a>", "eins"]
    rows, tag = tokenizer.encode(texts), tokenizer.vocabulary.index("<a>")
    assert tag not in np.concatenate(rows)
    assert tagged.encode(texts) == [[tag, *row] if row else row for row in rows]
    assert tagged.decode(tagged.encode(texts)) == texts
    assert pickle.loads(pickle.dumps(tagged)).encode(texts) == tagged.encode(texts)
    mine = type("Mine", (Tokenizer,), {}).words(["a"])
    assert type(mine.with_tag("a")) is type(mine.with_language("b", "b")) is type(mine)


@pytest.mark.tensorflow_only
def test_tag_is_in_front_of_every_piece_of_a_line_and_in_a_graph(tokenizer):
    from tests.decoding.test_long_lines import assert_truncated_in_graph_too

    tagged = tokenizer.with_tag("<a>")
    texts, tag = ["", "one <a> two", "three thousand and four " * 5], tagged.vocabulary.index("<a>")
    token_ids = tagged.graph.tokenize(texts)
    assert token_ids.to_list() == tagged.encode(texts)
    assert_truncated_in_graph_too(tagged, texts, 20)
    cutter = LineCutter(tagged)
    pieces = [cutter.cut(row, 20, "split")[0] for row in tagged.encode(texts)]
    assert len(pieces[-1]) > 2
    rows = [row for of_line in pieces for row in of_line if len(row)]
    assert all(row[0] == tag and len(row) <= 20 for row in rows)
    assert list(tagged.graph.detokenize(token_ids).numpy()) == [t.strip().encode() for t in texts]


def test_token_store_keeps_what_was_counted(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(token_store, "usable_cores", lambda: 1)
    for name, pairs in (("1", PAIRS), ("2", PAIRS[:2])):
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(text)

    def stream(store):
        first, second = (read_parallel(tmp_path / f"{name}.tsv") for name in "12")
        parts = [Corpus("1", first, 2, "<a>"), Corpus("2", second, tag="<b>")]
        held_out = {"test": Corpora([Corpus("t", test_pairs)])}
        corpora = Corpora(parts, CleaningSettings(duplicates=True), held_out)
        return BatchStream(corpora, tokenizer, batch_sentences=3, store=store)

    test_pairs = PAIRS[1:2]
    expected, *others = stream(None), stream(tmp_path / "store"), stream(tmp_path / "store")
    assert expected.report.overlaps == {"test": {"sources": 2, "pairs": 1}}
    assert len(list((tmp_path / "store").iterdir())) >= 1
    for other in others:
        assert other.report == expected.report and len(other.report.notes) == 4
        for pair in zip(expected.batches(1), other.batches(1), strict=True):
            np.testing.assert_array_equal(*pair)
            token_ids = [
                each.arrays(pair[0], 1)[0]["encoder_token_ids"] for each in (expected, other)
            ]
            np.testing.assert_array_equal(*token_ids)
    test_pairs = [("one", "eins"), ("three", "vier")]
    other = stream(tmp_path / "store").report
    assert other == stream(None).report, "another test split, the same store"
    assert other.overlaps == {"test": {"sources": 2, "pairs": 1}} and "`test`" in other.notes[-1]
    (header,) = (tmp_path / "store").glob(f"*/{token_store.HEADER}")
    stored = json.loads(header.read_text("utf-8"))
    del stored["hash"], stored["counts"]["overlaps"], stored["counts"]["fingerprints"]
    header.write_text(json.dumps(stored | {"hash": token_store.hash_of(stored)}), "utf-8")
    assert stream(tmp_path / "store").report == other, "a store of an earlier version"
