"""Notebooks run in a fresh kernel, show what they say, and are stored with what they show."""

import base64
import copy
import io
import itertools
import pathlib
import re

import nbformat
import numpy as np
import pytest

from scripts.store_notebooks import code_cells, execute, pattern_of, tidy

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^()\s]+)\)")
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


@every_notebook
def test_stored_notebook_is_whole_tidy_and_small(path):
    notebook = read(path)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert tidy(copy.deepcopy(notebook)) == notebook, "run scripts/store_notebooks.py"
    assert not any(output.output_type == "error" for cell in cells for output in cell.outputs)
    assert path.stat().st_size < 300_000
    # Ids that say what a cell is for, and stay what they are when it is edited.
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id) for cell in notebook.cells)
    first, install = code_cells(read(NOTEBOOKS[0]))[0], cells[0]
    assert install.id == "install" and install.source == first.source and not install.outputs


@every_notebook
def test_links_of_notebook_lead_somewhere(path):
    texts = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    headings = re.findall(r"^#+ (.+)$", "\n".join(texts), flags=re.MULTILINE)
    anchors = {"#" + heading.replace(" ", "-") for heading in headings}
    for target in itertools.chain.from_iterable(map(LINK.findall, texts)):
        if target.startswith("#"):
            assert target in anchors
        elif not target.startswith("https://"):
            assert (path.parent / target.partition("#")[0]).is_file(), target


@pytest.mark.long
@pytest.mark.tensorflow_only
@every_notebook
def test_notebook_shows_what_it_says(path, tmp_path):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    stored = read(path)
    executed = tidy(execute(copy.deepcopy(stored), here, TMPDIR=str(temporary), MPLBACKEND=""))
    assert not list(here.iterdir()), "files are written beside the notebook"
    for before, after in zip(code_cells(stored), code_cells(executed), strict=True):
        assert pattern_of(before) == pattern_of(after), before.id
    for notebook in (stored, executed):
        CHECKS[path.stem]({cell.id: cell for cell in code_cells(notebook)})


def text_of(cell):
    outputs = [output for output in cell.outputs if output.output_type == "stream"]
    return "".join(output.text for output in outputs if output.name == "stdout")


def pictures_of(cell):
    from matplotlib.image import imread

    pngs = [output.data.get("image/png") for output in cell.outputs if "data" in output]
    return [imread(io.BytesIO(base64.b64decode(png))) for png in pngs if png is not None]


def require_pictures(cells, *names):
    """Each of these cells, and no other, draws one picture that is not blank."""
    assert {name for name, cell in cells.items() if pictures_of(cell)} == set(names)
    for name in names:
        (picture,) = pictures_of(cells[name])
        assert np.unique(picture).size > 2, name


def numbers_of(cell):
    """The first number after the colon of each line, by the text before it."""
    number = r"(\d[\d.]*(?:e[-+]?\d+)?)(%?)"
    lines = re.findall(rf"^\s*(.+?):.*?{number}", text_of(cell), re.MULTILINE)
    return {name: float(digits) / (100 if percent else 1) for name, digits, percent in lines}


def check_translate_numbers(cells):
    require_pictures(
        cells,
        "three-kinds-picture",
        "mask-pictures",
        "positions-picture",
        "learning-curve",
        "attention-picture",
    )

    # The decoder's outputs before the token that was changed, and from there on.
    changes = re.search(r"position: \[(.*)\]", text_of(cells["shape-decoder"]))[1].split()
    assert [float(change) > 0 for change in changes] == [False, False, False, True, True]

    accuracy = re.search(r"held-out accuracy: ([\d.]+)", text_of(cells["accuracy-by-magnitude"]))
    assert float(accuracy[1]) >= 0.9

    answers = re.findall(r"^    (.*?)(?:   should be .*)?$", text_of(cells["translate"]), re.M)
    served = text_of(cells["second-process"]).splitlines()
    assert served[:3] == answers[:3]
    assert served[-1] == "The same as here: True"


def check_your_own_text(cells):
    require_pictures(cells, "curves")
    assert "'1965-03-07', '2015-07-28'" in text_of(cells["translate"])
    assert numbers_of(cells["evaluate"])["exact match"] >= 0.8


def check_why_attention(cells):
    require_pictures(cells, "gradients", "waiting", "learning", "scores")
    gradients = numbers_of(cells["gradients"])
    assert gradients["convolutional"] == 0 < gradients["recurrent"] < gradients["self-attention"]
    learned, scores = numbers_of(cells["learning"]), numbers_of(cells["scores"])
    assert learned["self-attention"] > 0.9 > 0.5 > learned["recurrent"]
    assert learned["convolutional"] < 0.3
    assert scores["scaled"] > 0.9 < scores["additive"] and scores["unscaled"] < 0.6


def check_one_layer(cells):
    require_pictures(cells, "series-picture", "text-attention", "image-picture")
    errors = numbers_of(cells["series-picture"])
    assert errors["two EncoderBlocks"] < 0.8 * errors["extend the last line"]
    assert "before position 40: 0.0\n" in text_of(cells["series-causal"])
    assert "changes: True" in text_of(cells["series-causal"])
    right = numbers_of(cells["text-model"])
    assert right["mean of embeddings"] < 0.7 and right["with two EncoderBlocks"] > 0.8
    first, second = re.findall(r"\d\.\d+", text_of(cells["text-attention"]))
    assert first == second
    assert int(re.match(r"\d+", text_of(cells["image-model"]))[0]) > 70
    backends = text_of(cells["backends"])
    assert all(name in backends for name in ("tensorflow", "jax", "torch"))
    assert "False" not in backends


def check_several_devices(cells):
    require_pictures(cells, "differences")
    differences = numbers_of(cells["differences"])
    keras_on_two = differences.pop("Keras's fit, two devices")
    assert len(differences) == 3 and max(differences.values()) < 1e-5
    assert keras_on_two > 1e-3


def check_serve_and_look_inside(cells):
    require_pictures(cells, "heads", "rollout-picture", "tree-picture")
    assert int(re.match(r"\d+", text_of(cells["train"]))[0]) > 70
    assert "was imported: False" in text_of(cells["second-process"])
    assert text_of(cells["second-process"]).endswith("The same as here: True\n")
    scores = [
        float(score) for score in re.findall(r"^ *(-\d\.\d{3})  ", text_of(cells["n-best"]), re.M)
    ]
    assert len(scores) == 4 and scores == sorted(scores, reverse=True)
    assert "score = sum / penalty: True" in text_of(cells["n-best"])


def check_not_a_translation(cells):
    require_pictures(cells, "look")
    assert float(re.match(r"WER ([\d.]+)", text_of(cells["held"]))[1]) < 5
    total, wrong = re.match(r"([\d,]+) numerals, (\d+) wrong", text_of(cells["all"])).groups()
    assert total == "3,999" and int(wrong) < 200


# What a notebook must show, by its name; one that is not here fails.
CHECKS = {
    "01_translate_numbers": check_translate_numbers,
    "02_your_own_text": check_your_own_text,
    "03_why_attention": check_why_attention,
    "04_one_layer": check_one_layer,
    "05_several_devices": check_several_devices,
    "06_serve_and_look_inside": check_serve_and_look_inside,
    "07_not_a_translation": check_not_a_translation,
}

SIGNAL = """
import os, threading, time

def send():
    while not (folder / "run/checkpoints/checkpoint-{update:08}.npz").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), {number})

threading.Thread(target=send, daemon=True).start()
"""


@pytest.mark.long
@pytest.mark.tensorflow_only
def test_kept_notebook_that_is_interrupted_and_killed_shows_the_same(tmp_path):
    """Ctrl-C, the cell again as its error says, SIGKILL of the kernel, then to its end."""
    from nbclient.exceptions import DeadKernelError

    (notebook,) = (read(path) for path in NOTEBOOKS if path.stem == "02_your_own_text")
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    at = next(n for n, cell in enumerate(notebook.cells) if cell.id == "fit")
    assert "epochs=14" in notebook.cells[at].source, "as long as the other test, and no more"
    notebook.cells[at].source = notebook.cells[at].source.replace("epochs=14", "epochs=3")

    def shown(folder):
        executed = execute(copy.deepcopy(notebook), tmp_path, TMPDIR=str(tmp_path / folder))
        cells = {cell.id: cell for cell in code_cells(executed)}
        return cells["fit"], text_of(cells["history"]) + text_of(cells["translate"])

    pressed, again = copy.deepcopy(notebook), copy.deepcopy(notebook.cells[at])
    pressed.cells[at].metadata["tags"] = ["raises-exception"]
    again.id = "fit-again"
    stop, kill = (
        nbformat.v4.new_code_cell(SIGNAL.format(update=update, number=number))
        for update, number in ((20, 2), (60, 9))
    )
    pressed.cells[at : at + 1] = [stop, pressed.cells[at], kill, again]
    with pytest.raises(DeadKernelError):
        execute(pressed, tmp_path, TMPDIR=str(tmp_path / "killed"))
    (interrupted,) = (cell for cell in pressed.cells if cell.id == "fit")
    (error,) = (output for output in interrupted.outputs if output.output_type == "error")
    assert error.ename == "TrainingInterrupted" and len(error.traceback) == 1
    assert "Run this cell again to go on." in error.traceback[0]
    (again,) = (cell for cell in pressed.cells if cell.id == "fit-again")
    assert "Resuming after" in text_of(again)
    fit, found = shown("killed")
    assert re.search(r"Resuming after \d+ updates, at epoch \d, batch \d+\.", text_of(fit))
    assert text_of(fit).count("- loss:") < 3
    assert found == shown("whole")[1] and found
