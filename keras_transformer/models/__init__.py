"""The encoder, the decoder, and the sequence-to-sequence model that combines them."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
