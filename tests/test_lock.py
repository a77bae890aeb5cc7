"""The lock of a file: one holder, who is named; freed when it ends, however it ends."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from keras_transformer.lock import RunInUseError, file_lock
from tests.builders import ROOT

# Another process that holds the lock until its standard input ends, or it is killed.
HOLDER = """
import pathlib, sys
from keras_transformer.lock import file_lock
with file_lock(pathlib.Path(sys.argv[1]), "at work"):
    print("locked", flush=True)
    sys.stdin.read()
"""
# It holds the lock, and a process that it forks lives on after both `with` and a kill.
FORKING = """
import os, pathlib, sys
from keras_transformer.lock import file_lock
with file_lock(pathlib.Path(sys.argv[1]), "at work"):
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)  # until the parent has ended
        print("child", flush=True)
        sys.stdin.read()
        os._exit(0)
    if sys.argv[2] == "leaves" and not (leaving := os.fork()):
        sys.exit(0)  # a process that leaves the block
    if sys.argv[2] == "leaves":
        os.waitpid(leaving, 0)
    print("locked", child, flush=True)
    sys.stdin.readline()
"""


@contextlib.contextmanager
def process(code, *words):
    """A process that has printed `locked`."""
    command = [sys.executable, "-c", code, *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as started:
        try:
            assert started.stdout.readline().startswith("locked")
            yield started
        finally:
            started.kill()


def refused(path):
    """Returns the error of a second process."""
    with pytest.raises(RunInUseError) as caught, file_lock(path, "at work"):
        pass
    return str(caught.value)


def test_second_process_is_refused_in_one_line_that_names_the_first(tmp_path):
    path = tmp_path / ".lock"
    with process(HOLDER, path) as holder:
        content = path.read_bytes()
        for _ in range(2):
            said = refused(path)
            assert f"process {holder.pid} on {socket.gethostname()} is at work" in said
            assert str(tmp_path) in said and "\n" not in said
        assert path.read_bytes() == content and os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lock_ends_with_its_holder_and_leaves_no_file(tmp_path, number):
    path = tmp_path / ".lock"
    with process(HOLDER, path) as holder:
        holder.send_signal(number)
        holder.wait()
    with file_lock(path, "at work"):
        assert path.read_text() == f"process {os.getpid()} on {socket.gethostname()}\n"
        refused(path)
    assert not os.listdir(tmp_path), "the file is deleted"
    with pytest.raises(ValueError), file_lock(path, "at work"):
        raise ValueError
    assert not os.listdir(tmp_path)


def test_who_waits_comes_after_the_holder(tmp_path):
    """Also where the file that it has opened is deleted before its turn."""
    path = tmp_path / ".lock"
    waits = HOLDER.replace('"at work"', '"at work", waits=True').replace("sys.stdin.read()", "")
    waiting = [sys.executable, "-c", waits, str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with process(HOLDER, path):
        started = [
            subprocess.Popen(waiting, env=environment, stdout=subprocess.PIPE) for _ in range(3)
        ]
        with pytest.raises(subprocess.TimeoutExpired):
            started[0].wait(2)
    assert [one.communicate()[0] for one in started] == [b"locked\n"] * 3
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("way", ["stays", "leaves"])
def test_forked_process_neither_holds_nor_frees_the_lock(tmp_path, way):
    path = tmp_path / ".lock"
    with process(FORKING, path, way) as holder:
        assert f"process {holder.pid} on" in refused(path), "as its holder lives"
        holder.kill()
        holder.wait()
        assert holder.stdout.readline() == "child\n", "which lives"
        with file_lock(path, "at work"):
            pass


def test_file_system_without_locks_is_one_clear_error_and_nothing_is_left(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    for number in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):

        def refuse(*arguments, number=number):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(fcntl, "flock", refuse)
            with pytest.raises(OSError, match="cannot be locked .*another file system") as caught:
                with file_lock(tmp_path / ".lock", "at work"):
                    pass
        assert os.strerror(number) in str(caught.value) and "\n" not in str(caught.value)
        assert not os.listdir(tmp_path)


def test_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(OSError, match=r"\.lock"), file_lock(tmp_path / ".lock", "at work"):
        pass
