"""Computes the figures of the kept outputs anew; exits 1 if one is not that of `scores.json`.

    python benchmarks/scores.py --data DATA

DATA has the published files, in the folders `sigmorphon_2020_g2p`, `scan` and `multi30k`. Nothing
is trained or translated. tests/test_kept_outputs.py compares the pages with `scores.json`.
"""

import argparse
import pathlib
import sys

import multi30k
import symbols
from kept_outputs import read_output, read_scores


def scores_of(references, outputs, data):
    """Returns the figures and signature of outputs, from references in the folder of the data."""
    if references.startswith("multi30k/"):
        return multi30k.kept_scores(references, outputs, data / "multi30k")
    return symbols.kept_scores(references, outputs, data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the corpora")
    data = parser.parse_args().data
    different = 0
    for name, kept in read_scores().items():
        found = scores_of(kept["references"], read_output(name), data)
        differs = any(kept[key] != value for key, value in found.items())
        different += differs
        figures = {metric: f"{value:.2f}" for metric, value in found["figures"].items()}
        print(f"{name:32} {figures}", f"KEPT: {kept['figures']}" if differs else "equal")
    print(f"{different} of {len(read_scores())} differ")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
