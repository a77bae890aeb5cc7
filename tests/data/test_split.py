"""A split keeps every line, and no sentence of validation and test is in the training part."""

import collections
import gzip
import json
import os
import random

import pytest

from keras_transformer.data.split import split_files, split_pairs
from tests.cli.small_run import cli, succeed
from tests.data.corpus_files import po, write


def corpus(number, vocabulary, seed=0):
    """Random pairs; the smaller the vocabulary, the more sentences they have in common."""
    rng = random.Random(seed)
    return [
        (f"s{rng.randrange(vocabulary)}", f"t{rng.randrange(vocabulary)}") for _ in range(number)
    ]


def assert_disjoint(parts):
    """No text of either side is in two parts."""
    for side in (0, 1):
        texts = [{" ".join(pair[side].split()) for pair in part} - {""} for part in parts]
        assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]


@pytest.mark.parametrize("vocabulary", [1200, 2000, 100_000])
@pytest.mark.parametrize("seed", [0, 1])
def test_parts_have_no_sentence_in_common_and_hold_every_pair_once(vocabulary, seed):
    pairs = corpus(1500, vocabulary)
    parts = split_pairs(pairs, validation=60, test=40, seed=seed)
    assert [len(parts[name]) for name in ("train", "val", "test")] == [1400, 60, 40]
    assert sorted(row for rows in parts.values() for row in rows) == list(range(1500))
    assert all(rows == sorted(rows) for rows in parts.values())
    assert_disjoint([[pairs[row] for row in rows] for rows in parts.values()])
    assert split_pairs(pairs, validation=60, test=40, seed=seed) == parts
    assert split_pairs(pairs, validation=60, test=40, seed=seed + 7) != parts


def test_white_space_makes_no_other_sentence_and_empty_ones_join_nothing():
    pairs = [("a", "x"), (" a  ", "y"), ("b", "y "), *((str(n), "") for n in range(9))]
    parts = split_pairs(pairs, validation=4, test=5)
    assert parts["train"] == [0, 1, 2]
    assert len(parts["val"]) + len(parts["test"]) == 9


@pytest.mark.parametrize(
    ("pairs", "validation", "test"),
    [
        ([("a", "x"), ("a", "y"), ("b", "y")], 1, 0),
        ([("a", "x"), ("b", "y")], 1, 1),
        ([("a", "x")], 2, 0),
        ([], 0, 0),
    ],
)
def test_sizes_that_sentences_do_not_allow_are_named(pairs, validation, test):
    with pytest.raises(ValueError, match=f"Received: validation={validation}, test={test}, of"):
        split_pairs(pairs, validation, test)


def written(folder, *words):
    """Runs the command, and returns what is said, and the lines that are written, sorted."""
    sizes = "--validation", 1, "--test", 0, "--seed", 3
    ran = succeed("split", *words, *sizes, "--output", folder / "new")
    files = [folder / "new" / f"{part}.tsv" for part in ("train", "val", "test")]
    parts = [file.read_text("utf-8").splitlines() for file in files]
    counts = [[str(file), str(len(part)), "lines"] for file, part in zip(files, parts, strict=True)]
    assert [line.split() for line in ran.stdout.splitlines()] == counts
    assert [len(part) for part in parts[1:]] == [1, 0]
    return ran.stderr, sorted(line for part in parts for line in part)


TWO = po([("one", "eins"), ("two", "zwei")])
THIRD, FOURTH = po([("three", "&drei")]), po([("four", "vier")])
ROWS = [{"source": f"a\n{n}", "target": f"b\t{n} "} for n in range(9)]


@pytest.mark.parametrize(
    ("files", "options", "expected", "said"),
    [
        ({"1.po": str(TWO), "2.po": str(THIRD), "3.po": str(FOURTH)}, ["--accelerator", "&"],
         ["four\tvier", "one\teins", "three\tdrei", "two\tzwei"], "left out, header: 3"),
        ({"1.po": str(TWO), "2.mo": THIRD.to_binary()}, ["--accelerator", "&"],
         ["one\teins", "three\tdrei", "two\tzwei"], "left out, header: 2"),
        ({"a.jsonl.gz": gzip.compress("\n".join(map(json.dumps, ROWS)).encode())}, [],
         [f"a {n}\tb {n}" for n in range(9)], ""),
        ({"a.jsonl": "".join(f'{{"en": "{s}", "de": "x{s}"}}\n' for s in "abc")},
         ["--languages", "en", "de"], ["a\txa", "b\txb", "c\txc"], ""),
        ({"a.csv": "en;de\na;x\nb;y\nc;z\n"}, ["--columns", "en", "de", "--delimiter", ";"],
         ["a\tx", "b\ty", "c\tz"], ""),
        ({"a.tsv": "de\ten\nx\ta\ny\tb\nz\tc\n"}, ["--columns", "en", "de"],
         ["a\tx", "b\ty", "c\tz"], ""),
    ],
)  # fmt: skip
def test_files_with_both_sides_are_written_as_tsv(tmp_path, files, options, expected, said):
    paths = [write(tmp_path / name, content) for name, content in files.items()]
    for folder, given in (("paths", paths), ("glob", [tmp_path / "?.*"])):
        told, rows = written(tmp_path / folder, *given, *options)
        assert rows == expected
        assert said in told if said else told == ""


def test_columns_decide_which_sentences_are_equal(tmp_path):
    """By an id and a text, no line would have a sentence in common with another."""
    lines = [f"{n}\ts{n}\t{n}\tt{n // 2}" for n in range(6)]
    for number in (0, 1):
        file = tmp_path / f"{number}.tsv"
        file.write_text("".join(f"{line}\n" for line in lines[3 * number :][:3]))
    said, rows = written(tmp_path, *tmp_path.glob("*.tsv"))
    assert rows == lines and "read as columns 1 and 2 of 4: 6 pairs" in said
    files = split_files(tmp_path.glob("*.tsv"), None, tmp_path / "other", validation=2, test=2,
                        columns=[2, 4])  # fmt: skip
    parts = [[line.split("\t")[1::2] for line in file.read_text().splitlines()] for file in files]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert_disjoint(parts)


LINES = [*(f"s{n}\tt{n}\tx {n}" for n in range(50)), "s1\tt\u2028x\x0c", "s2\t", "\tt3", " s4 \tx"]


@pytest.mark.parametrize("end", ["\n", ""])
@pytest.mark.parametrize("kind", ["tsv", "tsv.gz", "two", "two.gz", "same ending"])
def test_lines_of_files_are_kept_as_they_are(tmp_path, kind, end):
    columns = list(zip(*(line.split("\t")[:2] for line in LINES), strict=True))
    texts = {"tsv": [LINES], "two": columns, "same ending": columns}[kind.split(".")[0]]
    suffixes = {"tsv": [".tsv"], "two": [".en", ".de"], "same ending": [".1.txt", ".2.txt"]}
    packs = gzip.compress if kind.endswith("gz") else bytes
    inputs = []
    for lines, suffix in zip(texts, suffixes[kind.split(".")[0]], strict=True):
        inputs.append(tmp_path / f"all{suffix}{'.gz' * kind.endswith('gz')}")
        inputs[-1].write_bytes(packs(("\n".join(lines) + end).encode()))
    target = inputs[1] if len(inputs) == 2 else None
    sizes = split_files(inputs[0], target, tmp_path / "new" / "out", validation=5, test=7)
    assert list(sizes.values()) == [n for n in (42, 5, 7) for _ in inputs]
    endings = [".source", ".target"] if kind == "same ending" else suffixes[kind.split(".")[0]]
    read = {path.name: path.read_bytes().decode().split("\n")[:-1] for path in sizes}
    assert list(read) == [f"{n}{ending}" for n in ("train", "val", "test") for ending in endings]
    rows = [
        pair
        for part in ("train", "val", "test")
        for pair in zip(*(read[part + ending] for ending in endings), strict=True)
    ]
    assert collections.Counter(rows) == collections.Counter(zip(*texts, strict=True))


def test_files_of_a_side_may_be_an_iterator_or_a_glob(tmp_path):
    """Of which one is empty."""
    texts = {"1.en": "abc", "2.eng": "de", "3.en": "", "1.de": "ABC", "2.de": "DE", "3.de": ""}
    for name, lines in texts.items():
        (tmp_path / name).write_text("\n".join(lines))
    sources = (tmp_path / name for name in ("1.en", "2.eng", "3.en"))
    options = {"validation": 1, "test": 2, "allow_empty": True}
    sizes = split_files(sources, tmp_path / "*.de", tmp_path / "new", **options)
    files = [f"{part}{ending}" for part in ("train", "val", "test") for ending in (".en", ".de")]
    assert [path.name for path in sizes] == files
    rows = [path.read_text().split() for path in sizes]
    pairs = [pair for n in (0, 2, 4) for pair in zip(*rows[n : n + 2], strict=True)]
    assert sorted(pairs) == [(letter, letter.upper()) for letter in "abcde"]


@pytest.fixture
def pipe():
    ends = []

    def make(lines):
        end, write = os.pipe()
        ends.append(end)
        with open(write, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        return f"/dev/fd/{end}"

    yield make
    for end in ends:
        os.close(end)


def test_pipes_are_read_once(tmp_path, pipe):
    source, target = (pipe(f"{side}{n}" for n in range(9)) for side in "ab")
    files = split_files(source, target, tmp_path, validation=1, test=2)
    rows = [path.read_text().split() for path in files]
    pairs = [pair for n in (0, 2, 4) for pair in zip(*rows[n : n + 2], strict=True)]
    assert sorted(pairs) == [(f"a{n}", f"b{n}") for n in range(9)]
    both = pipe(f"a{n}\tb{n}" for n in range(9))
    files = split_files(both, None, tmp_path / "new", validation=1, test=2)
    rows = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(rows) == [f"a{n}\tb{n}" for n in range(9)]


def test_existing_files_are_not_replaced_and_nothing_is_written(tmp_path):
    (tmp_path / "all.tsv").write_text("a\tb\nc\td\n")
    (tmp_path / "val.tsv").write_text("mine")
    sizes = "--test", 1, "--validation", 0
    ran = cli("split", tmp_path / "all.tsv", "--output", tmp_path, *sizes)
    assert ran.exit_code == 2 and "val.tsv exist" in ran.stderr and ran.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.tsv", "val.tsv"]
    assert (tmp_path / "val.tsv").read_text() == "mine"
