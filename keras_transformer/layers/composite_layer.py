"""Base class of layers made of dense layers: the options that these share, and LoRA."""

import operator
import zlib
from typing import Any

import keras
from keras import ops

from keras_transformer.layers.arguments import require_positive
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.parts import PartsInConfig
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Shape

# Arguments of `keras.layers.Dense` that a layer hands on to all its dense layers.
DENSE_OPTIONS = {
    "kernel_initializer": "glorot_uniform",
    "bias_initializer": "zeros",
    "kernel_regularizer": None,
    "bias_regularizer": None,
    "activity_regularizer": None,
    "kernel_constraint": None,
    "bias_constraint": None,
}


class CompositeLayer(PartsInConfig):
    """A layer made of dense layers and dropout, which all get the same options.

    Args:
        use_bias: whether the dense layers add a bias.
        seed: int. The parts get different seeds, derived from it and their names.
        **kwargs: `DENSE_OPTIONS`, and `keras.layers.Layer` arguments.
    """

    def __init__(self, use_bias: bool = True, seed: int | None = None, **kwargs: Any) -> None:
        options = {
            name: _option(name, kwargs.pop(name, default))
            for name, default in DENSE_OPTIONS.items()
        }
        super().__init__(**kwargs)
        self.supports_masking = True
        self.use_bias = use_bias
        self.seed = None if seed is None else operator.index(seed)
        self.dense_options = {"use_bias": use_bias, **options}

    def enable_lora(self, rank: int, lora_alpha: float | None = None) -> None:
        """Freezes the kernel of each dense layer and trains a low-rank difference instead.

        Biases and layer norms stay trainable. Compile the model afterwards. A file holds the
        kernels with the difference added; the loaded layer trains a new difference.

        Args:
            rank: rank of the difference.
            lora_alpha: the difference is scaled by `lora_alpha / rank`. Defaults to `rank`.

        Raises:
            ValueError: if the layer is not built, has LoRA already, or has kernel constraints.
        """
        if not self.built:
            raise ValueError(
                "The layer must be built before `enable_lora`. "
                f"Received: name={self.name!r}. Call the layer first."
            )
        rank = require_positive(rank=rank)
        for part in self._parts().values():
            if isinstance(part, Projection):
                part.enable_lora(rank, lora_alpha)

    def get_config(self) -> dict[str, Any]:
        options = {k: keras.saving.serialize_keras_object(v) for k, v in self.dense_options.items()}
        return {**super().get_config(), "seed": self.seed, **options}

    def compute_output_shape(self, *shapes: Shape, **named_shapes: Shape) -> Shape:
        # Keras names the shapes as `build` does, whose arguments a subclass may rename.
        return (*shapes, *named_shapes.values())[0]

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Keras would derive it from the shape alone: without scores, and without checks.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def _options_for(self, name):
        """Returns the options of the part with this name.

        Keras draws the same numbers each time from one initialiser, so each part gets a clone.
        """
        return {k: clone_initializer(value, name) for k, value in self.dense_options.items()}

    def _dense(self, units, name, activation=None, gain=1.0, **changes):
        options = self._options_for(name) | changes
        if gain != 1:
            initializer = keras.initializers.get(options["kernel_initializer"])
            options["kernel_initializer"] = lambda shape, dtype: initializer(shape, dtype) * gain
        return Projection(units, activation, **options, **self._shared(name))

    def _dropout(self, rate):
        return Dropout(rate, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _part(self, layer_class, name, *args, **kwargs):
        """Returns a composite layer, to be a part of this one, with the same options."""
        shared = {"seed": part_seed(self.seed, name), **self._shared(name)}
        return layer_class(*args, **kwargs, **self._options_for(name), **shared)

    def _shared(self, name):
        """Returns the arguments that the part with this name has in common with this layer.

        When a layer is frozen, Keras freezes the parts that it has, not those that it makes later.
        """
        return {"trainable": self.trainable, "dtype": self.dtype_policy, "name": name}


class Projection(keras.layers.Dense):
    """`keras.layers.Dense` that saves LoRA without rounding, and can train it after loading."""

    def save_own_variables(self, store: Any) -> None:
        if self.lora_enabled and self.quantization_mode is None:
            save_with_lora(self, "kernel", store)
        else:
            super().save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        super().load_own_variables(store)
        if self.lora_enabled:
            redraw_lora(self.lora_kernel_a)

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        # With `type_check`, Keras refuses subclasses of its `Dense`.
        super().quantize(mode, type_check=False, config=config)


def save_with_lora(layer, name, store):
    """Writes the weights of a layer that is not quantized, with LoRA merged into one of them.

    Keras would round the merged weight to the compute dtype.

    Args:
        layer: built, with LoRA.
        name: `"kernel"` or `"embeddings"`, the weight that LoRA changes.
        store: as in `save_own_variables` of a layer.
    """
    by_name = {weight.name: weight for weight in layer.weights}
    difference = ops.matmul(by_name[f"lora_{name}_a"], by_name[f"lora_{name}_b"])
    merged = by_name[name] + layer.lora_alpha / layer.lora_rank * difference
    merged = ops.cast(merged, by_name[name].dtype)
    names = layer.variable_serialization_spec[None]
    values = [merged if each == name else getattr(layer, each) for each in names]
    for index, value in enumerate(value for value in values if value is not None):
        store[str(index)] = value


def redraw_lora(lora_a):
    """Draws the first LoRA matrix again.

    A file holds the weight with LoRA merged, so Keras loads zeros into both LoRA matrices. Then the
    gradients of both would be 0.
    """
    lora_a.assign(keras.initializers.HeUniform()(lora_a.shape, lora_a.dtype))


def project(dense, inputs, shape=None):
    """Applies a dense layer, with all axes but the last flattened into one.

    If lengths are unknown, `keras.layers.Dense` runs a dozen small shape operations, which in a
    decoding step take longer than the product.

    Args:
        dense: `keras.layers.Dense`, built.
        inputs: float tensor `(..., D)`, such as `(B, T, D)`.
        shape: shape of the result. Defaults to `(..., units)`. Do not read its sizes from the
            result of another reshape: the ONNX converter merges consecutive reshapes.

    Returns:
        float tensor.
    """
    if dense.activity_regularizer is None:
        # (B, T, D) -> (B * T, D) -> (B * T, units)
        outputs = dense(ops.reshape(inputs, (-1, inputs.shape[-1])))
    else:  # Keras divides the regularizer's loss by the first size, which must be the batch's
        outputs = dense(inputs)
    return ops.reshape(outputs, shape or (*outer_shape(inputs), dense.units))


def outer_shape(inputs):
    """Returns the sizes of all axes but the last, for a reshape.

    The first size is -1 if the others are static; else unknown sizes are read from the tensor.
    """
    inner_sizes = inputs.shape[1:-1]
    return (-1, *inner_sizes) if all(inner_sizes) else shape_of(inputs)[:-1]


def _option(name, value):
    """Returns an option as an object. A name stays a name: an object would have a fixed seed."""
    if isinstance(value, str):
        return value
    kind = name.rpartition("_")[2]  # "initializer", "regularizer" or "constraint"
    return getattr(keras, f"{kind}s").get(value)


def clone_initializer(initializer: Any, name: str) -> Any:
    """Returns an initialiser that draws other numbers; with a seed, they depend on `name`.

    Anything but an initialiser object, such as a name or a regularizer, is returned as it is.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    seed = config.get("seed")
    if isinstance(seed, dict):  # a `SeedGenerator` draws other numbers each time
        return initializer
    if seed is not None:
        config = {**config, "seed": part_seed(seed, name)}
    return type(initializer).from_config(config)


def part_seed(seed: int | None, name: str) -> int | None:
    """Returns the seed of the part with this name: equal seeds would draw equal numbers."""
    return None if seed is None else (seed + zlib.crc32(name.encode())) % 2**31
