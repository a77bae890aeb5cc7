"""A folder replaces another, whatever fails and whoever is killed."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from keras_transformer.export import folder


def model_folder(path, content):
    """What is moved: a folder with a file in a folder of it."""
    (path / "variables").mkdir(parents=True)
    (path / "variables" / "data").write_text(content)
    return path


def content_of(path):
    return (path / "variables" / "data").read_text()


@pytest.fixture(params=["exchange", "no exchange"])
def system(request, monkeypatch):
    """With what Linux can do, and without."""
    if request.param == "no exchange":
        monkeypatch.setattr(folder, "_exchange", lambda one, other: False)
    elif sys.platform != "linux":
        pytest.skip("needs renameat2")


def test_folder_is_replaced(system, tmp_path):
    path = model_folder(tmp_path / "served", "old")
    new = model_folder(tmp_path / ".served-1" / "new", "new")
    folder.replace_folder(new, path)
    assert content_of(path) == "new"
    assert {entry.name for entry in tmp_path.iterdir()} <= {"served", ".served-1"}


def test_folder_that_appears_meanwhile_is_replaced(system, tmp_path, monkeypatch):
    """Of two first exports to one path, the second finds the path taken when it renames."""
    path = model_folder(tmp_path / "served", "first")
    new = model_folder(tmp_path / ".served-1" / "new", "second")
    with monkeypatch.context() as patch:
        patch.setattr(folder.os.path, "lexists", lambda path: False)
        folder.replace_folder(new, path)
    assert content_of(path) == "second"


@pytest.mark.skipif(sys.platform != "linux", reason="needs renameat2")
def test_reader_finds_a_whole_model_at_every_moment(tmp_path):
    """It polls, from a thread, while folders replace each other a few hundred times."""
    path = model_folder(tmp_path / "served", "0")
    seen, missed, is_over = set(), [], threading.Event()

    def poll():
        while not is_over.is_set():
            try:
                # One look-up of the folder: what is opened below it is of the same model.
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
            folder.replace_folder(new, path)
            assert content_of(path) == str(number)
    finally:
        is_over.set()
        reader.join()
    assert not missed and seen == {"variables"}


KILLED = """
import os, pathlib, signal, sys
from keras_transformer.export import folder
rename, moves = os.rename, []
def rename_or_die(source, target):
    if len(moves) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    moves.append(target)
    rename(source, target)
os.rename = rename_or_die
folder._exchange = lambda one, other: False
here = pathlib.Path(sys.argv[1])
folder.replace_folder(here / ".served-x7" / "new", here / "served")
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
