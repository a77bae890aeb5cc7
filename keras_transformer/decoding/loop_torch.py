"""The search on PyTorch: nothing is compiled."""

from typing import Any

import numpy as np
import torch
from keras import ops


def run(
    function: Any, model: Any, static: tuple, inputs: tuple[np.ndarray, ...], kind: str | None
) -> Any:
    """Runs `function(model, *static, *inputs)`, whatever the `kind`."""
    with torch.inference_mode():  # it keeps nothing for gradients
        return function(model, *static, *map(ops.convert_to_tensor, inputs))
