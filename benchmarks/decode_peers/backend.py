"""Our search with our model on another backend, in its own process: a backend is chosen only once.

The model moves by its file. Times include the pipe to the process.
"""

import os
import pathlib
import sys
import tempfile

from json_process import JSONProcess

WORKER = pathlib.Path(__file__).with_name("backend_worker.py")
NAMES = {"tensorflow": "ours on TensorFlow", "jax": "ours on JAX", "torch": "ours on PyTorch"}


class Backend:
    """A peer; see `decode_peers`.

    Args:
        model: `Transformer`.
        backend: name of a backend of Keras.
        threads: int, for PyTorch. XLA has one for each core that the process may use.
    """

    def __init__(self, model, backend, threads):
        self.name = NAMES[backend]
        variables = {"KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(WORKER)]
        self._process = JSONProcess(command, self.name, os.environ | variables)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            self._process.ask({"model": path, "threads": threads})

    def decode(self, sentences, beam_size, length=None):
        return self._process.ask(["decode", sentences, beam_size, length])

    def scored(self, sentences, beam_size, max_length):
        """As `Ours.scored`; pairs are lists."""
        return self._process.ask(["scored", sentences, beam_size, max_length])

    def close(self):
        self._process.close()
