"""Sequence-to-sequence Transformers in Keras: layers, model, training, decoding, export.

The public names are listed in the `__init__.pyi` of the package and of each folder. They are
imported on first use, because TensorFlow alone takes seconds to import.
"""

from keras_transformer.lazy_names import attach, register_with_keras

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(__name__, __file__)
register_with_keras()
