"""Optimizers that the exact step can and cannot use."""

from typing import Any

# Arguments of Keras's optimizers that act on each replica's own gradient -> what replaces them.
_REPLACEMENTS = {
    "clipnorm": "`global_clipnorm`",
    "clipvalue": "`global_clipnorm`",
    "gradient_accumulation_steps": "the model's `accumulation_steps`",
}


def without_loss_scaling(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`, which Keras adds for float16."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def check_optimizer(optimizer: Any) -> None:
    """Raises a `ValueError` if the optimizer's updates depend on the number of devices."""
    optimizer = without_loss_scaling(optimizer)
    for name, replacement in _REPLACEMENTS.items():
        if value := getattr(optimizer, name, None):
            raise ValueError(
                f"The optimizer's `{name}` would make the update depend on the number of devices. "
                f"Use {replacement} instead. Received: {name}={value!r}"
            )
