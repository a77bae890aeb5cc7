"""Starts several worker processes on this machine, which train together.

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
from collections.abc import Sequence
from typing import Any


def start_workers(command: Sequence[str], number: int, **popen: Any) -> list[subprocess.Popen]:
    """Starts one process per worker. `TF_CONFIG` gives each its cluster and index.

    Args:
        command: the same for all workers.
        number: number of workers.
        **popen: further arguments of `subprocess.Popen`.

    Returns:
        the processes, in the order of the workers.
    """
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(number)]
    processes = []
    for index in range(number):
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        processes.append(subprocess.Popen(command, env=environment, **popen))
    return processes


def _free_ports(number):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for port_socket in sockets:
            port_socket.bind(("127.0.0.1", 0))
        return [port_socket.getsockname()[1] for port_socket in sockets]


def wait(processes: Sequence[subprocess.Popen]) -> int:
    """Waits for all workers. Forwards SIGTERM to them, so that they save before they end.

    Returns:
        the exit code of the first worker that failed, as a shell reports it; else 0.
    """

    def forward(number, frame):
        for process in processes:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, forward)
    # The terminal sends Ctrl-C to the workers too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    codes = [process.wait() for process in processes]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(wait(start_workers(sys.argv[2:], int(sys.argv[1]))))
