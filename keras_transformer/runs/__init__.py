"""Everything that knows a recipe or a run folder: training, checkpoints, resuming, checks."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
