"""Atomic writes of files and folders: failing writes, concurrent readers, killed processes."""

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from keras_transformer import atomic_file
from keras_transformer.atomic_file import atomic_path, replace_folder, write_text

# Files.


@pytest.mark.parametrize("unique", [False, True])
def test_file_is_replaced_and_the_temporary_one_is_gone(tmp_path, unique):
    path = tmp_path / "model.keras"
    for content in ("old", "new"):
        with atomic_path(path, unique=unique) as partial:
            assert partial.parent == tmp_path and partial.suffix == ".keras"
            assert partial.name.startswith(".partial.")
            assert (str(os.getpid()) in partial.name) == unique
            partial.write_text(content)
        assert path.read_text() == content and os.listdir(tmp_path) == ["model.keras"]


@pytest.mark.parametrize("before", [None, "old"])
@pytest.mark.parametrize("error", [OSError("no such device"), ValueError, KeyboardInterrupt])
def test_any_exception_leaves_the_old_file_and_no_temporary_one(tmp_path, before, error):
    path = tmp_path / "report.json"
    if before:
        write_text(path, before)
    kind = error if isinstance(error, type) else type(error)
    with pytest.raises(kind), atomic_path(path) as partial:
        partial.write_text("half")
        raise error
    assert os.listdir(tmp_path) == ([path.name] if before else [])
    assert (path.read_text() if before else None) == before


@pytest.mark.parametrize("number, is_full", [(errno.ENOSPC, True), (errno.EIO, False)])
def test_error_names_the_path_and_the_reason(tmp_path, number, is_full):
    path = tmp_path / "report.json"
    with pytest.raises(OSError, match="report.json could not be written") as caught:
        with atomic_path(path) as partial:
            raise OSError(number, os.strerror(number), str(partial))
    assert caught.value.errno == number and os.strerror(number) in str(caught.value)
    assert ("Free space" in str(caught.value)) == is_full
    assert ".partial." not in str(caught.value)


def test_temporary_file_of_a_killed_process_is_replaced(tmp_path):
    (tmp_path / ".partial.a.txt").write_text("half of it, and longer")
    write_text(tmp_path / "a.txt", "grün")
    assert (tmp_path / "a.txt").read_bytes() == "grün".encode()
    assert os.listdir(tmp_path) == ["a.txt"]


# Folders.


def model_folder(path, content):
    """Writes a folder with one file in a subfolder."""
    (path / "variables").mkdir(parents=True)
    (path / "variables" / "data").write_text(content)
    return path


def content_of(path):
    return (path / "variables" / "data").read_text()


@pytest.fixture(params=["exchange", "no exchange"])
def system(request, monkeypatch):
    """A system that can exchange two paths in one step, and one that cannot."""
    if request.param == "no exchange":
        monkeypatch.setattr(atomic_file, "_exchange", lambda one, other: False)
    elif sys.platform != "linux":
        pytest.skip("needs renameat2")


def test_folder_is_replaced(system, tmp_path):
    path = model_folder(tmp_path / "served", "old")
    new = model_folder(tmp_path / ".served-1" / "new", "new")
    replace_folder(new, path)
    assert content_of(path) == "new" and content_of(new) == "old"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"served", ".served-1"}


def test_folder_that_another_process_wrote_in_the_meantime_is_replaced(
    system, tmp_path, monkeypatch
):
    """Of two first exports to one path, the second finds the path taken when it renames."""
    path = model_folder(tmp_path / "served", "first")
    new = model_folder(tmp_path / ".served-1" / "new", "second")
    with monkeypatch.context() as patch:
        patch.setattr(atomic_file.os.path, "lexists", lambda path: False)
        replace_folder(new, path)
    assert content_of(path) == "second"


def test_old_folder_is_restored_when_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    path = model_folder(tmp_path / "served", "old")
    new = model_folder(tmp_path / ".served-1" / "new", "new")
    rename = os.rename

    def failing_rename(source, target):
        if source == new:
            raise OSError(errno.EIO, "input/output error")
        rename(source, target)

    monkeypatch.setattr(atomic_file, "_exchange", lambda one, other: False)
    monkeypatch.setattr(atomic_file.os, "rename", failing_rename)
    with pytest.raises(OSError, match="input/output error"):
        replace_folder(new, path)
    assert content_of(path) == "old"


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
def test_reader_finds_a_whole_model_at_every_moment(tmp_path):
    """A thread polls while folders replace each other a few hundred times."""
    path = model_folder(tmp_path / "served", "0")
    seen, missed, is_over = set(), [], threading.Event()

    def poll():
        while not is_over.is_set():
            try:
                # One look-up of the folder: all that is opened below it belongs to one model.
                found = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError as error:
                missed.append(error)
                continue
            seen.update(os.listdir(found))
            os.close(found)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        for number in range(300):
            new = model_folder(tmp_path / f".served-{number}" / "new", str(number))
            replace_folder(new, path)
            assert content_of(path) == str(number)
    finally:
        is_over.set()
        reader.join()
    assert not missed and seen == {"variables"}


KILLED = """
import os, pathlib, signal, sys
from keras_transformer import atomic_file
rename, moves = os.rename, []
def rename_or_die(source, target):
    if len(moves) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    moves.append(target)
    rename(source, target)
os.rename = rename_or_die
atomic_file._exchange = lambda one, other: False
here = pathlib.Path(sys.argv[1])
atomic_file.replace_folder(here / ".served-x7" / "new", here / "served")
"""


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_kill_between_the_moves_leaves_the_old_model_where_it_can_be_found(tmp_path, moves):
    model_folder(tmp_path / "served", "old")
    model_folder(tmp_path / ".served-x7" / "new", "new")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(moves)])
    assert killed.returncode == -signal.SIGKILL
    found = {entry.name: content_of(entry) for entry in tmp_path.glob("served*")}
    expected = [
        {"served": "old"},
        {"served.old-x7": "old"},
        {"served": "new", "served.old-x7": "old"},
    ]
    assert found == expected[moves]
