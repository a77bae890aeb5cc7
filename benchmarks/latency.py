"""Measures how long one sentence takes, strings to strings.

    python benchmarks/latency.py --run RUN --source SOURCE

A new process imports the package, loads the run and translates its first sentence; then each
sentence of the file is translated by our compiled search, by our search in the graph, and by
CTranslate2 with the same weights, in turns. All of them tokenize and detokenize, stop by the same
rule and rank by the same scores.

One thread. It needs `ctranslate2`. Linux only.
"""

import argparse
import pathlib
import subprocess
import sys
import time

from decode import is_installed, use_threads
from decode_peers.timing import print_row, progress

SEARCH = {
    "stopping": "first_beams",
    "length_penalty": "mean",
    "alpha": 0.6,
    "max_length": 256,
}
FIRST_CALLS = """
import time; began = time.perf_counter()
import keras_transformer
translator = keras_transformer.load_run({run!r})
loaded = time.perf_counter()
print(f"start and load: {{loaded - began:.1f}} s")
translator({line!r})
print(f"first call: {{time.perf_counter() - loaded:.3f}} s")
"""
BEAMS = (1, 4)
LENGTHS = (8, 16, 24, 32, 48)


def latency(arguments, lines):
    """Prints the time of the first call, then those of single sentences by library."""
    source = FIRST_CALLS.format(run=str(arguments.run), line=lines[0])
    print(subprocess.run([sys.executable, "-c", source], stdout=-1, text=True, check=True).stdout)
    import keras_transformer as kt

    by_xla = kt.load_run(arguments.run, **SEARCH)
    in_graph = kt.load_run(arguments.run, **SEARCH)
    began = time.perf_counter()
    for beam_size in BEAMS:
        by_xla.warm_up(LENGTHS, beam_size=beam_size)
    shapes = len(BEAMS) * len(LENGTHS)
    print(f"warm-up of {shapes} shapes: {time.perf_counter() - began:.0f} s\n")
    engines = {"ours, compiled": by_xla, "ours, graph": in_graph}
    if is_installed("ctranslate2"):
        engines["CTranslate2 float32"] = ctranslate2_engine(by_xla.model, arguments.run)
    print_row((4, 20, 8, 8, 8, 16), "beam", "", "p50, ms", "p99, ms", "same", "CTranslate2 / it")
    with progress(len(BEAMS)) as show:
        for beam_size in BEAMS:
            show(f"beam {beam_size}")
            report(beam_size, *measure(engines, lines, beam_size))


def measure(engines, lines, beam_size):
    """Returns the seconds of each line by engine, and the translations."""
    seconds = {name: [] for name in engines}
    texts = {name: [] for name in engines}
    for translate in engines.values():
        translate(lines[0], beam_size=beam_size)
    for line in lines:
        for name, translate in engines.items():
            began = time.perf_counter()
            text = translate(line, beam_size=beam_size)
            seconds[name].append(time.perf_counter() - began)
            texts[name].append(text)
    return seconds, texts


def report(beam_size, seconds, texts):
    import numpy as np

    first = next(iter(texts))
    peer = np.median(seconds.get("CTranslate2 float32", [np.nan]))
    for name, values in seconds.items():
        p50, p99 = np.percentile(values, (50, 99))
        same = np.mean([a == b for a, b in zip(texts[name], texts[first], strict=True)])
        cells = f"{p50 * 1e3:.1f}", f"{p99 * 1e3:.1f}", f"{same:.1%}", f"{peer / p50:.2f}"
        print_row((4, 20, 8, 8, 8, 16), beam_size, name, *cells)


def ctranslate2_engine(model, run):
    """Returns a function from a string to its translation, with the tokenizer of the run."""
    import sentencepiece
    from decode_peers.ctranslate2_engine import CTranslate2

    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(run / "tokenizer.spm"))
    translator = CTranslate2(model, "float32", 1).translator
    end = str(model.config.end_token_id)

    def translate(line, beam_size):
        source = [*map(str, tokenizer.encode(line)), end]
        (result,) = translator.translate_batch(
            [source],
            beam_size=beam_size,
            length_penalty=SEARCH["alpha"],
            max_decoding_length=len(source) - 1 + 50,
            max_input_length=0,
        )
        return tokenizer.decode([int(token) for token in result.hypotheses[0]])

    return translate


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=pathlib.Path, required=True, help="folder of a trained run")
    parser.add_argument("--source", type=pathlib.Path, required=True, help="file of sentences")
    parser.add_argument("--lines", type=int, default=300, help="the first of the file")
    arguments = parser.parse_args()
    use_threads(1)
    from keras_transformer.data import read_lines

    lines = [line for line in read_lines(arguments.source) if line][: arguments.lines]
    latency(arguments, lines)


if __name__ == "__main__":
    main()
