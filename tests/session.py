"""Folders that take long to fill: made once in a test session, whichever worker comes first."""

import fcntl
import os
import shutil


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
