"""Measures Table 1 of the paper: self-attention, recurrent and convolutional layers in one model.

    python benchmarks/why_attention.py                                # all but Multi30k
    python benchmarks/why_attention.py multi30k --data MULTI30K
    python benchmarks/why_attention.py --table
    python benchmarks/why_attention.py --plot

The models are those of layer_types/models.py: the same encoder-decoder with other layers in place
of self-attention, at equal parameters. The parts:

- `structure`: operations that cannot run side by side, the path of a gradient, its norm;
- `speed`: time of an update and of a translated sentence by length;
- `rates`: number names with three learning rates; each layer type keeps its best one;
- `numbers`: number names, three seeds;
- `scores`: number names with scaled, unscaled and additive attention, three seeds;
- `multi30k`: Multi30k, English to German, scored on the validation split.

Everything runs on one thread. The results are in layer_types/results/*.json. What is there is not
measured again, so the command may be interrupted. `--table` prints them, `--plot` draws the
pictures of the page "Why attention".
"""

import argparse
import os
import pathlib

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["OMP_NUM_THREADS"] = "1"

import tensorflow as tf
from layer_types import quality, report, results, speed, structure


def works_of(part, arguments):
    """Returns what a part measures: functions by key."""
    if part == "structure":
        return structure.structure_works()
    if part == "speed":
        return speed.speed_works()
    rates = results.read("rates")
    if part == "rates":
        return quality.rate_works()
    if part == "numbers":
        return quality.number_works(rates)
    if part == "scores":
        return quality.score_works(rates)
    return quality.multi30k_works(arguments.data, arguments.seeds)


PARTS = ("structure", "speed", "rates", "numbers", "scores")  # without a corpus in files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "parts", nargs="*", default=PARTS, metavar="PART", help=", ".join((*PARTS, "multi30k"))
    )
    parser.add_argument("--data", type=pathlib.Path, help="folder of Multi30k, tokenized")
    parser.add_argument("--seeds", type=int, nargs="+", default=quality.SEEDS, help="of multi30k")
    parser.add_argument("--table", action="store_true", help="print what was measured")
    parser.add_argument("--plot", action="store_true", help="draw the pictures of the page")
    arguments = parser.parse_args()
    if arguments.table:
        print("\n\n".join(report.tables().values()))
    if arguments.plot:
        report.draw()
    if arguments.table or arguments.plot:
        return
    if unknown := {*arguments.parts} - {*PARTS, "multi30k"}:
        parser.error(f"There is no part {', '.join(unknown)}: see --help.")
    if "multi30k" in arguments.parts and arguments.data is None:
        parser.error("multi30k needs --data")
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    for part in arguments.parts:
        results.measure_missing(part, works_of(part, arguments))


if __name__ == "__main__":
    main()
