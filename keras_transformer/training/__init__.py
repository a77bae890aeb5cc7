"""What any `fit` needs: loss, metrics, schedule, exact step, strategies."""

from keras_transformer.lazy_names import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
