"""Sequence-to-sequence Transformers in Keras: layers, model, training, decoding, export.

The public names are resolved when they are first used, so that `import keras_transformer` costs
nothing: TensorFlow alone takes seconds to import.
"""

from importlib import import_module

__version__ = "0.1.0"

# Public name -> the module that defines it.
_MODULES = {
    "Hypothesis": "decoding.hypothesis",
    "Perplexity": "training.metrics",
    "SmoothedCrossEntropy": "training.losses",
    "TokenAccuracy": "training.metrics",
    "Tokenizer": "data.tokenizer",
    "Transformer": "models.transformer",
    "TransformerConfig": "config",
    "SearchSettings": "decoding.search_settings",
    "TranslationEvaluator": "training.callbacks",
    "Translator": "decoding.translator",
    "WarmupSchedule": "training.schedules",
    "beam_search": "decoding.beam_search",
    "export_saved_model": "export.saved_model",
    "get_strategy": "training.distribution",
    "greedy_search": "decoding.greedy_search",
    "load_model": "models.transformer",
    "load_run": "decoding.translator",
    "make_dataset": "data.pipeline",
    "number_names": "data.number_names",
    "paper_optimizer": "training.schedules",
    "read_parallel": "data.corpus",
}
_SUBMODULES = ("evaluation", "layers", "plotting")

__all__ = sorted([*_MODULES, *_SUBMODULES])


def __getattr__(name):
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])
