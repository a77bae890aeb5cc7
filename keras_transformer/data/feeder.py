"""`BatchFeeder`: batches for `fit` on JAX and PyTorch, without TensorFlow."""

from collections.abc import Callable, Iterator
from typing import Any

from keras.src.trainers.data_adapters.generator_data_adapter import GeneratorDataAdapter


class BatchFeeder(GeneratorDataAdapter):
    """The batches of a `BatchStream` for `fit`, `evaluate` and `predict`.

    It is a data adapter of Keras, because `fit` reads adapters as they are. By default, `fit`
    shuffles the batches of a `PyDataset`, so training could not resume at an exact batch. Each
    `iter` begins a new iteration, so several may run at once.

    Args:
        stream: `BatchStream`.
        generator: function without arguments, called for each iteration. Returns an iterator of its
            batches, as arrays.

    Attributes:
        stream: `BatchStream`.
    """

    def __init__(self, stream: Any, generator: Callable[[], Iterator[Any]]) -> None:
        # Without `super().__init__()`, which would read batches.
        self.stream, self.generator = stream, generator

    def __len__(self) -> int:
        return self.stream.report.batches_per_epoch

    def __iter__(self) -> Iterator[Any]:
        return self.generator()

    @property
    def num_batches(self) -> int:
        return len(self)
