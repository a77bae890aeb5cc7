"""The bias of the logits, in float32."""

from typing import Any

import keras
from keras import ops

from keras_transformer.training.losses import EXCLUDED_LOGIT
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class OutputBias(keras.layers.Layer):
    """Adds a bias to logits `(B, T, V)`. A new bias is 0.

    Args:
        excluded_token_id: token whose probability is always 0, because its bias is -1e9. Training
            does not change that. Optional.
        **kwargs: `keras.layers.Layer` arguments such as `name` and `dtype`.
    """

    def __init__(self, excluded_token_id: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.excluded_token_id = excluded_token_id

    def build(self, inputs_shape: Shape) -> None:
        self.bias = self.add_weight(
            name="bias", shape=(inputs_shape[-1],), initializer="zeros", autocast=False
        )

    @property
    def effective_bias(self) -> Tensor:
        """The bias that is added, float32 `(V,)`: the weight, but -1e9 at the excluded token."""
        if self.excluded_token_id is None:
            return self.bias
        bias = ops.convert_to_tensor(self.bias)
        return ops.where(ops.arange(bias.shape[0]) == self.excluded_token_id, EXCLUDED_LOGIT, bias)

    def call(self, inputs: Tensor) -> Tensor:
        return inputs + self.effective_bias

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "excluded_token_id": self.excluded_token_id}
