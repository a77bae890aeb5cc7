"""What takes long, made once: folders in a test session, models of files in a process."""

import fcntl
import hashlib
import os
import pathlib
import shutil

import pytest

LOADED, FROZEN = {}, {}


def made_once(tmp_path_factory, name, make):
    """Calls `make(folder)` in the first worker that asks for `name`.

    Returns:
        path of a copy of the folder, which the caller may change.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # the same one for all workers
    original, partial = root / f"once_{name}", root / f"once_{name}.partial"
    with open(root / f"once_{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            make(partial)
            partial.rename(original)
    return shutil.copytree(original, tmp_path_factory.mktemp(name) / name)


@pytest.fixture(scope="module", autouse=True)
def equal_files_are_one_model():
    """In this process, as in one of a user who keeps a model: a search is traced once for it."""
    from keras_transformer.runs import load

    load_file, freeze = load.load_model, load.freeze

    def load_model(path, compile):
        if not pathlib.Path(path).is_file():
            return load_file(path)
        key = hashlib.sha256(pathlib.Path(path).read_bytes()).digest(), compile
        if key not in LOADED:
            LOADED[key] = load_file(path, compile=compile)
        return LOADED[key]

    def freeze_once(model, dtype, is_shared):
        if (model, dtype) not in FROZEN:
            FROZEN[model, dtype] = freeze(model, dtype, is_shared=True)
        return FROZEN[model, dtype]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "load_model", load_model)
        patch.setattr(load, "freeze", freeze_once)
        yield
