"""A copy of a model whose weights are graph constants: faster, but it does not follow training."""

from typing import Any

import keras
import tensorflow as tf


class FrozenTransformer:
    """Holds a copy of a model's weights, as constants in every graph that calls it.

    TensorFlow casts, transposes and packs constants once, when it optimises the graph; variables
    it reads again in every step of a loop.

    Args:
        model: `Transformer`.
        dtype: name of the dtype of the copy's weights and computation, such as `"bfloat16"`.
            Defaults to the model's own policy.

    Attributes:
        model: `Transformer`, the copy, with variables: for graphs without a loop.
        config: that of the model.
    """

    def __init__(self, model: Any, dtype: str | None = None) -> None:
        config = model.get_config()
        if dtype is not None:
            config["dtype"] = dtype
        self.model = type(model).from_config(config)
        self.model.set_weights(model.get_weights())
        self.config = self.model.config
        self._values = {id(weight): weight.numpy() for weight in self.model.weights}

    def init_cache(self, encoder_token_ids: tf.Tensor) -> Any:
        """As `Transformer.init_cache`."""
        with _Constants(self._values):
            return self.model.init_cache(encoder_token_ids)

    def decode_step(self, *args: Any, **kwargs: Any) -> Any:
        """As `Transformer.decode_step`."""
        with _Constants(self._values):
            return self.model.decode_step(*args, **kwargs)


class _Constants(keras.StatelessScope):
    """Replaces each variable by a constant of the graph that is being traced."""

    def __init__(self, values):
        super().__init__(initialize_variables=False)
        self._values = values

    def get_current_value(self, variable):
        # Made per scope, that is per call: the body of a loop is a graph of its own.
        if id(variable) in self._values and id(variable) not in self.state_mapping:
            self.state_mapping[id(variable)] = tf.constant(self._values[id(variable)])
        return super().get_current_value(variable)
