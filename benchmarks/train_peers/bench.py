"""`Bench`: the batches of one size of model, and the engines that train on them."""

import contextlib
import importlib.util
import sys

import keras_transformer as kt
from train_peers import ENGINES
from train_peers.corpus import sample_batches
from train_peers.engine import save_batches
from train_peers.worker import Worker

VOCABULARY_SIZE = 8000
DTYPES = ("float32", "bfloat16")
MIB = 2**20

# size -> token slots of a batch, batches of a pass, rounds, dtypes
SIZES = {"tiny": (4096, 10, 3, DTYPES), "base": (2048, 3, 2, DTYPES)}
QUICK = {"tiny": (4096, 4, 2, DTYPES), "base": (2048, 2, 2, DTYPES[1:])}


class Bench:
    """The batches of one size, and the engines that train on them.

    Args:
        size: `"tiny"` or `"base"`.
        arguments: of the command line.
        folder: for temporary files; it has the vocabulary.
    """

    def __init__(self, size, arguments, folder):
        slots, batches, rounds, dtypes = (QUICK if arguments.quick else SIZES)[size]
        self.slots, self.arguments = slots, arguments
        self.rounds = arguments.rounds or rounds
        self.dtypes = arguments.dtypes or dtypes
        config = getattr(kt.TransformerConfig, size)(VOCABULARY_SIZE, dropout=0.1)
        self.config = config.to_dict()
        self.vocabulary = str(folder / "vocabulary.json")
        self.batches = sample_batches(
            arguments.data, kt.Tokenizer.load(self.vocabulary), slots, arguments.batches or batches
        )
        self._path = str(folder / f"{size}.npz")
        save_batches(self._path, self.batches)

    def start(self, factory, dtype, environment=None, **request):
        """Returns the worker of an engine after its first update."""
        is_opennmt = factory.startswith("opennmt")
        return Worker(
            {
                "factory": factory,
                "dtype": dtype,
                "batches": self._path,
                "config": self.config,
                **request,
            },
            self.arguments.threads,
            self.arguments.opennmt_python if is_opennmt else sys.executable,
            environment,
        )


def available(arguments):
    """Returns the options of the engines that can run, and says which cannot."""
    names = list(arguments.engines or ENGINES)
    packages = {"hub": "keras_hub", "hub-fixed": "keras_hub"}
    packages |= {"torch": "torch", "torch-compile": "torch"}
    for name in list(names):
        package = packages.get(name)
        if package and importlib.util.find_spec(package) is None:
            print(f"{ENGINES[name].name} is left out: {package} is not installed")
            names.remove(name)
    if "opennmt" in names and not arguments.opennmt_python:
        print("OpenNMT-tf is left out: see --opennmt-python and train_peers/opennmt_model.py")
        names.remove("opennmt")
    return names


@contextlib.contextmanager
def running(worker):
    try:
        yield worker
    finally:
        worker.close()
