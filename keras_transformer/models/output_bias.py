"""The bias of the logits, in float32."""

import keras

from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class OutputBias(keras.layers.Layer):
    """Adds a bias to logits `(B, T, V)`. A new bias is 0."""

    def build(self, inputs_shape: Shape) -> None:
        self.bias = self.add_weight(
            name="bias", shape=(inputs_shape[-1],), initializer="zeros", autocast=False
        )

    def call(self, inputs: Tensor) -> Tensor:
        return inputs + self.bias

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape
