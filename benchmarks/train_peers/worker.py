"""`Worker`: the parent's side of an engine's process."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

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
        self.errors = tempfile.TemporaryFile("w+")
        self.peak = 0
        variables = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), str(threads)
        )
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [python, str(SERVE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=variables | (environment or {}),
            start_new_session=True,  # Ctrl-C goes only to us; the worker ends with its input
        )
        self.tokens = self._ask(request)["tokens"]
        self.start_seconds = time.perf_counter() - began

    def measure(self):
        """Returns the answer to one request for a measurement, a dict."""
        answer = self._ask({})
        self.peak = answer["peak"]
        return answer

    def close(self):
        self.process.communicate()

    def _ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the worker died: there is no answer below
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            self.errors.seek(0)
            raise RuntimeError(f"{request['factory']} ended with:\n{self.errors.read()[-3000:]}")
        return json.loads(answer)
