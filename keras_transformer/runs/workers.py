"""Starts processes that train together on this machine, as several machines would.

    python -m keras_transformer.runs.workers 2 keras-transformer train RECIPE

Pure Python.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys


def start_workers(command, number, **popen):
    """Starts one process per worker, each told its place by `TF_CONFIG`.

    Args:
        command: list of strings, the same for all.
        number: int, of workers.
        **popen: further arguments of `subprocess.Popen`.

    Returns:
        list of `subprocess.Popen`.
    """
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(number)]
    processes = []
    for index in range(number):
        place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(place)}
        processes.append(subprocess.Popen(command, env=environment, **popen))
    return processes


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait(processes):
    """Waits for all workers, and tells them when this process is told to stop: they save first.

    Args:
        processes: list of `subprocess.Popen`.

    Returns:
        int, the exit code of the first that failed, as a shell would tell it; else 0.
    """

    def pass_on(number, frame):
        for process in processes:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches them by itself
    codes = [process.wait() for process in processes]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(wait(start_workers(sys.argv[2:], int(sys.argv[1]))))
