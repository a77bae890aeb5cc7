"""Translations and log-probs of imported models beside what Marian itself printed for them.

A folder holds a model of Marian, `test.en`, and its outputs: `greedy.nbest`, or by the settings of
the search `beam6_normalize1.nbest`. `--marian PYTHON`, a Python with `pymarian`, times both
programs on one core.

    python benchmarks/marian.py FOLDER ... [--texts] [--lines FILE --marian PYTHON]
"""

import argparse
import os
import pathlib
import re
import subprocess
import tempfile
import time

import numpy as np

END = "</s>"
ONE_CORE = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--texts", action="store_true", help="print the texts that differ")
    parser.add_argument("--lines", type=pathlib.Path, help="text to time")
    parser.add_argument("--marian", help="Python that has pymarian")
    return parser.parse_args()


def read_lines(path):
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def read_outputs(path):
    """Yields line number, pieces, sum of log-probs and score of each hypothesis of a file."""
    for line in read_lines(path):
        number, pieces, features, score = line.split(" ||| ")
        yield int(number), pieces.split(), float(features.removeprefix("F0= ")), float(score)


def settings_of(name):
    """Settings of the search, by the name of a file of outputs."""
    if name == "greedy":
        return {"beam_size": 1}
    beam_size, alpha = re.fullmatch(r"beam(\d+)_normalize([\d.]+)", name).groups()
    return {"beam_size": int(beam_size), "length_penalty": "mean", "alpha": float(alpha)}


def sums_of_log_probs(translator, lines, hypotheses):
    """Sum of the model's log-probs of each `(line number, pieces)`, end token included.

    A hypothesis of the maximum length has no end token.
    """
    source, target = translator.tokenizers
    ids = {piece: number for number, piece in enumerate(target.vocabulary)}
    sources = source.encode(lines, add_end=True)
    longest = translator.settings.length_ratio
    sums = []
    for start in range(0, len(hypotheses), 64):
        batch = hypotheses[start : start + 64]
        rows = [
            [ids[p] for p in tokens]
            + [target.end_token_id] * (len(tokens) < longest * len(sources[n]))
            for n, tokens in batch
        ]
        labels = padded(rows, target.pad_token_id)
        given = np.pad(labels, [(0, 0), (1, 0)], constant_values=target.start_token_id)[:, :-1]
        encoded = padded([sources[n] for n, _ in batch], source.pad_token_id)
        logits = np.asarray(translator.model([encoded, given]), "float64")
        log_probs = logits - np.log(np.exp(logits - 50).sum(-1, keepdims=True)) - 50
        picked = np.take_along_axis(log_probs, labels[..., None], -1)[..., 0]
        sums += [row[: len(tokens)].sum() for row, tokens in zip(picked, rows, strict=True)]
    return np.array(sums)


def padded(rows, pad):
    array = np.full((len(rows), max(map(len, rows))), pad, "int32")
    for filled, row in zip(array, rows, strict=True):
        filled[: len(row)] = row
    return array


def compare(translator, folder, name):
    """Returns the differences of all log-probs, the number of lines, and the lines that differ.

    Such a line is `(number, our pieces, our score, Marian's pieces, Marian's score)`.
    """
    lines = read_lines(folder / "test.en")
    outputs = list(read_outputs(folder / f"{name}.nbest"))
    found = sums_of_log_probs(translator, lines, [output[:2] for output in outputs])
    differences = np.abs(found - [output[2] for output in outputs])
    best = {number: (pieces, score) for number, pieces, _, score in reversed(outputs)}
    differing = []
    for number, (ours,) in enumerate(translator(lines, n_best=1, **settings_of(name))):
        pieces = [token for token in ours.tokens if token != END]
        theirs, score = best[number]
        if pieces != theirs:
            score = sum(ours.log_probs) if name == "greedy" else ours.score, score
            differing.append((number, pieces, score[0], theirs, score[1]))
    return differences, len(lines), differing


def print_comparison(folder, is_detailed):
    import keras_transformer as kt

    translator = kt.import_model(folder, print_fn=lambda line: print(f"  {line}"))
    for path in sorted(folder.glob("*.nbest")):
        differences, count, differing = compare(translator, folder, path.stem)
        better = sum(ours > theirs for _, _, ours, _, theirs in differing)
        print(
            f"{folder.name} {path.stem}: {count - len(differing)} of {count} texts equal, {better} "
            f"of the others with a higher score here; {len(differences)} log-probs differ by at "
            f"most {differences.max():.2g}, median {np.median(differences):.2g}"
        )
        for number, ours, our_score, theirs, score in differing if is_detailed else ():
            print(
                f"  {number}: {our_score:.5f} {' '.join(ours)}\n     {score:.5f} {' '.join(theirs)}"
            )


def print_times(folder, path, python):
    """Seconds of both programs on one core, with the model's settings, loading not counted."""
    import keras_transformer as kt

    translator = kt.import_model(folder, print_fn=lambda line: None)
    lines = read_lines(path)
    translator(lines)  # traces
    start = time.perf_counter()
    translator(lines)
    print(f"{folder.name}: {len(lines)} lines, ours {time.perf_counter() - start:.1f} s")
    if python:
        (decoder,) = folder.glob("*decoder.yml")
        options = ["-c", str(decoder), "--mini-batch", "64", "--maxi-batch", "100"]
        options += [
            "--maxi-batch-sort",
            "src",
            "--cpu-threads",
            "1",
            "-w",
            "500",
            "--no-spm-decode",
        ]
        with tempfile.TemporaryDirectory() as temporary:
            given, out = f"{temporary}/given", f"{temporary}/out"
            tokens = translator.source_tokenizer.vocabulary
            rows = translator.source_tokenizer.encode(lines)
            is_plain = any(folder.glob("*.spm")) and not (folder / "source.spm").is_file()
            pieces = (" ".join(tokens[i] for i in row) for row in rows)
            pathlib.Path(given).write_text("\n".join(lines if is_plain else pieces) + "\n", "utf-8")
            command = ["decode", *options, "-i", given, "-o", out]
            code = f"import _pymarian; _pymarian.main({command!r})"
            ran = subprocess.run(
                [python, "-c", code], capture_output=True, text=True, env=os.environ | ONE_CORE
            )
            print(*re.findall(r"Total time: ([\d.]+)s", ran.stderr + ran.stdout), "s Marian")


if __name__ == "__main__":
    arguments = parse()
    if arguments.lines:  # before TensorFlow starts its threads, which keep their cores
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in arguments.folders:
        print_comparison(name, arguments.texts)
        if arguments.lines:
            print_times(name, arguments.lines, arguments.marian)
