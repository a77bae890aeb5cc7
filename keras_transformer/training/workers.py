"""Starts processes that train together on this machine, as several machines would.

    python -m keras_transformer.training.workers 2 keras-transformer train RECIPE

Pure Python.
"""

import contextlib
import json
import os
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


def _wait(processes):
    """The highest exit code of all; Ctrl-C reaches them too, and they save before they end."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return max(process.wait() for process in processes)


if __name__ == "__main__":
    sys.exit(_wait(start_workers(sys.argv[2:], int(sys.argv[1]))))
