"""Notebooks are committed without outputs, run in a fresh kernel, and show what they say."""

import base64
import copy
import io
import itertools
import os
import pathlib
import re

import nbformat
import numpy as np
import pytest

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LINK = re.compile(r"\]\(([^()\s]+)\)")
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def cells_of(notebook, cell_type):
    return [cell for cell in notebook.cells if cell.cell_type == cell_type]


@every_notebook
def test_notebook_is_stored_without_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    for cell in cells_of(notebook, "code"):
        assert cell.outputs == [] and cell.execution_count is None, cell.id
    # Ids that say what a cell is for, and stay what they are when it is edited.
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", cell.id) for cell in notebook.cells)


@every_notebook
def test_links_of_notebook_lead_somewhere(path):
    texts = [cell.source for cell in cells_of(read(path), "markdown")]
    headings = re.findall(r"^#+ (.+)$", "\n".join(texts), flags=re.MULTILINE)
    anchors = {"#" + heading.replace(" ", "-") for heading in headings}
    for target in itertools.chain.from_iterable(map(LINK.findall, texts)):
        if target.startswith("#"):
            assert target in anchors
        elif not target.startswith("https://"):
            assert (path.parent / target).is_file(), target


@pytest.mark.long
@pytest.mark.tensorflow_only
@every_notebook
def test_notebook_shows_what_it_says(path, tmp_path):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    cells = execute(read(path), here, {"TMPDIR": str(temporary), "MPLBACKEND": ""})
    assert not list(here.iterdir()), "files are written beside the notebook"
    CHECKS[path.stem](cells)


def execute(notebook, folder, environment):
    """Runs all cells in a fresh kernel and returns them by id; a cell that fails raises."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | environment)
    return {cell.id: cell for cell in cells_of(notebook, "code")}


def text_of(cell):
    outputs = [output for output in cell.outputs if output.output_type == "stream"]
    return "".join(output.text for output in outputs if output.name == "stdout")


def pictures_of(cell):
    from matplotlib.image import imread

    pngs = [output.data.get("image/png") for output in cell.outputs if "data" in output]
    return [imread(io.BytesIO(base64.b64decode(png))) for png in pngs if png is not None]


def check_translate_numbers(cells):
    for name in (
        "three-kinds-picture",
        "mask-pictures",
        "positions-picture",
        "learning-curve",
        "attention-picture",
    ):
        (picture,) = pictures_of(cells[name])
        assert np.unique(picture).size > 2, name

    # The decoder's outputs before the token that was changed, and from there on.
    changes = re.search(r"position: \[(.*)\]", text_of(cells["shape-decoder"]))[1].split()
    assert [float(change) > 0 for change in changes] == [False, False, False, True, True]

    accuracy = re.search(r"held-out accuracy: ([\d.]+)", text_of(cells["accuracy-by-magnitude"]))
    assert float(accuracy[1]) >= 0.9

    answers = re.findall(r"^    (.*?)(?:   should be .*)?$", text_of(cells["translate"]), re.M)
    served = text_of(cells["second-process"]).splitlines()
    assert served[:3] == answers[:3]
    assert served[-1] == "The same as here: True"


def check_keep_a_run(cells):
    assert "'1965-03-07', '2015-07-28'" in text_of(cells["translate"])


# What a notebook must show, by its name; one that is not here fails.
CHECKS = {
    "01_translate_numbers": check_translate_numbers,
    "02_keep_a_run": check_keep_a_run,
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

    (notebook,) = (read(path) for path in NOTEBOOKS if path.stem == "02_keep_a_run")
    code = "".join(cell.source + "\n" for cell in cells_of(notebook, "code"))
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    at = next(n for n, cell in enumerate(notebook.cells) if cell.id == "fit")
    assert "epochs=10" in notebook.cells[at].source, "as long as the other test, and no more"
    notebook.cells[at].source = notebook.cells[at].source.replace("epochs=10", "epochs=3")

    def shown(folder):
        cells = execute(copy.deepcopy(notebook), tmp_path, {"TMPDIR": str(tmp_path / folder)})
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
        execute(pressed, tmp_path, {"TMPDIR": str(tmp_path / "killed")})
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
