"""Searches that depend on a step function only, and the translator of strings around them."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
