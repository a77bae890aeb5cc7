"""Executes notebooks and stores their outputs in them.

    python scripts/store_notebooks.py notebooks/01_translate_numbers.ipynb ...

Run it after a change of a notebook, or of what it shows. tests/test_notebooks.py compares what is
stored with what a new execution shows.
"""

import argparse
import base64
import io
import os
import pathlib
import re
import tempfile

import nbformat
from nbclient import NotebookClient
from PIL import Image

# How long an epoch took, in the lines of `fit(verbose=2)`.
TIMES = re.compile(r" - \d+m?s - \d+m?s/(?:step|epoch)")
NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:e[-+]?\d+)?")


def execute(notebook, folder, **environment):
    """Runs all cells in a new kernel and returns the notebook; an error in a cell raises.

    Args:
        notebook: `NotebookNode`; its outputs are replaced.
        folder: path of the working directory of the kernel.
        **environment: variables of the kernel, in addition to those of this process.
    """
    for cell in code_cells(notebook):
        cell.outputs = []
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=os.environ | environment)
    return notebook


def code_cells(notebook):
    """Returns the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tidy(notebook):
    """Drops what differs from time to time: messages on stderr, times; and makes pictures small."""
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        outputs = []
        for output in cell.outputs:
            if output.output_type == "stream":
                if output.name == "stderr":
                    continue
                output.text = TIMES.sub("", output.text)
                if outputs and outputs[-1].output_type == "stream":
                    outputs[-1].text += output.text
                    continue
            elif "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
            outputs.append(output)
        cell.outputs = outputs
    return notebook


def smaller(png):
    """Returns a PNG in base64 with at most 64 colours, which charts do not need more of."""
    image = Image.open(io.BytesIO(base64.b64decode(png)))
    if image.mode == "P":  # done before
        return png
    file = io.BytesIO()
    image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return base64.b64encode(file.getvalue()).decode() + "\n"


def pattern_of(cell):
    """Returns what must be the same in each execution of a tidy cell.

    These are the kinds of its outputs, and their text without the numbers. A cell with the tag
    `varies` prints words that depend on the machine, such as the mistakes of a trained model: only
    the number of its lines must be the same.
    """
    varies = "varies" in cell.metadata.get("tags", [])
    pattern = []
    for output in cell.outputs:
        data = output.get("data", {})
        text = output.text if output.output_type == "stream" else data.get("text/plain", "")
        if "image/png" in data:
            text = ""  # the address or the size of the figure
        lines = NUMBER.sub("#", text).splitlines()
        words = len(lines) if varies else [" ".join(line.split()) for line in lines]
        pattern.append((output.output_type, sorted(data), words))
    return pattern


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="+", type=pathlib.Path)
    for path in parser.parse_args().notebooks:
        with tempfile.TemporaryDirectory() as folder:
            here, temporary = (pathlib.Path(folder, name) for name in ("here", "temporary"))
            here.mkdir()
            temporary.mkdir()
            notebook = nbformat.read(path, as_version=4)
            executed = execute(notebook, here, TMPDIR=str(temporary), MPLBACKEND="")
        nbformat.write(tidy(executed), path)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
