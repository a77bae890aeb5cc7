"""From raw text to batches for `fit`, in the order of the data: corpus, tokenizer, pipeline.

The names that need TensorFlow are resolved when they are first used. Paper, section 5.1.
"""

from importlib import import_module

from keras_transformer.data.corpus import CorpusError, decode_lines, read_lines, read_parallel
from keras_transformer.data.number_names import number_names

# Public name -> the module that defines it.
_MODULES = {
    "DatasetReport": "pipeline",
    "Tokenizer": "tokenizer",
    "make_dataset": "pipeline",
    "plan_batches": "pipeline",
}

__all__ = [
    "CorpusError",
    "DatasetReport",
    "Tokenizer",
    "decode_lines",
    "make_dataset",
    "number_names",
    "plan_batches",
    "read_lines",
    "read_parallel",
]


def __getattr__(name):
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
