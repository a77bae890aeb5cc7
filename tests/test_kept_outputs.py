"""The outputs behind the figures of the pages: files, hashes, and what the pages say."""

import gzip
import hashlib
import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTPUTS = ROOT / "benchmarks" / "outputs"
SCORES = json.loads((OUTPUTS / "scores.json").read_text("utf-8"))
every_output = pytest.mark.parametrize("name", SCORES)


def test_every_file_has_an_entry():
    files = {str(path.relative_to(OUTPUTS)) for path in OUTPUTS.rglob("*.gz")}
    assert files == {f"{name}.txt.gz" for name in SCORES}


@every_output
def test_output_is_the_one_that_was_scored(name):
    lines = gzip.decompress((OUTPUTS / f"{name}.txt.gz").read_bytes())
    assert hashlib.sha256(lines).hexdigest() == SCORES[name]["lines_sha256"]
    assert lines.endswith(b"\n") and "\r" not in lines.decode("utf-8")


@every_output
def test_pages_show_the_figures(name):
    """In the order of `scores.json`, one after the other: `15.69, 3.27`."""
    figures = ", ".join(f"{value:.2f}" for value in SCORES[name]["figures"].values())
    for page in SCORES[name]["pages"]:
        assert figures in (ROOT / "docs" / "pages" / page).read_text("utf-8"), page
