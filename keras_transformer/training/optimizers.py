"""Optimizers that the exact step cannot use."""

from typing import Any


def without_loss_scaling(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`, which Keras adds for float16."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Raises a `ValueError` if the optimizer accumulates gradients itself."""
    steps = getattr(without_loss_scaling(optimizer), "gradient_accumulation_steps", None)
    if steps:
        raise ValueError(
            "The optimizer's `gradient_accumulation_steps` must be None: it ignores the number of "
            "tokens of each batch. Use the model's `accumulation_steps`. "
            f"Received: gradient_accumulation_steps={steps}"
        )
