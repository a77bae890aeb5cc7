"""The search on PyTorch: nothing is compiled."""

from typing import Any

import numpy as np
import torch
from keras import ops

from keras_transformer.decoding.loop_eager import pick


def first_k(values: Any, k: int) -> tuple[Any, Any]:
    """Returns the k highest values of the last axis and their indices; ties: the lower index."""
    indices = ops.argsort(-values)[..., :k]  # stable: `torch.topk` has no order among ties
    return pick(values, indices), indices


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Runs `function(model, *static, *inputs)`, whatever the `kind`."""
    with torch.inference_mode():  # it keeps nothing for gradients
        return function(model, *static, *map(ops.convert_to_tensor, inputs))
