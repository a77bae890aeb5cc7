"""Atomic writes of files and folders: failing writes, concurrent readers, killed processes."""

import contextlib
import errno
import os
import shutil
import tempfile
import threading

import pytest

from keras_transformer.atomic_file import atomic_folder, atomic_path, restore_folder, write_text
from tests.kills import run_killed

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


def write_folder(path, content):
    """Writes a folder over what is at `path`, with one file in a subfolder."""
    with atomic_folder(path) as new:
        (new / "variables").mkdir()
        (new / "variables" / "data").write_text(content)


def contents_of(folder):
    """{name: content} of the folders that `write_folder` wrote."""
    return {path.name: (path / "variables" / "data").read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("path", ["served", "latest"])
def test_folder_is_replaced_and_nothing_else_is_left(tmp_path, path):
    (tmp_path / "latest").symlink_to("served")
    for content in ("old", "new"):
        write_folder(tmp_path / path, content)
        assert contents_of(tmp_path) == {"served": content, "latest": content}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("renames", [None, 0, 1, 2])
def test_exception_anywhere_leaves_the_old_folder(tmp_path, monkeypatch, error, renames):
    """In the block, and at each rename: the new one in vain, the old one, the new one."""
    write_folder(tmp_path / "served", "old")
    done = []

    def rename(source, target, rename=os.rename):
        done.append(target)
        if len(done) - 1 == renames:
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(error), atomic_folder(tmp_path / "served") as new:
        (new / "half").touch()
        if renames is None:
            raise error
    assert contents_of(tmp_path) == {"served": "old"}


def test_folders_that_others_move_to_the_path_in_between_are_replaced(tmp_path, monkeypatch):
    """What loads the folder restores the old one between the renames; another export moves in."""
    write_folder(tmp_path / "served", "old")
    others = [lambda: restore_folder(tmp_path / "served")]
    others.append(lambda: write_folder(tmp_path / "served", "other"))

    def rename(source, target, rename=os.rename):
        rename(source, target)
        if source.name == "served" and others:
            others.pop(0)()

    monkeypatch.setattr(os, "rename", rename)
    write_folder(tmp_path / "served", "new")
    assert not others and contents_of(tmp_path) == {"served": "new"}


def test_reader_finds_one_whole_folder_or_none(tmp_path):
    """A thread loads while two others export; the last export stays."""
    path, is_over, seen = tmp_path / "served", threading.Event(), set()
    write_folder(path, "a 0")

    def read():
        while not is_over.is_set():
            with contextlib.suppress(FileNotFoundError):
                seen.add((restore_folder(path) / "variables" / "data").read_text())

    def export(name):
        for number in range(100):
            write_folder(path, f"{name} {number}")

    reader = threading.Thread(target=read)
    exports = [threading.Thread(target=export, args=[name]) for name in "ab"]
    for thread in (reader, *exports):
        thread.start()
    for thread in exports:
        thread.join()
    is_over.set()
    reader.join()
    assert len(seen) > 1 and seen <= {f"{name} {number}" for name in "ab" for number in range(100)}
    ((name, content),) = contents_of(tmp_path).items()
    assert name == "served" and content in ("a 99", "b 99")


EXPORT = """
import pathlib, sys
from keras_transformer.atomic_file import atomic_folder

with atomic_folder(pathlib.Path(sys.argv[1], "served")) as new:
    (new / "variables").mkdir()
    (new / "variables" / "data").write_text("new")
"""


@pytest.fixture(params=[("os.rename", 1), ("os.rename", 2), ("os.rename", 3), ("shutil.rmtree", 1)])
def killed(request, tmp_path):
    """A folder whose export was killed, and what has to be there."""
    write_folder(tmp_path / "served", "old")
    run_killed(EXPORT, [tmp_path], *request.param)
    is_between = request.param == ("os.rename", 3)
    assert (tmp_path / "served").exists() == (not is_between)
    if is_between:
        (staging,) = tmp_path.glob(".served-????????")
        assert sorted(path.name for path in staging.iterdir()) == ["new", "old0"]
    return tmp_path, "new" if request.param[0] == "shutil.rmtree" else "old"


def test_after_a_kill_at_any_rename_the_folder_is_restored(killed):
    folder, expected = killed
    restore_folder(folder / "served")
    assert (folder / "served" / "variables" / "data").read_text() == expected


def test_after_a_kill_the_next_export_takes_the_place(killed):
    place = killed[0] / "served"
    write_folder(place, "newer")
    assert (place / "variables" / "data").read_text() == "newer"
    shutil.rmtree(place)
    assert not restore_folder(place).exists(), "what a user deletes stays deleted"


def test_folder_of_another_name_is_not_taken_for_the_lost_one(tmp_path):
    for name in (".served-de-abcdefgh", ".served-abcdefg", "served-abcdefgh"):
        for part in ("new", "old0"):
            (tmp_path / name / part).mkdir(parents=True)
    assert not restore_folder(tmp_path / "served").exists()


def test_parent_that_cannot_be_written_is_named_in_one_line(tmp_path, monkeypatch):
    """Running as root, the tests may write everywhere."""

    def refuse(*arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system", "somewhere")

    (tmp_path / ".served-abcdefgh" / "new").mkdir(parents=True)
    (tmp_path / ".served-abcdefgh" / "old0").mkdir()
    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(FileNotFoundError, match="served' is missing.*/old0.*Rename it") as lost:
        restore_folder(tmp_path / "served")
    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(OSError, match="other could not be written: Read-only") as caught:
        write_folder(tmp_path / "other", "new")
    assert "\n" not in f"{lost.value}{caught.value}"
