"""Computes the figures of the kept outputs anew; exits 1 if one is not that of `scores.json`.

    python benchmarks/scores.py --data DATA

DATA has the published files, in the folders `sigmorphon_2020_g2p`, `scan`, `multi30k` and
`tatoeba_en_es`. Nothing is trained or translated. tests/test_kept_outputs.py compares the pages
with `scores.json`.
"""

import argparse
import pathlib
import sys
import tempfile
from functools import partial

import multi30k
import small_corpora
import symbols
from kept_outputs import read_output, read_scores


def scorers(data, folder):
    """Returns the function that scores outputs of each task; writes references into a folder."""
    found = {
        "multi30k": partial(multi30k.kept_scores, data=data / "multi30k"),
        "tatoeba": partial(small_corpora.kept_scores, data=data / "tatoeba_en_es"),
    }
    for task, (_, write, _) in symbols.TASKS.items():
        (folder / task).mkdir()
        write(data, folder / task)
        found[task] = partial(symbols.kept_scores, folder=folder / task)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the corpora")
    data = parser.parse_args().data
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(compare(scorers(data, pathlib.Path(folder))) > 0)


def compare(scorers):
    """Prints the figures of each kept output; returns how many outputs have others than kept."""
    different, entries = 0, read_scores()
    for name, kept in entries.items():
        references = kept["references"]
        if references is None:
            print(f"{name:32} has no references here")
            continue
        task, _ = references.split("/")
        found = scorers[task](references, read_output(name))
        differs = any(kept[key] != value for key, value in found.items())
        different += differs
        figures = {metric: f"{value:.2f}" for metric, value in found["figures"].items()}
        print(f"{name:32} {figures}", f"KEPT: {kept['figures']}" if differs else "equal")
    print(f"{different} of {len(entries)} differ")
    return different


if __name__ == "__main__":
    main()
