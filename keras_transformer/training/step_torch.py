"""One update on PyTorch: micro-batches, one after the other; `backward` adds up their gradients."""

import operator
from typing import Any

import keras
import torch

from keras_transformer.training import objective


def train_step(model: keras.Model, data: Any) -> dict[str, torch.Tensor]:
    """Makes one update with a batch; returns loss and metrics of the epoch so far."""
    rows = objective.to_rows(data)
    divisors = objective.divisors(model, rows)
    model.zero_grad()
    variables = model.trainable_variables
    loss = 0.0
    for part in _micro_batches(rows, model.accumulation_steps):
        share = objective.loss_share(model, part, divisors, training=True)
        if variables:  # not all weights are frozen
            model.optimizer.scale_loss(share).backward()
        loss = loss + share.detach()
    tensors = [variable.value for variable in variables]
    gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]
    with torch.no_grad():
        # With float16, the gradients are still multiplied by the loss scale here.
        squares = [gradient.float().square().sum() for gradient in gradients]
        total = torch.stack(squares).sum() if squares else torch.zeros(())
        norm = total.sqrt() / model.optimizer.scale_loss(1.0)
        model.optimizer.apply(gradients, variables)
        model._loss_tracker.update_state(loss, sample_weight=divisors[0])
    return model.get_metrics_result() | {"gradient_norm": norm}


def _micro_batches(rows, number):
    """Yields the rows of a batch in at most `number` parts."""
    size = max(-(-rows.y.shape[0] // number), 1)
    for start in range(0, rows.y.shape[0], size):
        take_part = operator.itemgetter(slice(start, start + size))
        yield objective.Rows(*keras.tree.map_structure(take_part, rows[:3]))


def test_step(model: keras.Model, data: Any) -> dict[str, torch.Tensor]:
    """Evaluates a batch; returns loss and metrics of the epoch so far."""
    rows = objective.to_rows(data)
    divisors = objective.divisors(model, rows)
    loss = objective.loss_share(model, rows, divisors, training=False)
    model._loss_tracker.update_state(loss, sample_weight=divisors[0])
    return model.get_metrics_result()


def call_keras(method: Any, model: keras.Model, arguments: dict[str, Any]) -> Any:
    """Calls a training method of `keras.Model`. Only the other backends need `model`."""
    return method(**arguments)
