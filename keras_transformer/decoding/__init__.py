"""Searches that depend on a step function only, and the translator of strings around them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
