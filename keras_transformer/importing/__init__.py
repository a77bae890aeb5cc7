"""Imports models of Marian, M2M-100 and NLLB-200: the one folder that knows their files."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
