"""The exact step on PyTorch: micro-batches one after the other, whose gradients PyTorch adds."""

from typing import Any

import keras
import torch

from keras_transformer.training.fused_step import FusedTraining
from keras_transformer.training.rows import real_rows


class ExactTraining(FusedTraining):
    """The exact step on PyTorch."""

    def train_step(self, data: Any) -> dict[str, torch.Tensor]:
        rows = real_rows(data)
        divisors = self._divisors(rows)
        self.zero_grad()
        loss = 0.0
        size = -(-rows.y.shape[0] // self.accumulation_steps)
        parts = keras.tree.map_structure(lambda tensor: tensor.split(size), rows)
        for index in range(len(parts.y)):
            part = keras.tree.map_structure_up_to(rows, lambda split, i=index: split[i], parts)
            share = self._loss_share(part, divisors, training=True)
            self.optimizer.scale_loss(share).backward()
            loss = loss + share.detach()
        tensors = [variable.value for variable in self.trainable_variables]
        gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in tensors]
        with torch.no_grad():
            # With float16, the gradients are still multiplied by the loss scale here.
            squares = torch.stack([gradient.float().square().sum() for gradient in gradients])
            norm = squares.sum().sqrt() / self.optimizer.scale_loss(1.0)
            self.optimizer.apply(gradients, self.trainable_variables)
            self._track_loss(loss, divisors)
        return self.get_metrics_result() | {"gradient_norm": norm}

    def test_step(self, data: Any) -> dict[str, torch.Tensor]:
        rows = real_rows(data)
        divisors = self._divisors(rows)
        self._track_loss(self._loss_share(rows, divisors, training=False), divisors)
        return self.get_metrics_result()

    def _select_tokens(self, tensors, counted):
        return [each[counted] for each in (*tensors, counted)]
