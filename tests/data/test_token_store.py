"""A token store gives the batches of memory, is never read when damaged, and is built once."""

import errno
import functools
import json
import os
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from keras_transformer.data import token_store
from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.data.corpora import Corpora, Corpus
from keras_transformer.data.corpus import read_parallel
from keras_transformer.data.encoding import Chunk, encode_chunk
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.pairs import Pairs
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.data.token_store import HEADER, expected_size, list_stores, token_rows
from keras_transformer.data.tokenizer import Tokenizer
from tests.builders import ROOT
from tests.data.test_feeder import arrays_of, assert_same_batches, planned
from tests.kills import run_killed

PAIRS = [*number_names(size=400), ("", "leer"), ("two  words\u2028", "zwei\xa0Wörter…")]
FILES = "source.ids", "target.ids", "starts", "lengths", HEADER
# Builds a store slowly: many chunks, each of which takes a while.
BUILD = """
import sys, time
from keras_transformer.data import token_store
from keras_transformer.data.corpus import read_parallel
from keras_transformer.data.tokenizer import Tokenizer

token_store.ENCODED_AT_ONCE = 50
token_store.usable_cores = lambda: 1
folder, store, seconds = *sys.argv[1:3], float(sys.argv[3])
tokenizer = Tokenizer.load(folder + "/joint.model")
pairs = read_parallel(folder + "/a.en", folder + "/a.de")
wait = lambda number: (print(number, flush=True), time.sleep(seconds))
token_store.token_rows(pairs, [tokenizer] * 2, store, wait)
"""

DAEMON = """
import multiprocessing

context = multiprocessing.get_context("fork")
process = context.Process(target=exec, args=({!r}, {{}}), daemon=True)
process.start()
process.join()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with two files of parallel text and a tokenizer."""
    folder = tmp_path_factory.mktemp("corpus")
    for side, lines in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (folder / f"a.{side}").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    Tokenizer.train([folder / "a.en", folder / "a.de"], 340, folder / "joint.model")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return Tokenizer.load(folder / "joint.model")


@pytest.fixture
def pairs(folder):
    return read_parallel(folder / "a.en", folder / "a.de")


@pytest.fixture(autouse=True)
def one_core(monkeypatch):
    monkeypatch.setattr(token_store, "usable_cores", lambda: 1)


def contents(store):
    """The bytes of all files of a folder of stores."""
    return {
        path.relative_to(store): path.read_bytes() for path in store.rglob("*") if path.is_file()
    }


def build(folder, store, seconds=0.0, **options):
    command = [sys.executable, "-c", BUILD, folder, store, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **options)


@pytest.mark.parametrize(
    ("cores", "options"),
    [(2, {"shapes": 3}), (1, {"subword_regularization": 0.3}), (2, {"word_dropout": 0.3})],
)
def test_batches_are_those_of_memory(pairs, tokenizer, tmp_path, monkeypatch, options, cores):
    monkeypatch.setattr(token_store, "usable_cores", lambda: cores)
    monkeypatch.setattr(token_store, "ENCODED_AT_ONCE", 100)
    options = {"batch_tokens": 400, "max_length": 40, "seed": 3, **options}
    memory = BatchStream(list(pairs), tokenizer, **options)
    for _ in range(2):  # a store that is built, and one that is opened
        stored = BatchStream(pairs, tokenizer, store=tmp_path, **options)
        assert stored.fingerprint == memory.fingerprint
        assert stored.report == memory.report
        for epoch in range(3):
            np.testing.assert_array_equal(stored.token_counts(epoch), memory.token_counts(epoch))
            assert_same_batches(planned(stored, epoch), planned(memory, epoch))
        stored.seek(1, batch=2)
        expected = planned(memory, 1)[2:]
        assert_same_batches(arrays_of(stored.dataset(), len(expected)), expected)
    assert len(list(tmp_path.iterdir())) == 1


def test_size_is_told_before(tokenizer, tmp_path):
    draw = random.Random(1)
    texts = [(draw.randbytes(40).hex(), draw.randbytes(50).hex()) for _ in range(4000)]
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    pairs = read_parallel(path)
    number, size = expected_size(pairs, [tokenizer] * 2)
    token_rows(pairs, [tokenizer] * 2, tmp_path / "store")
    files = (tmp_path / "store").glob("*/*[!n]")  # without the header
    assert number == 4000
    assert size == pytest.approx(sum(each.stat().st_size for each in files), rel=0.05)
    assert expected_size([], [tokenizer] * 2) == (0, 0)


@pytest.mark.parametrize("name", FILES)
def test_flipped_byte_is_refused_by_name_and_the_store_is_built_again(
    pairs, tokenizer, tmp_path, name
):
    token_rows(pairs, [tokenizer] * 2, tmp_path)
    whole = contents(tmp_path)
    (file,) = tmp_path.glob(f"*/{name}")
    content = bytearray(file.read_bytes())
    draw = random.SystemRandom()
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    print(f"byte {place}, bit {bit}")
    content[place] ^= 1 << bit
    for damaged in (content, content[:-1], b""):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match=f"{file.parent} is damaged"):
            token_rows(pairs, [tokenizer] * 2, tmp_path)
        assert contents(tmp_path) == whole
    file.unlink()
    with pytest.warns(UserWarning, match=f"{file.parent} is damaged"):
        token_rows(pairs, [tokenizer] * 2, tmp_path)
    assert contents(tmp_path) == whole


def test_each_setting_has_its_own_store(folder, pairs, tokenizer, tmp_path):
    other = Tokenizer.train(folder / "a.de", 330, tmp_path / "other.model")
    swapped = read_parallel(folder / "a.de", folder / "a.en")
    (tmp_path / "b.en").write_bytes((folder / "a.en").read_bytes().replace(b"one", b"two"))
    edited = read_parallel(tmp_path / "b.en", folder / "a.de")
    store = tmp_path / "store"
    settings = [
        (pairs, [tokenizer] * 2),
        (pairs, [tokenizer, other]),
        (pairs, [other, tokenizer]),
        (swapped, [tokenizer] * 2),
        (edited, [tokenizer] * 2),
        (read_parallel([folder / "a.en"] * 2, [folder / "a.de"] * 2), [tokenizer] * 2),
    ]
    for number, (texts, tokenizers) in enumerate(settings, 1):
        stored = token_rows(texts, tokenizers, store)
        assert len(list(store.iterdir())) == number
        assert stored.fingerprint == token_rows(list(texts), tokenizers).fingerprint
    for texts, tokenizers in settings:
        token_rows(texts, tokenizers, store)
    assert len(list(store.iterdir())) == len(settings)


def test_names_and_examples_that_are_not_utf_8_are_stored(tokenizer, tmp_path):
    """A glob finds such a name, and JSON can spell half of a surrogate pair."""
    lines = [r'{"source": "\ud83d", "target": "\ud83d"}', '{"source": "one", "target": "eins"}']
    (tmp_path / os.fsdecode(b"\xff.jsonl")).write_text("\n".join(lines))
    for _ in range(2):  # a store that is built, and one that is opened
        files = read_parallel(tmp_path / "*.jsonl")
        pairs = Corpora([Corpus(repr(files), files)], CleaningSettings(identical=True))
        assert len(token_rows(pairs, [tokenizer] * 2, tmp_path / "store").lengths) == 1
        assert pairs.counts["left_out"] == {"identical sides": [1, [["\ud83d"] * 2]]}
    ((_, text),) = list_stores(tmp_path / "store")
    assert text.encode().endswith(rb"\udcff.jsonl")


class Shouting(Tokenizer):
    def encode(self, texts, *options):
        return super().encode([text.upper() for text in texts], *options)


@pytest.mark.parametrize("reason", ["list", "Shouting", "pipe"])
def test_without_a_fingerprint_nothing_is_stored(folder, pairs, tokenizer, tmp_path, reason):
    store = tmp_path / "store"
    expected = token_rows(list(pairs), [tokenizer] * 2).fingerprint
    if reason == "list":
        pairs = list(pairs)
    elif reason == "Shouting":
        tokenizer = Shouting.load(folder / "joint.model")
        expected = token_rows(list(pairs), [tokenizer] * 2).fingerprint
    else:
        null = f"/dev/fd/{os.open('/dev/null', os.O_RDONLY)}"
        pairs = read_parallel(null, null, allow_empty=True)
        expected = token_rows([], [tokenizer] * 2).fingerprint
    with pytest.warns(UserWarning, match="stay in memory"):
        assert token_rows(pairs, [tokenizer] * 2, store).fingerprint == expected
    assert not store.exists()


@pytest.mark.parametrize("is_daemonic", [False, True])
def test_script_without_a_guard_builds_on_two_cores(
    folder, pairs, tokenizer, tmp_path, is_daemonic
):
    token_rows(pairs, [tokenizer] * 2, tmp_path / "usual")
    script = BUILD.replace("lambda: 1", "lambda: 2").replace("= 50", "= 8192")
    if is_daemonic:
        script = DAEMON.format(script)
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, tmp_path / "script.py", folder, tmp_path / "two", "0"]
    ran = subprocess.run(command, capture_output=True, check=True, cwd=ROOT)
    assert (ran.stdout.split(), ran.stderr) == ([b"%d" % len(PAIRS)], b"")
    assert contents(tmp_path / "two") == contents(tmp_path / "usual")


def repeat_chunk(encoded, number, chunks, *_):
    list(chunks)
    return [encoded] * number


def test_memory_of_a_stream_does_not_follow_its_store(pairs, tokenizer, tmp_path, monkeypatch):
    """At most 40 bytes a pair, also while it plans an epoch."""
    encoded = encode_chunk(Chunk(*map(list, zip(*PAIRS, strict=True))), [tokenizer] * 2)
    peaks = []
    for number in (200, 800):
        repeated = functools.partial(repeat_chunk, encoded, number)
        monkeypatch.setattr(token_store, "encode_chunks", repeated)
        store = tmp_path / str(number)
        token_rows(pairs, [tokenizer] * 2, store)
        tracemalloc.start()
        stream = BatchStream(pairs, tokenizer, batch_tokens=4096, store=store)
        next(iter(stream.dataset()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert stream.report.pairs_read == 800 * len(PAIRS)
    assert peaks[1] - peaks[0] < 40 * 600 * len(PAIRS)


def test_where_no_process_starts_this_one_builds(pairs, tokenizer, tmp_path, monkeypatch):
    token_rows(pairs, [tokenizer] * 2, tmp_path / "usual")
    monkeypatch.setattr(token_store, "usable_cores", lambda: 2)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.warns(UserWarning, match="No further process can tokenize.*: this one"):
        token_rows(pairs, [tokenizer] * 2, tmp_path / "alone")
    assert contents(tmp_path / "alone") == contents(tmp_path / "usual")


def test_reading_writes_nothing_and_files_have_the_usual_rights(
    pairs, tokenizer, tmp_path, monkeypatch
):
    mask = os.umask(0o027)
    try:
        token_rows(pairs, [tokenizer] * 2, tmp_path)
    finally:
        os.umask(mask)
    paths = list(tmp_path.rglob("*"))
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {"0o750", "0o640"}
    for path in (*paths, tmp_path):
        os.chmod(path, 0o555 if path.is_dir() else 0o444)
    monkeypatch.setattr(token_store, "file_lock", None)  # not called
    try:
        token_rows(pairs, [tokenizer] * 2, tmp_path)
    finally:
        for path in (*paths, tmp_path):
            os.chmod(path, 0o755 if path.is_dir() else 0o644)


def test_write_that_fails_leaves_nothing_and_names_the_store(folder, tmp_path):
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)){BUILD}"
    command = [sys.executable, "-c", limited, folder, tmp_path, "0"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    last = ran.stderr.splitlines()[-1]
    assert f"OSError: [Errno 27] {tmp_path}" in last and "could not be written" in last
    assert not list(tmp_path.iterdir())


def test_text_that_cannot_be_read_is_no_failed_write(tokenizer, tmp_path):
    class Unreadable(Pairs):
        def fingerprint(self):
            return "of unreadable pairs"

        def __iter__(self):
            raise OSError(errno.EIO, "Input/output error", "corpus.en")

    with pytest.raises(OSError, match=r"Input/output error: 'corpus.en'$"):
        token_rows(Unreadable(), [tokenizer] * 2, tmp_path)


def test_two_processes_at_once_build_it_once(folder, tmp_path):
    processes = [build(folder, tmp_path, 0.03) for _ in range(2)]
    chunks = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(map(len, chunks)) == [0, -(-len(PAIRS) // 50)]
    (store,) = tmp_path.iterdir()
    assert json.loads((store / HEADER).read_text())["pairs"] == len(PAIRS)


@pytest.mark.long
def test_killed_build_is_built_again_to_the_same_bytes(folder, tmp_path):
    """Killed before a chunk, its files and its name last."""
    for point in (("numpy.ascontiguousarray", 9), ("os.fsync", 2), ("os.rename", 1)):
        run_killed(BUILD, [folder, tmp_path / "killed", 0], *point)
    for process in [build(folder, tmp_path / name) for name in ("killed", "whole")]:
        process.communicate()
    expected = contents(tmp_path / "whole")
    assert expected and contents(tmp_path / "killed") == expected
    assert len(list((tmp_path / "killed").iterdir())) == 1
