"""`keras-transformer verify` replays the examples."""

import json
import math
import shutil

import pytest

from tests.cli.small_run import cli


def verify(folder):
    ran = cli("verify", folder)
    return ran.exit_code, ran.output


@pytest.fixture
def changed(folder, tmp_path):
    """A function that changes the examples in a copy of the folder."""
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "examples.jsonl"

    def change(number, **fields):
        examples = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        examples[number] |= fields
        path.write_text("".join(f"{json.dumps(one)}\n" for one in examples), "utf-8")
        return copy

    return change


def test_examples_of_the_export_are_equal_also_behind_a_byte_order_mark(changed):
    copy = changed(0)
    for name in ("model_card.json", "examples.jsonl"):
        (copy / name).write_text("\ufeff" + (copy / name).read_text("utf-8"), "utf-8")
    assert verify(copy) == (0, "4 of 4 translations are equal; scores differ by 0.\n")


def test_differences_are_shown(changed):
    code, output = verify(changed(0, translation="EINE KATZE"))
    first, last = output.splitlines()
    assert code == 1 and last.startswith("3 of 4 translations are equal")
    assert first.startswith("'twenty-one': expected 'EINE KATZE', received '")


@pytest.mark.parametrize(("more", "code"), [(0.00005, 0), (0.001, 1), (math.nan, 1)])
def test_scores_may_differ_by_one_ten_thousandth(changed, folder, more, code):
    first = json.loads((folder / "examples.jsonl").read_text("utf-8").splitlines()[0])
    score = None if math.isnan(more) else first["score"] + more
    assert verify(changed(0, score=score))[0] == code


def test_folders_without_examples_are_told(changed, tmp_path):
    code, output = verify(tmp_path)
    assert code == 2 and "A folder that `keras-transformer export` wrote is needed" in output
    folder = changed(0)
    for line, named in (
        ('{"text": "a"}', "Line 1 of"),
        ('{"text": 1, "translation": "A", "score": 0}', "Line 1 of"),
        ('{"text": "a", "translation": "A", "score": "0"}', "Line 1 of"),
    ):
        (folder / "examples.jsonl").write_text(f"{line}\n")
        code, output = verify(folder)
        assert code == 2 and named in output
    (folder / "examples.jsonl").unlink()
    code, output = verify(folder)
    assert code == 2 and "examples.jsonl" in output
