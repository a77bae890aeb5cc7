"""The weights of a layer as plain float32 arrays, whatever was done to the layer."""

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

LAST_ROWS = "last_rows"  # see `PositionalEmbedding.train_last_rows`


def float_weight(layer: keras.layers.Layer, name: str) -> np.ndarray:
    """Returns a weight as a float32 array: cast, dequantized from int8, and with LoRA added.

    `layer.kernel` is not that array: with int8 it holds integers without their scale, and with LoRA
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
    if f"lora_{name}_a" in weights:
        factor = layer.lora_alpha / layer.lora_rank
        values = values + factor * array(f"lora_{name}_a") @ array(f"lora_{name}_b")
    return with_last_rows(values, array(LAST_ROWS)) if has_last_rows(weights, name) else values


def has_last_rows(weights: Iterable[str], name: str) -> bool:
    """Whether `weights`, the names of a layer's weights, hold the last rows of the named one."""
    return name == "embeddings" and LAST_ROWS in weights


def with_last_rows(matrix: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns a matrix with other last rows."""
    return np.concatenate([matrix[: -len(rows)], rows])
