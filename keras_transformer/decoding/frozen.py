"""A model as it is now, for graphs that shall run fast rather than follow its training."""

import keras
import tensorflow as tf


class FrozenTransformer:
    """Makes every graph in which it is called hold the model's present weights as constants.

    TensorFlow then casts, transposes and packs them once, when it optimises the graph, and a loop
    does not read them anew in every step. A copy: what the model learns later does not show.

    Args:
        model: `Transformer`.
        dtype: name of the dtype of the copy's weights and computation, such as `"bfloat16"`.
            Defaults to the model's own policy.

    Attributes:
        model: `Transformer`, the copy, for what runs in no loop.
    """

    def __init__(self, model, dtype=None):
        config = model.get_config()
        if dtype is not None:
            config["dtype"] = dtype
        self.model = type(model).from_config(config)
        self.model.set_weights(model.get_weights())
        self.config = self.model.config
        self._values = {id(weight): weight.numpy() for weight in self.model.weights}

    def init_cache(self, *args, **kwargs):
        """As `Transformer.init_cache`."""
        with _Constants(self._values):
            return self.model.init_cache(*args, **kwargs)

    def decode_step(self, *args, **kwargs):
        """As `Transformer.decode_step`."""
        with _Constants(self._values):
            return self.model.decode_step(*args, **kwargs)


class _Constants(keras.StatelessScope):
    """Answers for each variable with a constant, made in the graph that is being traced."""

    def __init__(self, values):
        super().__init__(initialize_variables=False)
        self._values = values

    def get_current_value(self, variable):
        # For this call alone: the body of a loop is another graph than what is around it.
        if id(variable) in self._values and id(variable) not in self.state_mapping:
            self.state_mapping[id(variable)] = tf.constant(self._values[id(variable)])
        return super().get_current_value(variable)
