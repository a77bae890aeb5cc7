"""`BatchFeeder`: batches for `fit` on JAX and PyTorch, without TensorFlow."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras.src.trainers.data_adapters.data_adapter import DataAdapter


class BatchFeeder(DataAdapter):
    """The batches of a `BatchStream` for `fit`, `evaluate` and `predict`.

    Keras reads its adapters as they are. It would shuffle the batches of a `PyDataset`, by the
    default of `fit`, and they could not be repeated from any position. Each iteration is a new
    one: several may run at once.

    Args:
        stream: `BatchStream`.
        batches: called for each iteration, returns its batches, as arrays.

    Attributes:
        stream: `BatchStream`.
    """

    def __init__(self, stream: Any, batches: Callable[[], Iterator[Any]]) -> None:
        self.stream, self._batches = stream, batches

    def __len__(self) -> int:
        return self.stream.report.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    get_numpy_iterator = get_jax_iterator = __iter__

    def get_torch_dataloader(self) -> Iterator[Any]:
        return (keras.tree.map_structure(keras.ops.convert_to_tensor, batch) for batch in self)

    @property
    def num_batches(self) -> int:
        return len(self)

    @property
    def batch_size(self) -> None:
        return None
