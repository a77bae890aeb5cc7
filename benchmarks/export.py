"""Compares exported models with the translator they were made of, and feeds them hostile text.

    python benchmarks/export.py --run RUN --source SOURCE --reference REFERENCE --tokenized
    python benchmarks/export.py fuzz --run RUN

`equal` (the default), greedy and with a beam of 4, on all lines of a file: the translations of the
SavedModel, loaded by a new process without this package, are those of `Translator`; its n-best are
sorted and distinct and begin with the translation; its signature `score` gives their scores. Then
size, load, first request, speed and BLEU of the SavedModel, and of CTranslate2 in float32 and int8.
`fuzz`: 10,000 lines of any text to the SavedModel, in batches of 0 to 50: one row for each line,
valid UTF-8, a score or NaN.

One thread. It needs `ctranslate2`, `sentencepiece` and `hypothesis`.
"""

import argparse
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

from decode import use_threads
from decode_peers.timing import print_row, print_verdict, progress

BEAMS = (1, 4)
TIE = 1e-4
MOST_LOST = 0.3  # BLEU of int8
MOST_SIZE = 1.3
QUANTIZATIONS = {"float32": None, "int8": "int8"}
FUZZED = 10_000
SERVE = """
import json, sys, time
sys.modules["keras_transformer"] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
folder, lines = json.loads(sys.stdin.read())
began = time.perf_counter()
served = tf.saved_model.load(folder)
loaded = time.perf_counter()
served.serve(tf.constant(lines[:1]))
first = time.perf_counter()
served.serve(tf.constant(lines))
seconds = []
for _ in range(2):
    start = time.perf_counter()
    answer = served.serve(tf.constant(lines))
    seconds.append(time.perf_counter() - start)
n_best = served.translate_n_best(tf.constant(lines))
width = n_best["translations"].shape[1]
scored = served.score(tf.repeat(lines, width), tf.reshape(n_best["translations"], [-1]))
plain = lambda tensor: [v.decode() if isinstance(v, bytes) else v for v in tensor.numpy().tolist()]
print(json.dumps({
    "load": loaded - began, "first": first - loaded, "seconds": min(seconds),
    "translation": plain(answer["translation"]), "score": plain(answer["score"]),
    "texts": [plain(row) for row in n_best["translations"]],
    "scores": plain(n_best["scores"]), "lengths": plain(n_best["lengths"]),
    "log_prob": plain(scored["log_prob"]), "tokens": plain(scored["tokens"]),
}))
"""


def equal(arguments):
    """Prints what differs, and the table of engines."""
    import keras_transformer as kt
    from keras_transformer.data import read_lines

    lines = list(read_lines(arguments.source))
    references = list(read_lines(arguments.reference)) if arguments.reference else None
    widths = (4, 22, 8, 8, 10, 10, 8)
    print_row(widths, "beam", "", "MB", "load, s", "first, s", "lines/s", "BLEU")
    with progress(len(BEAMS)) as show, tempfile.TemporaryDirectory() as folder:
        for beam_size in BEAMS:
            show(f"beam {beam_size}")
            translator = kt.load_run(arguments.run, beam_size=beam_size)
            path = kt.export_saved_model(translator, pathlib.Path(folder, f"saved_{beam_size}"))
            served = ask([str(path), lines])
            engines = {"SavedModel": {"path": path} | served}
            for name, quantization in QUANTIZATIONS.items():
                path = pathlib.Path(folder, f"{name}_{beam_size}")
                kt.export_ctranslate2(translator, path, quantization)
                engines[f"CTranslate2 {name}"] = run_ctranslate2(path, lines, beam_size)
            bleus = {}
            for name, engine in engines.items():
                texts = engine["translation"]
                if references:
                    score = kt.evaluation.bleu(texts, references, tokenized=arguments.tokenized)
                    bleus[name] = score.value
                numbers = engine["load"], engine["first"], len(lines) / engine["seconds"]
                cells = [f"{size_of(engine['path']):.2f}", *(f"{n:,.2f}" for n in numbers)]
                print_row(widths, beam_size, name, *cells, f"{bleus.get(name, math.nan):.2f}")
            if references:
                lost = bleus["CTranslate2 float32"] - bleus["CTranslate2 int8"]
                print_verdict(lost <= MOST_LOST, f"int8 loses {lost:.2f} BLEU")
            expected = translator(lines, n_best=beam_size)
            compare(expected, served, lines)
            judge_n_best(translator, expected, served)
            weights = translator.model.count_params() * 4 / 1e6
            tokenizers = sum(file.stat().st_size for file in path.glob("*.spm")) / 1e6
            ratio = size_of(engines["SavedModel"]["path"]) / (weights + tokenizers)
            what = f"the folder is {ratio:.3f} x {weights:.2f} MB of weights and {tokenizers:.2f}"
            print_verdict(ratio <= MOST_SIZE, f"{what} of the tokenizer")


def ask(request):
    ran = subprocess.run(
        [sys.executable, "-P", "-c", SERVE],
        input=json.dumps(request),
        stdout=-1,
        text=True,
        check=True,
    )
    return json.loads(ran.stdout)


def run_ctranslate2(path, lines, beam_size):
    """As `SERVE`: times and translations of an engine that has only the exported folder."""
    import unicodedata

    import ctranslate2
    import sentencepiece

    from keras_transformer.data.tokenizer_file import exported_paths

    began = time.perf_counter()
    engine = ctranslate2.Translator(str(path), inter_threads=1, intra_threads=1)
    models = [str(file.with_suffix(".spm")) for file in exported_paths(path)]
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=models[side]) for side in (0, -1)
    )

    def translate(lines):
        pieces = [source.encode(unicodedata.normalize("NFC", line), out_type=str) for line in lines]
        found = engine.translate_batch(
            pieces, beam_size=beam_size, length_penalty=0.6, max_batch_size=64, max_input_length=0
        )
        return [target.decode(one.hypotheses[0]) for one in found]

    loaded = time.perf_counter()
    translate(lines[:1])
    first = time.perf_counter()
    texts = translate(lines)
    seconds = time.perf_counter() - first
    times = {"load": loaded - began, "first": first - loaded, "seconds": seconds}
    return {"path": path, "translation": texts} | times


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("*")) / 1e6


def compare(expected, served, lines):
    """Prints the lines whose translations differ, and whether all of them are ties."""
    ties = differ = 0
    rows = zip(expected, served["translation"], served["score"], strict=True)
    for number, ((best, *_), text, score) in enumerate(rows, start=1):
        if text != best.text:
            is_tie = abs(best.score - score) <= TIE
            ties, differ = ties + is_tie, differ + 1
            what = "a tie" if is_tie else "NO TIE"
            print(f"line {number}: scores {best.score:.6f} and {score:.6f}, {what}")
    what = f"{len(lines) - differ} of {len(lines)} translations equal those of Translator"
    print_verdict(ties == differ, f"{what}, {ties} of the others ties")


def judge_n_best(translator, expected, served):
    """Prints whether the n-best are sorted, distinct and scored alike."""

    from keras_transformer.decoding.scores import penalties_up_to

    rows = list(zip(served["texts"], served["scores"], served["translation"], strict=True))
    is_sorted = all(scores == sorted(scores, reverse=True) for _, scores, _ in rows)
    is_first = sum(texts[0] == best for texts, _, best in rows)
    found = [texts[: len(one)] for one, (texts, _, _) in zip(expected, rows, strict=True)]
    repeated = sum(len(texts) - len(set(texts)) for texts in found)
    what = f"n-best sorted; {is_first} begin with the translation; {repeated} texts are repeated"
    print_verdict(is_sorted and is_first == len(rows) and not repeated, what)
    tokenizer = translator.target_tokenizer
    differences = []
    scored = iter(zip(served["log_prob"], served["tokens"], strict=True))
    for hypotheses, (texts, scores, _) in zip(expected, rows, strict=True):
        for rank, (text, score) in enumerate(zip(texts, scores, strict=True)):
            log_prob, length = next(scored)
            if rank >= len(hypotheses):
                continue  # missing
            tokens = [tokenizer.vocabulary[token_id] for token_id in tokenizer.encode(text)]
            # The text of some hypotheses has other tokens than the search found.
            if tokens == hypotheses[rank].tokens[:-1]:
                given = log_prob / float(penalties_up_to(length, translator.settings)[length])
                differences.append(abs(given - score))
    what = f"`score` gives the scores of {len(differences)} n-best whose text has their tokens"
    print_verdict(max(differences) <= TIE, f"{what}, within {max(differences):.1e}")


def fuzz(arguments):
    """Prints whether every line of any text has its row."""
    import hypothesis
    import tensorflow as tf
    from hypothesis import strategies

    import keras_transformer as kt

    special = [
        "<s>",
        "</s>",
        "<pad>",
        "<unk>",
        "▁",
        "\0",
        "\u202e",
        "👩‍👩‍👧",
        "שלום",
        "é" * 50,
        "\ud83d",
    ]
    text = strategies.one_of(
        strategies.text(max_size=200).map(lambda line: line.encode("utf-8", "surrogatepass")),
        strategies.lists(strategies.sampled_from(special), max_size=20).map(
            lambda parts: " ".join(parts).encode("utf-8", "surrogatepass")
        ),
        strategies.binary(max_size=100),
        strategies.integers(1, 100).map(lambda number: b"word " * number),
    )
    translator = kt.load_run(arguments.run, beam_size=2)
    wrong, asked = [], 0
    with tempfile.TemporaryDirectory() as folder:
        served = tf.saved_model.load(str(kt.export_saved_model(translator, folder + "/served")))

        @hypothesis.settings(max_examples=100, deadline=None, database=None)
        @hypothesis.given(strategies.lists(text, max_size=50))
        def translate(lines):
            nonlocal asked
            asked += len(lines)
            answer = served.serve(tf.constant(lines, tf.string))
            texts, scores = (answer[name].numpy() for name in ("translation", "score"))
            is_right = len(texts) == len(scores) == len(lines) and all(map(is_utf8, texts))
            if not is_right:
                wrong.append(lines)

        with progress(1) as show:
            show("any text")
            while asked < FUZZED:
                hypothesis.seed(asked)(translate)()
    print_verdict(not wrong, f"{asked:,} lines, {len(wrong)} requests with a wrong answer")
    for lines in wrong[:5]:
        print(repr(lines)[:300])


def is_utf8(text):
    try:
        return text.decode("utf-8") is not None
    except UnicodeDecodeError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", nargs="?", choices=("equal", "fuzz"), default="equal")
    parser.add_argument("--run", type=pathlib.Path, required=True, help="folder of a trained run")
    parser.add_argument("--source", help="equal: file of sentences")
    parser.add_argument("--reference", help="equal: file of their translations, for BLEU")
    parser.add_argument("--tokenized", action="store_true", help="equal: the files are tokenised")
    arguments = parser.parse_args()
    if arguments.measure == "equal" and not arguments.source:
        parser.error("equal needs --source")
    use_threads(1)
    {"equal": equal, "fuzz": fuzz}[arguments.measure](arguments)


if __name__ == "__main__":
    main()
