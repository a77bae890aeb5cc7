"""Base class of layers made of dense layers: their options, and LoRA."""

import operator
from typing import Any

from keras_transformer.layers.arguments import require_positive
from keras_transformer.layers.dense_options import (
    DenseOptions,
    ScaledInitializer,
    clone_initializer,
    seed_of,
)
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.parts import PartsInConfig
from keras_transformer.layers.projection import Projection


class CompositeLayer(PartsInConfig):
    """A layer made of dense layers and dropout, which all get the same options.

    Args:
        use_bias: whether the dense layers add a bias.
        seed: int. The parts get different seeds, derived from it and their names.
        **kwargs: the other `DenseOptions`, and `keras.layers.Layer` arguments.
    """

    def __init__(self, use_bias: bool = True, seed: int | None = None, **kwargs: Any) -> None:
        dense_options = DenseOptions.pop_from(kwargs, use_bias)
        super().__init__(**kwargs)
        self.supports_masking = True
        self.use_bias = use_bias
        self.seed = None if seed is None else operator.index(seed)
        self.dense_options = dense_options

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Freezes the kernel of each dense layer and trains a low-rank difference instead.

        Biases and layer norms stay trainable. Compile the model afterwards. A file holds the
        kernels with the difference added; the loaded layer trains a new difference.

        Args:
            rank: rank of the difference.
            lora_alpha: the difference is scaled by `lora_alpha / rank`. Defaults to `rank`.
            a_initializer: of the matrices `(width, rank)`. Defaults to `"he_uniform"`.
            b_initializer: of the matrices `(rank, units)`. Defaults to `"zeros"`.

        Raises:
            ValueError: if the layer is not built, has LoRA already, or has kernel constraints.
        """
        if not self.built:
            raise ValueError(
                "The layer must be built before `enable_lora`. "
                f"Received: name={self.name!r}. Call it once."
            )
        rank = require_positive(rank=rank)
        for path, part in self._parts().items():
            if isinstance(part, Projection):
                initializers = (clone_initializer(i, path) for i in (a_initializer, b_initializer))
                part.enable_lora(rank, lora_alpha, *initializers)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "seed": self.seed, **self.dense_options.get_config()}

    def _dense(self, units, name, activation=None, gain=1.0):
        options = self.dense_options.of(name)
        if gain != 1:
            options["kernel_initializer"] = ScaledInitializer(options["kernel_initializer"], gain)
        return Projection(units, activation, **options, dtype=self.dtype_policy, name=name)

    def _dropout(self, rate):
        return Dropout(rate, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _part(self, layer_class, name, *args, **kwargs):
        """A composite layer inside this one."""
        shared = {"seed": seed_of(self.seed, name), "dtype": self.dtype_policy, "name": name}
        return layer_class(*args, **kwargs, **self.dense_options.of(name), **shared)
