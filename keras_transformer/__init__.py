"""Sequence-to-sequence Transformers in Keras: layers, model, training, decoding, export.

The public names stand in `__init__.pyi`, here and in each folder, and are imported when they are
first used: TensorFlow alone takes seconds to import.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
