"""`Popen` and `run` as in `subprocess`, for Python programs that find Keras already imported.

Importing TensorFlow costs six seconds of a core. Here one process imports the backend, runs nothing
else, and is forked for each program, which imports this package itself. Linux only.
"""

import array
import ctypes
import functools
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import types

ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of <linux/prctl.h>
MAX_REQUEST = 1 << 20  # bytes


class Popen(subprocess.Popen):
    """`subprocess.Popen`; only `[sys.executable, ...]` on the backend of this process is forked."""

    def _execute_child(self, args, *rest):
        _, _, _, _, cwd, env, _, _, _, *pipes = rest[:15]
        program, *words = map(os.fspath, args)
        env = dict(env or os.environ)
        if (program, env.get("KERAS_BACKEND")) != (sys.executable, os.environ["KERAS_BACKEND"]):
            return super()._execute_child(args, *rest)
        request = {"words": words, "cwd": str(cwd or os.getcwd()), "env": env}
        request["new_session"] = rest[-2]
        theirs = [pipes[0], pipes[3], pipes[5]]
        files = [own if file == -1 else file for own, file in enumerate(theirs)]
        self.pid = _fork(json.dumps(request).encode(), files)
        self._child_created = True
        self._close_pipe_fds(*pipes)


def run(command, *, input=None, capture_output=False, timeout=None, check=False, **options):
    """`subprocess.run` with the `Popen` of this module."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    ran = subprocess.CompletedProcess(command, process.returncode, output, errors)
    if check:
        ran.check_returncode()
    return ran


def _fork(request, files):
    """Asks the process that has imported Keras for a child and returns its process id."""
    connection, _ = _importer()
    descriptors = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    connection.sendmsg([request], [descriptors])
    return int(connection.recv(64))


@functools.cache
def _importer():
    """Starts the process that imports Keras; its children's orphans become children of this one."""
    assert ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0) == 0
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with there:
        command = [sys.executable, __file__, str(there.fileno())]
        files = {"stdin": subprocess.DEVNULL, "pass_fds": [there.fileno()]}
        return here, subprocess.Popen(command, **files)


def _wait_for_request(connection):
    """Answers requests with the ids of new processes; returns in each of those with its words."""
    while True:
        size = 3 * array.array("i").itemsize
        request, ancillary, _, _ = connection.recvmsg(MAX_REQUEST, socket.CMSG_SPACE(size))
        if not request:  # the tests have ended
            os._exit(0)
        files = array.array("i", ancillary[0][2])
        reader, writer = os.pipe()
        if orphan := not (parent := os.fork()):
            if child := os.fork():
                os.write(writer, str(child).encode())
                os._exit(0)
        if orphan:
            break
        os.waitpid(parent, 0)
        connection.send(os.read(reader, 64))
        for file in (reader, writer, *files):
            os.close(file)
    request = json.loads(request)
    connection.close()
    if request["new_session"]:
        os.setsid()
    for own, file in enumerate(files):
        os.dup2(file, own)
    # New ones: those of the first process may be of files, and cannot be reconfigured for a pipe.
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    os.closerange(3, 1 << 10)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    return request["words"]


def _run(words):
    """Does what `python WORDS` does."""
    first, *rest = words
    sys.path[:1] = [""] + [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.path[0] = os.path.dirname(first)
        sys.argv = words
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    parent = socket.socket(fileno=int(sys.argv[1]))
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow_text  # noqa: F401
    gc.freeze()  # a program that ends does not look through all of this again
    _run(_wait_for_request(parent))
