"""The process of an engine: reads requests as lines of JSON, and answers each with a line.

The first request makes the engine: `factory` (see `ENGINES`), `dtype`, `batches` (a file of
`save_batches`) and `config` (fields of `TransformerConfig`), or what else the factory takes. Its
answer comes after the first update. Every other request is one `measure()`.

It runs in Python 3.10 too, for OpenNMT-tf.
"""

import ctypes
import importlib
import json
import os
import pathlib
import signal
import sys

sys.path[0] = str(pathlib.Path(__file__).parents[1])

from process_memory import memory_status  # noqa: E402

PR_SET_PDEATHSIG = 1


def main():
    # Ends this process with its parent, even in the middle of a measurement.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Libraries may print: their output goes to the standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(values):
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    request = json.loads(sys.stdin.readline())
    module, factory = request["factory"].split(":")
    engine = getattr(importlib.import_module(f"train_peers.{module}"), factory)(request)
    engine.first_update()
    answer({"tokens": engine.tokens})
    for _ in sys.stdin:
        measured = engine.measure()
        answer({**measured, "peak": memory_status("VmHWM")})


if __name__ == "__main__":
    main()
