"""The run folder: only files of the run are replaced, by one process at a time."""

import contextlib
import json
import threading

import pytest

from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe

RECIPE = Recipe.load("number_names").to_yaml()


def make(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def tree(folder):
    """{path: content} of all files, and folders."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


# The files of `train`, with and without the manifest.
UNLISTED = {
    "config.yaml": RECIPE,
    "tokenizer.model": "",
    "model.keras": "",
    "history.csv": "",
    "checkpoints/checkpoint-00000010.npz": "",
    "checkpoints/checkpoint-00000020.npz.corrupt": "",
    "checkpoints/.partial.checkpoint-00000040.npz": "",
    ".partial.history.csv": "",
    ".partial.41.history.csv": "",
    ".partial.model.unzipped/model.weights.h5": "",
    "logs/train/events.out.tfevents.17.host": "",
    "logs/validation/events.out.tfevents.17.host": "",
}
MANIFEST = {"made_by": "keras_transformer", "files": [*list(UNLISTED)[:4], "curves.png"]}
RUN = UNLISTED | {"run.json": json.dumps(MANIFEST), "curves.png": ""}
FOREIGN = {
    "notes.txt": "mine",
    "positions.png": "mine",
    "checkpoints/checkpoint-1.npz": "mine",
    "checkpoints/best/weights.h5": "mine",
    "logs/error.log": "mine",
}


@pytest.mark.parametrize(
    "files",
    [
        {"model.keras": "mine"},
        UNLISTED,
        {"logs/error.log": "mine"},
        {".hidden": "mine"},
        {"run.json": '{"made_by": "someone", "files": []}'},
        {"run.json": "[1]", "model.keras": "mine"},
    ],
    ids=lambda files: "+".join(list(files)[:2]),
)
def test_folder_of_something_else_is_refused(tmp_path, files):
    make(tmp_path, files)
    with pytest.raises(ValueError, match="must be the folder of a run, or a new or empty") as error:
        RunFolder(tmp_path).check()
    assert next(iter(files)).split("/")[0] in str(error.value)
    file = make(tmp_path, {"file": ""}) / "file"
    with pytest.raises(ValueError, match="must be a folder"):
        RunFolder(file).check()


def test_refused_folder_is_told_by_its_first_files(tmp_path):
    make(tmp_path, dict.fromkeys("fbdaec", "mine"))
    with pytest.raises(ValueError, match="which holds a, b, c, d and 2 more. Choose another"):
        RunFolder(tmp_path).check()


@pytest.mark.parametrize("files", [{}, RUN, {".run.lock": "process 1 on host\n"}])
def test_folder_of_a_run_or_empty_is_taken(tmp_path, files):
    RunFolder(make(tmp_path, files)).check()
    RunFolder(tmp_path / "missing").check()


def test_reset_deletes_what_the_run_made_and_nothing_else(tmp_path):
    run = RunFolder(make(tmp_path / "run", RUN | FOREIGN))
    run.reset()
    left = tree(run.path)
    assert json.loads(left.pop("run.json"))["files"] == []
    folders = {"checkpoints": None, "checkpoints/best": None, "logs": None}
    assert left == {name: b"mine" for name in FOREIGN} | folders
    run.check()  # still a run folder


def test_reset_follows_no_names_and_links_out_of_the_folder(tmp_path):
    manifest = {"made_by": "keras_transformer", "files": ["../notes.txt", "..", "curves.png"]}
    make(tmp_path, {"notes.txt": "mine", "disk/checkpoint-00000001.npz": "", "disk/a.txt": "mine"})
    run = RunFolder(make(tmp_path / "run", {"run.json": json.dumps(manifest)}))
    run.checkpoints.symlink_to(tmp_path / "disk")
    (run.path / "curves.png").mkdir()
    run.reset()
    left = tree(tmp_path)
    assert left["notes.txt"] == left["disk/a.txt"] == b"mine"
    assert run.checkpoints.is_symlink() and (run.path / "curves.png").is_dir()


def test_killed_reset_leaves_a_run_folder(tmp_path, monkeypatch):
    """Kills it at every file that it deletes. What is left can be reset again."""

    class Killed(BaseException):
        pass

    unlink = type(tmp_path).unlink
    for steps in range(8):
        run = RunFolder(make(tmp_path / str(steps), RUN))

        def kill(path, missing_ok=False, left=iter(range(steps))):  # noqa: B008
            if next(left, None) is None:
                raise Killed
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "unlink", kill)
            with contextlib.suppress(Killed):
                run.reset()
        run.check()
        assert run.recipe_file.is_file() or not run.trained, "no checkpoint without its recipe"
        run.reset()
        assert list(tree(run.path)) == ["run.json"]


# The lock.


def test_lock_deletes_the_folders_it_made_if_they_stay_empty(tmp_path):
    run = RunFolder(tmp_path / "a" / "b")
    with run.locked():
        run.staging.mkdir()
    assert not list(tmp_path.iterdir())
    with run.locked():
        run.add_owned_files("config.yaml")
    assert list(tree(tmp_path)) == ["a", "a/b", "a/b/run.json"]
    mine = RunFolder(tmp_path / "mine")
    mine.staging.mkdir(parents=True)  # a killed process left it
    with mine.locked():
        assert not mine.staging.exists()
    assert mine.path.is_dir()


def test_two_that_add_entries_at_once_lose_none(tmp_path):
    """Two threads: a lock does not know whether another process asks for it."""
    run, numbers = RunFolder(tmp_path), range(30)

    def add(name):
        for number in numbers:
            run.add_to_report(**{f"{name}{number}": number})
            run.add_owned_files(f"{name}{number}")

    threads = [threading.Thread(target=add, args=[name]) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {f"{name}{number}" for name in "ab" for number in numbers}
    assert (run.report().keys(), set(run.owned_files())) == (names, names)
    assert list(tree(tmp_path)) == ["report.json", "run.json"]


# History.


def test_history_has_a_row_per_epoch_and_no_file_without_rows(tmp_path):
    """Before the end of the first epoch, and after a resume there, there is nothing to write."""
    run = RunFolder(tmp_path)
    run.write_history([{"epoch": 0, "loss": 2.5}, {"epoch": 1, "loss": 2.0, "val_bleu": 3.0}])
    assert run.history_file.read_text() == "epoch,loss,val_bleu\n0,2.5,\n1,2.0,3.0\n"
    run.write_history([])
    assert not run.history_file.exists()
    run.write_history([])


def test_damaged_history_is_named(tmp_path):
    run = RunFolder(tmp_path)
    run.history_file.write_text("epoch,loss\n0,x\n")
    with pytest.raises(ValueError, match="history.csv is damaged"):
        run.history()
