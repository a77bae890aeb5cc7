"""Searches of token ids, the engines that run them, and `Translator`, which translates text."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
