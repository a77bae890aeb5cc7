"""Everything that knows a recipe or a run folder: training, checkpoints, resuming, checks."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
