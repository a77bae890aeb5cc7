"""Measures `keras-transformer translate` on a large file of number names.

    python benchmarks/translate.py FOLDER --lines 1000000
    python benchmarks/translate.py FOLDER --lines 20000

FOLDER is a run, or a folder of CTranslate2, trained on number names: translations of another
model reach their maximum length, and CTranslate2 searches them twice. It prints

- lines per second, from the first chunk that is done to the last; for a folder of CTranslate2 also
  those of one call of its own `translate_batch` with the tokens of `--own-lines` lines, the same
  search and as many workers as cores. That call neither reads nor tokenizes nor writes;
- the memory in the second tenth of the lines and in the last: `RssAnon`, and `RssFile` of mapped
  files, medians, because a chunk comes and goes;
- whether the file is byte-equal to the one of a process that was killed (SIGKILL) at five points
  and resumed each time.

It exits with an error if the memory differs by more than 5%, or the files differ. Linux only.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from decode_peers.timing import print_verdict
from process_memory import memory_status

MEMORY_LIMIT = 1.05
KILLS = 5
BATCH_SENTENCES = 256
SECONDS = 0.05  # between two looks at a process


class Look(NamedTuple):
    """What a process has done at a moment, and its memory in bytes."""

    seconds: float
    lines: int
    anonymous: int
    mapped: int


def watch(command, output, until=None):
    """Runs `translate`, and kills it when `until` lines are done; returns its `Look`s."""
    state, looks = pathlib.Path(f"{output}.partial.json"), []
    with subprocess.Popen([*command, "--output", output], stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                lines = json.loads(state.read_text("utf-8"))["lines"]
                memory = [memory_status(name, process.pid) for name in ("RssAnon", "RssFile")]
                if lines:  # the state stands before the first chunk is done
                    looks.append(Look(time.monotonic(), lines, *memory))
            except (OSError, TypeError):  # there is no state, or the process has just ended
                lines = 0
            if until is not None and lines >= until:
                process.kill()
            time.sleep(SECONDS)
    if until is None and process.returncode:
        raise SystemExit(f"`translate` failed: {' '.join(command)}")
    return looks


def median_memory(looks):
    """Prints the medians of both kinds of memory, and returns that of `RssAnon`."""
    medians = [statistics.median(each) for each in zip(*(look[2:] for look in looks), strict=True)]
    anonymous, mapped = (f"{size / 2**20:,.1f} MiB" for size in medians)
    print(f"memory from line {looks[0].lines:,} on: {anonymous}, mapped {mapped}")
    return medians[0]


def own_rate(folder, lines):
    """Returns the lines per second of CTranslate2's own call."""
    import ctranslate2

    from keras_transformer.data.pieces import load_pieces
    from keras_transformer.data.tokenizer_file import exported_paths

    search = json.loads((folder / "model_card.json").read_text("utf-8"))["search"]
    tokens = load_pieces(exported_paths(folder)[0]).encode(lines)
    longest = max(map(len, tokens)) + 1
    cores = len(os.sched_getaffinity(0))
    engine = ctranslate2.Translator(str(folder), inter_threads=cores, intra_threads=1)
    start = time.monotonic()
    engine.translate_batch(
        tokens,
        beam_size=search["beam_size"],
        length_penalty=search["alpha"],
        max_decoding_length=int(search["length_ratio"] * longest) + search["extra_length"],
        min_decoding_length=0,
        max_input_length=0,
        max_batch_size=BATCH_SENTENCES,
    )
    return len(lines) / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--own-lines", type=int, default=100_000, help="of CTranslate2's own call")
    arguments = parser.parse_args()
    from keras_transformer.data import number_names

    lines = [english for english, _ in number_names("train", arguments.lines)]
    with tempfile.TemporaryDirectory() as folder:
        source, whole, killed = (pathlib.Path(folder, name) for name in ("in", "whole", "killed"))
        source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        command = [sys.executable, "-m", "keras_transformer", "translate", str(arguments.folder)]
        command += ["--input", str(source), "--batch-sentences", str(BATCH_SENTENCES)]
        looks = watch(command, whole)
        first, last = looks[0], looks[-1]
        # The first look at each number of lines is when its chunk was done.
        end = next(look for look in looks if look.lines == last.lines)
        rate = (end.lines - first.lines) / (end.seconds - first.seconds)
        print(f"{len(lines):,} lines: {rate:,.1f} lines per second")
        if (arguments.folder / "model.bin").is_file():
            own = own_rate(arguments.folder, lines[: arguments.own_lines])
            print(f"CTranslate2's own call: {own:,.1f}, so {rate / own:.2f} of it")
        later = [look for look in looks if look.lines >= len(lines) / 10]
        tenth = len(later) // 9 or 1
        early, late = median_memory(later[:tenth]), median_memory(later[-tenth:])
        for point in range(KILLS):
            watch(command, killed, until=max(1, len(lines) * point // KILLS))
        watch(command, killed)
        is_equal = killed.read_bytes() == whole.read_bytes()
        is_bounded = late <= MEMORY_LIMIT * early
        print_verdict(is_bounded, "memory is bounded")
        print_verdict(is_equal, f"the same bytes after {KILLS} kills")
        sys.exit(not (is_bounded and is_equal))


if __name__ == "__main__":
    main()
