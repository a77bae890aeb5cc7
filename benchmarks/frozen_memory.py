"""Measures the memory of a translator, frozen and not, for several sizes of the weights.

    python benchmarks/frozen_memory.py

Each row is a process of its own: it imports the package, loads a model, and translates eight lines
by four searches, each of which is a graph of its own. "load_run" is what `load_run` does. Memory is
`RssAnon`, that of mapped files `RssFile`, in MiB; the ratio is what was added since the import,
divided by the weights. Random weights. Linux only.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

from decode_peers.timing import print_row
from process_memory import memory_status

SIZES = {  # {MB of weights: fields of `TransformerConfig`}
    20: {"vocabulary_size": 340, "num_layers": 3, "hidden_dim": 256, "intermediate_dim": 1024},
    170: {"vocabulary_size": 340},
    300: {"vocabulary_size": 58_101},  # as OPUS-MT
}
MIB = 2**20
WIDTHS = 10, 8, 8, 8, 8, 8, 8, 8, 10


def build(folder, fields):
    """Writes a tokenizer and a model with random weights."""
    import keras_transformer as kt

    lines = [line for pair in kt.number_names("train", 500) for line in pair]
    kt.Tokenizer.train_on_lines(lines, 340, folder / "tokenizer.json")
    config = kt.TransformerConfig(num_heads=fields.get("hidden_dim", 512) // 64, **fields)
    kt.Transformer(config).save(folder / "model.keras")


def measure(folder, kind):
    """Prints a row: this process is only for it."""
    import keras_transformer as kt
    from keras_transformer.data import Tokenizer
    from keras_transformer.decoding.frozen import FrozenTransformer

    *_, size = folder.name.split("-")
    size = SIZES[int(size)]["vocabulary_size"]
    tokenizer = Tokenizer.from_sentencepiece(folder / "tokenizer.spm", vocabulary_size=size)
    memory = [memory_status("RssAnon")]
    model = kt.load_model(folder / "model.keras")
    weights = 4 * model.count_params()
    if kind == "load_run":
        model = FrozenTransformer(model)
    options = {"frozen": kind == "frozen", "max_length": 20}
    translate = kt.Translator(model, tokenizer, **options)
    del model
    memory += [memory_status("RssAnon")]
    for options in ({}, {"beam_size": 1}, {"n_best": 2}, {"target_prefix": "ein"}):
        translate(["seven hundred and one"] * 8, **options)
        memory += [memory_status("RssAnon")]
    ratios = [f"{(memory[call] - memory[0]) / weights:.1f}" for call in (2, -1)]
    shown = weights, *memory[:3], memory[-1], memory_status("RssFile")
    print_row(WIDTHS, kind, *(f"{number / MIB:.0f}" for number in shown), *ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", choices=SIZES, default=[*SIZES])
    parser.add_argument("--row", nargs=2, metavar=("FOLDER", "KIND"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        return measure(pathlib.Path(arguments.row[0]), arguments.row[1])
    titles = "weights", "before", "loaded", "1 call", "4 calls", "RssFile", "ratio", "ratio of 4"
    print_row(WIDTHS, "", *titles)
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory(suffix=f"-{size}") as folder:
            build(pathlib.Path(folder), SIZES[size])
            for kind in ("not frozen", "frozen", "load_run"):
                subprocess.run([sys.executable, __file__, "--row", folder, kind], check=True)
    return None


if __name__ == "__main__":
    main()
