"""A file that was begun, by this version or the one before, goes on, or is refused in one line."""

import hashlib
import io
import json

import pytest

from keras_transformer.cli.journal import Journal
from keras_transformer.lock import RunInUseError
from keras_transformer.texts import read_chunks

INPUT = b"one\ntwo\nthree\n"
# As version 0.1.0 wrote it after two lines.
STATE = {"lines": 2, "read": 8, "written": 8, "settings": {"n_best": 1, "mbr": [None, "chrf"]}}
STATE["input"] = hashlib.sha256(b"one\ntwo\n").hexdigest()


@pytest.fixture
def begun(tmp_path):
    """A file whose process was killed in the middle of its third line."""
    (tmp_path / "out.json").write_text(json.dumps(STATE))
    (tmp_path / "out").write_text("ONE\nTWO\nTHR")
    return tmp_path / "out"


def opened(path, **options):
    return Journal(path, STATE["settings"]).opened(io.BytesIO(INPUT), **options)


def test_file_goes_on_and_another_process_is_refused(begun):
    stream = io.BytesIO(INPUT)
    end = begun.with_name("end")
    with Journal(begun, STATE["settings"]).opened(stream, moves_to=end) as journal:
        assert (journal.lines, begun.read_text()) == (2, "ONE\nTWO\n")
        with pytest.raises(RunInUseError, match="is writing this file"), opened(begun):
            pass
        for chunk in read_chunks(stream, journal.lines + 1):
            journal.append("THREE\n", chunk)
        state = {"lines": 3, "read": 14, "written": 14, "input": hashlib.sha256(INPUT).hexdigest()}
        assert json.loads((begun.with_name("out.json")).read_text()) == STATE | state
    assert end.read_text() == "ONE\nTWO\nTHREE\n"
    assert [path.name for path in begun.parent.iterdir()] == ["end"]


UNKNOWN = [None, "", "[1]", "{}", json.dumps(STATE | {"version": 9})]
UNKNOWN += [json.dumps(STATE | {"written": 12})]  # more than the file holds


@pytest.mark.parametrize("text", UNKNOWN)
def test_file_without_a_state_that_fits_is_refused_and_unchanged(begun, text):
    state = begun.with_name("out.json")
    state.unlink() if text is None else state.write_text(text)
    said = "out' must be unchanged .*'out.json' beside it.*11 bytes. Move it away, or delete it"
    with pytest.raises(ValueError, match=said), opened(begun):
        pass
    assert begun.read_text() == "ONE\nTWO\nTHR"
    begun.unlink()
    with opened(begun) as journal:
        assert journal.lines == 0
