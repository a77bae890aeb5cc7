"""The encoder, the decoder, and the sequence-to-sequence model that combines them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
