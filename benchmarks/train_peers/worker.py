"""`Worker`: the parent's side of an engine's process."""

import os
import pathlib
import sys
import time

from json_process import JSONProcess

SERVE = pathlib.Path(__file__).with_name("serve.py")


class Worker:
    """Starts an engine and waits for its first update.

    Args:
        request: dict; see `serve.py`.
        threads: int.
        python: the interpreter. Defaults to this one.
        environment: dict of additional environment variables. Optional.

    Attributes:
        start_seconds: from the start of the process to the end of its first update.
        tokens: real target tokens of a pass.
        peak: peak memory so far, in bytes.

    Raises:
        RuntimeError: if the process ends; the message has the end of its output.
    """

    def __init__(self, request, threads, python=sys.executable, environment=None):
        self.peak = 0
        variables = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), str(threads)
        )
        began = time.perf_counter()
        self._process = JSONProcess(
            [python, str(SERVE)], request["factory"], variables | (environment or {})
        )
        self.tokens = self._process.ask(request)["tokens"]
        self.start_seconds = time.perf_counter() - began

    def measure(self):
        """Returns the answer to one request for a measurement, a dict."""
        answer = self._process.ask({})
        self.peak = answer["peak"]
        return answer

    def close(self):
        self._process.close()
