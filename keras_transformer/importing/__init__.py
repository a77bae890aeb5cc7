"""Imports models that Marian trained: the one folder that knows its files."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
