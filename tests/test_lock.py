"""The lock of a file: one holder, who is named; freed when it ends, however it ends."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from keras_transformer.lock import RunInUseError, file_lock
from tests.builders import ROOT

# Another process that holds the lock until its standard input ends, or it is killed. It forks one
# process that leaves the block, and one that lives on after it.
HOLDER = """
import os, pathlib, sys
from keras_transformer.lock import file_lock
with file_lock(pathlib.Path(sys.argv[1]), "at work", waits=True):
    if not (leaving := os.fork()):
        sys.exit()
    os.waitpid(leaving, 0)
    living = os.fork()
    if not living:  # by now it has closed its copy of the lock
        print("locked", flush=True)
    sys.stdin.read()
    if not living:
        os._exit(0)
"""


def start(path):
    command = [sys.executable, "-c", HOLDER, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(command, env=environment, **pipes)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock."""
    with start(tmp_path / ".lock") as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def refused(path):
    """Returns the error of a second process."""
    with pytest.raises(RunInUseError) as caught, file_lock(path, "at work"):
        pass
    return str(caught.value)


def test_second_process_is_refused_in_one_line_that_names_the_first(holder, tmp_path):
    for _ in range(2):
        said = refused(tmp_path / ".lock")
        assert f"process {holder.pid} on {socket.gethostname()} is at work" in said
        assert str(tmp_path) in said and "\n" not in said
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lock_ends_with_its_holder_though_a_process_that_it_forked_lives(holder, tmp_path, number):
    path = tmp_path / ".lock"
    holder.send_signal(number)
    holder.wait()
    with file_lock(path, "at work"):
        assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
        refused(path)
    assert not os.listdir(tmp_path), "the file is deleted"


def test_who_waits_comes_after_the_holder(holder, tmp_path):
    """The file that each of them has opened is deleted before its turn."""
    with start(tmp_path / ".lock") as first, start(tmp_path / ".lock") as second:
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(2)
        for process in (holder, first, second):
            process.stdin.close()
        assert first.stdout.read() == second.stdout.read() == b"locked\n"
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_one_clear_error(tmp_path, monkeypatch, number):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    said = f"cannot be locked .{os.strerror(number)}.*another file system"
    with pytest.raises(OSError, match=said), file_lock(tmp_path / ".lock", "at work"):
        pass
    assert not os.listdir(tmp_path)
