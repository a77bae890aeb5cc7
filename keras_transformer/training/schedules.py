"""The paper's learning rate and optimizer.

Paper, section 5.3.
"""

import math
import operator
from typing import Any

import keras
from keras import ops

from keras_transformer.training.optimizers import Adam
from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class WarmupSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    `scale * D^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`, where step counts updates from 1.

    Args:
        hidden_dim: the model's width `D`.
        warmup_steps: number of updates until the peak of the rate. Defaults to `4000`.
        scale: factor on the paper's rate. Defaults to `1.0`.
        minimum: the rate does not decay below this one. At most the peak, the rate of update
            `warmup_steps`. Defaults to `0.0`.

    Raises:
        ValueError: if a number is out of range.

    Call arguments:
        step: int or int tensor: number of updates made so far, from 0, as Keras's optimizers count.

    Returns:
        float32 scalar, the learning rate of the next update.

    Departures from the paper: none; there, `scale` is 1 and `minimum` 0.

    Example:

    >>> schedule = keras_transformer.WarmupSchedule(hidden_dim=512)
    >>> f"{float(schedule(3999)):.2e}"
    '6.99e-04'

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3, equation (3).
    """

    def __init__(
        self, hidden_dim: int, warmup_steps: int = 4000, scale: float = 1.0, minimum: float = 0.0
    ) -> None:
        super().__init__()
        for name, value in (("hidden_dim", hidden_dim), ("warmup_steps", warmup_steps)):
            if value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={value}")
        # Python's numbers also for NumPy's: the config is JSON.
        self.hidden_dim = operator.index(hidden_dim)
        self.warmup_steps = operator.index(warmup_steps)
        self.scale = float(scale)
        self.minimum = float(minimum)
        peak = self.scale * (self.hidden_dim * self.warmup_steps) ** -0.5
        if self.minimum > peak and not math.isclose(self.minimum, peak):
            raise ValueError(
                "`minimum` must be at most the rate at the end of the warm-up, "
                f"{peak:.2g}. Received: minimum={minimum}"
            )

    @classmethod
    def from_peak(
        cls, hidden_dim: int, peak: float, warmup_steps: int, minimum: float = 0.0
    ) -> "WarmupSchedule":
        """Returns the schedule with the rate `peak` at `warmup_steps`."""
        scale = peak * (hidden_dim * warmup_steps) ** 0.5
        return cls(hidden_dim, warmup_steps, scale, minimum)

    def __call__(self, step: Tensor) -> Tensor:
        # Keras counts updates from 0, the paper from 1.
        step = ops.cast(step, "float32") + 1.0
        factor = self.scale * self.hidden_dim**-0.5
        decayed = ops.maximum(factor * step**-0.5, self.minimum)
        return ops.minimum(factor * step * self.warmup_steps**-1.5, decayed)

    def get_config(self) -> dict[str, Any]:
        names = ("hidden_dim", "warmup_steps", "scale", "minimum")
        return {name: getattr(self, name) for name in names}


def paper_optimizer(
    config: Any, warmup_steps: int = 4000, scale: float = 1.0, **kwargs: Any
) -> Adam:
    """Returns Adam with the paper's settings and schedule.

    Args:
        config: `TransformerConfig`, for its `hidden_dim`.
        warmup_steps: number of updates until the peak of the rate. Defaults to `4000`.
        scale: factor on the paper's learning rate. Defaults to `1.0`.
        **kwargs: further arguments of `keras.optimizers.Adam`, which override the paper's
            `beta_1=0.9`, `beta_2=0.98`, `epsilon=1e-9`.

    Example:

    >>> config = keras_transformer.TransformerConfig.base(vocabulary_size=37_000)
    >>> optimizer = keras_transformer.paper_optimizer(config)
    >>> optimizer.beta_2, optimizer.epsilon
    (0.98, 1e-09)

    Reference:
        [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762), section 5.3.
    """
    schedule = WarmupSchedule(config.hidden_dim, warmup_steps, scale)
    paper = {"learning_rate": schedule, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
    return Adam(**paper | kwargs)
