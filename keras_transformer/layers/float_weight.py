"""The weights of a layer as plain float32 arrays, also of a quantized layer or one with LoRA."""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

LAST_ROWS = "last_rows"  # see `PositionalEmbedding.train_last_rows`


def float_weight(layer: keras.layers.Layer, name: str) -> np.ndarray:
    """Returns a weight as a float32 array: cast, dequantized from int8, and with LoRA added.

    `layer.kernel` is another array: with int8 it holds integers without their scale, and with LoRA
    in half precision it is rounded.

    Args:
        layer: built.
        name: the last part of the weight's path, such as `"kernel"`.

    Raises:
        ValueError: if the layer is quantized in another way than int8.

    Example:

    >>> layer = keras.layers.Dense(2, kernel_initializer="ones", dtype="bfloat16")
    >>> _ = layer(np.ones((1, 1)))
    >>> float_weight(layer, "kernel")
    array([[1., 1.]], dtype=float32)
    """
    weights = {weight.name: weight for weight in layer.weights}

    def array(key: str) -> Any:
        return keras.ops.convert_to_numpy(weights[key]).astype("float32")

    mode = layer.quantization_mode
    if mode not in (None, "int8"):
        raise ValueError(
            "The float weights of a quantized layer can be computed for int8 only. "
            f"Received: {layer.path!r} with quantization_mode={mode!r}. Use the model as it was "
            "before `quantize`."
        )
    values = array(name)
    if f"{name}_scale" in weights:  # one for each column of a kernel, or row of an embedding
        scale = array(f"{name}_scale")
        values = values / (scale if name == "kernel" else scale[:, None])
    has_lora = f"lora_{name}_a" in weights
    lora_factor = layer.lora_alpha / layer.lora_rank if has_lora else 1.0
    substitutes = {key: array(key) for key in weights if is_substitute(key)}
    return with_trained(values, substitutes, name, lora_factor)


def is_substitute(name: str) -> bool:
    """Returns whether a weight of this name is trained in place of a frozen one of its layer."""
    return name.startswith("lora_") or name == LAST_ROWS


def with_trained(
    values: np.ndarray, substitutes: Mapping[str, np.ndarray], name: str, factor: float = 1.0
) -> np.ndarray:
    """Returns a frozen weight after training: with LoRA added, or with its trained last rows.

    Args:
        values: the weight.
        substitutes: by name, the weights of the layer for which `is_substitute` is true.
        name: the name of the weight.
        factor: factor on the product of the LoRA matrices, `lora_alpha / rank`. Defaults to `1.0`.
    """
    if f"lora_{name}_a" in substitutes:
        values = values + factor * substitutes[f"lora_{name}_a"] @ substitutes[f"lora_{name}_b"]
    if name == "embeddings" and LAST_ROWS in substitutes:
        rows = substitutes[LAST_ROWS]
        values = np.concatenate([values[: -len(rows)], rows])
    return values
