"""Corpora from a token store and from memory: time to build, to start, and for a batch; memory.

    python benchmarks/corpus.py --data MULTI30K --pairs 500000 5000000

The corpora are pairs of Multi30k, drawn at random. Each measurement runs in a process of its own.
`RssAnon` is the memory that the process cannot give back; `RssFile` are pages of mapped files.
A batch is timed from both in one process, in turns: two processes of one store differ by a fifth.
"""

import argparse
import contextlib
import functools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

from decode_peers.timing import in_turns
from process_memory import memory_status
from stamp import stamp

STARTED = time.perf_counter()
TOKENS = 4096, 25_000  # of a batch
BATCHES = 1000
ROUNDS = 7
SIZE = 8000  # of the vocabulary


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of Multi30k")
    parser.add_argument("--pairs", type=int, nargs="+", default=[500_000, 5_000_000])
    parser.add_argument("--folder", help="where the corpora are written. Default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for pairs in options.pairs:
            compare(pathlib.Path(folder, str(pairs)), options.data, pairs)


def compare(folder, data, number):
    folder.mkdir()
    size = write_corpus(folder, data, number)
    print(f"{json.dumps(stamp())}\n{number:,} pairs, {size / 1e6:,.0f} MB of text", flush=True)
    found = measure("vocabulary", folder)
    print(f"vocabulary: {found['seconds']:.1f} s, peak {found['peak']:,.0f} MB", flush=True)
    seconds = {}
    for cores in (1, 2):
        found = measure("build", folder, cores)
        seconds[cores] = found["seconds"]
        print(
            f"store, cores {cores}: {found['seconds']:.1f} s, peak {found['peak']:,.0f} MB, "
            f"{found['bytes'] / size:.2f} of the text on disk",
            flush=True,
        )
    print(f"two cores: {seconds[1] / seconds[2]:.2f} times as fast")
    total, peaks = prepare(folder)
    print(
        f"keras-transformer prepare, all cores: {total:.1f} s; at once in all of its processes at "
        f"most {peaks['RssAnon']:,.0f} MB RssAnon, {peaks['VmRSS']:,.0f} MB with mapped files",
        flush=True,
    )
    for kind in ("store", "memory"):
        found = measure(kind, folder)
        per_pair = [1e6 * (found[each] - found["before"]) / number for each in ("first", "later")]
        print(
            f"{kind}: first batch {found['start']:.1f} s after the start of the process "
            f"({found['imports']:.1f} s are imports); RssAnon above that of the imports "
            f"{per_pair[0]:.1f} bytes a pair at the first batch, {per_pair[1]:.1f} after "
            f"{BATCHES:,}, peak {1e6 * (found['peak'] - found['before']) / number:.1f} (with "
            f"mapped files); RssAnon {found['later']:,.0f} MB, RssFile {found['files']:,.0f} MB",
            flush=True,
        )
    for tokens in TOKENS:
        store, memory = (found[f"{kind} {tokens}"] for kind in ("store", "memory"))
        print(
            f"a batch of {tokens:,} tokens: {store:.2f} ms from the store, {memory:.2f} ms from "
            f"memory, {store / memory:.2f} times as long",
            flush=True,
        )


def write_corpus(folder, data, number):
    """Writes two files of lines; returns their size."""
    from keras_transformer import read_parallel

    drawn = random.Random(0)
    pairs = list(read_parallel(*(data / f"train.{side}.gz" for side in ("en", "de"))))
    names = [folder / f"text.{side}" for side in ("en", "de")]
    with (
        open(names[0], "w", encoding="utf-8") as source,
        open(names[1], "w", encoding="utf-8") as target,
    ):
        for _ in range(number):
            pair = drawn.choice(pairs)
            source.write(f"{pair[0]}\n")
            target.write(f"{pair[1]}\n")
    return sum(name.stat().st_size for name in names)


def measure(kind, folder, cores=None):
    """Measures in a new process, on some of the cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))[:cores]
    ran = subprocess.run(
        [sys.executable, __file__, kind, folder],
        capture_output=True,
        text=True,
        env=os.environ | {"KERAS_BACKEND": "tensorflow"},
        preexec_fn=lambda: os.sched_setaffinity(0, usable),
    )
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout.splitlines()[-1])


def megabytes(field):
    return memory_status(field) / 1e6


def prepare(folder):
    """Runs the command with the trained vocabulary; returns its seconds, and peaks in MB."""
    recipe = {"data": {"train": ["text.en", "text.de"]}, "vocabulary": {"files": ["joint.json"]}}
    (folder / "recipe.json").write_text(json.dumps(recipe))
    words = "prepare", folder / "recipe.json", "--data", folder, "--run", folder / "run"
    started, peaks = time.perf_counter(), {"RssAnon": 0, "VmRSS": 0}
    process = subprocess.Popen([sys.executable, "-m", "keras_transformer", *words])
    while process.poll() is None:
        with contextlib.suppress(OSError, TypeError):  # a process ended meanwhile
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            processes = [process.pid, *children.read_text().split()]
            for field, peak in peaks.items():
                now = sum(memory_status(field, each) for each in processes) / 1e6
                peaks[field] = max(peak, now)
        time.sleep(0.05)
    if process.returncode:
        sys.exit(f"prepare ended with {process.returncode}")
    return time.perf_counter() - started, peaks


def measured(kind, folder):
    """Returns what a process measures of itself."""
    files = [folder / f"text.{side}" for side in ("en", "de")]
    if kind == "vocabulary":
        return {"seconds": seconds_of(lambda: train(files, folder)), "peak": megabytes("VmHWM")}
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.data.token_store import token_rows
    from keras_transformer.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder / "joint.json")
    pairs, store = read_parallel(*files), folder / "store"
    if kind == "build":
        for file in store.glob("*/*"):
            file.unlink()
        for path in store.glob("*"):
            path.rmdir()
        seconds = seconds_of(lambda: token_rows(pairs, [tokenizer] * 2, store))
        written = sum(file.stat().st_size for file in store.glob("*/*"))
        return {"seconds": seconds, "peak": megabytes("VmHWM"), "bytes": written}
    return start(pairs, tokenizer, store, kind)


def train(files, folder):
    from keras_transformer.data.tokenizer import Tokenizer

    Tokenizer.train(files, SIZE, folder / "joint.json")


def start(pairs, tokenizer, store, kind):
    from keras_transformer.data.pipeline import BatchStream

    found = {"imports": time.perf_counter() - STARTED, "before": megabytes("RssAnon")}
    path = store if kind == "store" else None
    stream = BatchStream(pairs, tokenizer, batch_tokens=TOKENS[0], store=path)
    batches = iter(stream.dataset())
    next(batches)
    found |= {"start": time.perf_counter() - STARTED, "first": megabytes("RssAnon")}
    for _, _ in zip(range(BATCHES), batches, strict=False):
        pass
    found |= {"later": megabytes("RssAnon"), "files": megabytes("RssFile")}
    found["peak"] = megabytes("VmHWM")
    if kind == "memory":
        found |= batch_times(stream, pairs, tokenizer, store)
    return found


def batch_times(memory, pairs, tokenizer, store):
    """Returns milliseconds a batch, from a store and from memory in turns: medians.

    Args:
        memory: the `BatchStream` from memory of the first of `TOKENS`.
    """
    from keras_transformer.data.pipeline import BatchStream

    found = {}
    for tokens in TOKENS:
        memory = memory or BatchStream(pairs, tokenizer, batch_tokens=tokens)
        mapped = BatchStream(pairs, tokenizer, batch_tokens=tokens, store=store)
        batches = mapped.batches(1)[:BATCHES]
        streams = {"store": mapped, "memory": memory}
        works = {name: functools.partial(read, each, batches) for name, each in streams.items()}
        for name, seconds in in_turns(works, ROUNDS).items():
            found[f"{name} {tokens}"] = 1000 * statistics.median(seconds) / len(batches)
        memory = None
    return found


def read(stream, batches):
    for rows in batches:
        stream.arrays(rows, 1)


def seconds_of(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ("vocabulary", "build", "store", "memory"):
        print(json.dumps(measured(sys.argv[1], pathlib.Path(sys.argv[2]))))
    else:
        main()
