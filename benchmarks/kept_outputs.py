"""Keeps the outputs behind the figures of the pages, in `benchmarks/outputs`.

`TASK/MODEL.txt.gz` has one output a line, in the order of the references. `scores.json` has its
figures, how they were made, and the SHA-256 of its lines and of the weights.
"""

import gzip
import hashlib
import json
import pathlib

import keras
from stamp import stamp

from keras_transformer.data.corpus import read_lines

OUTPUTS = pathlib.Path(__file__).parent / "outputs"
SCORES = OUTPUTS / "scores.json"


def read_scores():
    """Returns the entries of `scores.json`, by the names of their files without `.txt.gz`."""
    return json.loads(SCORES.read_text("utf-8")) if SCORES.exists() else {}


def read_output(name):
    """Returns the lines of a kept output."""
    with gzip.open(OUTPUTS / f"{name}.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def output_name(task, model, search):
    """Returns the name of an output, such as `"g2p/g2p-11-beam-5"`."""
    return f"{task}/{model}-{search.replace(' ', '-')}"


def keep_output(name, outputs, model, *, references, scores, pages, command, seed):
    """Writes outputs, and their entry of `scores.json`.

    Args:
        name: of the file, such as `"g2p/g2p-11-greedy"`.
        outputs: list of strings, one for each source.
        model: the model that gave them, or the ensemble.
        references: which ones `scores.py` compares them with, such as `"g2p/test"`; `None` if
            there are none here.
        scores: `{"figures": {metric: value}, "signature": text}`; a page shows these values.
        pages: names of the pages that show them.
        command: what trained the model and gave the outputs.
        seed: of the training, or `None` for an ensemble.
    """
    lines = "".join(f"{output}\n" for output in outputs).encode()
    path = OUTPUTS / f"{name}.txt.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(lines, mtime=0))
    entry = {
        "references": references,
        **scores,
        "pages": pages,
        "command": command,
        "seed": seed,
        **stamp(),
        "lines_sha256": hashlib.sha256(lines).hexdigest(),
        "weights_sha256": weights_sha256(model),
    }
    entries = dict(sorted((read_scores() | {name: entry}).items()))
    SCORES.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", "utf-8")


def keep_further(name, translate, files, *, search, model, scored, command, seed):
    """Translates files that have no references, and keeps the outputs, by a model scored before.

    Args:
        name: of the model, such as `"taught-14"`.
        translate: function of a list of sentences.
        files: paths; what stands before the first dot of a name is the folder of the outputs.
        search: the name of its search, for the name of the outputs.
        model: whose weights are hashed.
        scored: SHA-256 of the weights that were scored, else `None`.
        command, seed: as in `keep_output`.

    Raises:
        SystemExit: the weights are not those that were scored.
    """
    if weights_sha256(model) != scored:
        raise SystemExit(f"{name} must be the model that was scored. Its weights are others.")
    for file in files:
        text, *_ = file.name.partition(".")
        keep_output(
            output_name(text, name, search),
            translate(list(read_lines(file))),
            model,
            references=None,
            scores={"figures": {}},
            pages=[],
            command=f"{command} --further {file.name}",
            seed=seed,
        )


def weights_sha256(model):
    """Returns the SHA-256 of the weights of a model, one after the other, as they are in memory.

    Of an ensemble, those of one model after the other.
    """
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(keras.ops.convert_to_numpy(weight).tobytes())
    return digest.hexdigest()
