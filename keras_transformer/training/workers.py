"""The workers that train together. On JAX and PyTorch there is only one, with its own devices."""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import keras


class LocalDevices:
    """Devices of this process on JAX or PyTorch, in place of a strategy of TensorFlow.

    Args:
        number: number of JAX devices that the rows of a batch are divided over. Defaults to `1`.

    Attributes:
        num_replicas_in_sync: the same number.
    """

    def __init__(self, number: int = 1) -> None:
        self.num_replicas_in_sync = number

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Returns the scope to build and train the model in."""
        if self.num_replicas_in_sync == 1:
            return contextlib.nullcontext()
        return keras.distribution.DataParallel().scope()


Strategy: TypeAlias = Any  # `tf.distribute.Strategy` or `LocalDevices`


class WorkerLostError(ConnectionError):
    """Another worker has ended or cannot be reached, so this one cannot continue."""


def strategy_of(model: keras.Model) -> Strategy:
    """Returns the strategy that a model was built under."""
    is_tensorflow = keras.config.backend() == "tensorflow"
    return model.distribute_strategy if is_tensorflow else LocalDevices()


def training_scope(strategy: Strategy) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope to call `fit` in. A model of TensorFlow enters its strategy by itself."""
    return strategy.scope() if isinstance(strategy, LocalDevices) else contextlib.nullcontext()


@contextlib.contextmanager
def raise_worker_lost(strategy: Strategy) -> Iterator[None]:
    """Converts TensorFlow's errors of a failed collective to a `WorkerLostError`."""
    if num_workers(strategy) == 1:
        yield
        return
    from tensorflow import errors

    names = "UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"
    try:
        yield
    except tuple(getattr(errors, name) for name in names) as error:
        lines = error.message.splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "aborted" in line), lines[0])
        raise WorkerLostError(
            f"Another worker was lost: {reason.rstrip('.')}. Check the output of that worker, then "
            "start all workers again: they resume from the newest checkpoint."
        ) from error


def num_workers(strategy: Strategy) -> int:
    """Returns the number of processes that train together under a strategy."""
    # The default strategy has no `worker_devices`; the devices of JAX belong to one process.
    if strategy.num_replicas_in_sync == 1 or isinstance(strategy, LocalDevices):
        return 1
    return strategy.num_replicas_in_sync // len(strategy.extended.worker_devices)


def is_chief(strategy: Strategy) -> bool:
    """Returns whether this process writes the files: only the first worker does."""
    return num_workers(strategy) == 1 or strategy.extended.should_checkpoint


def sum_over_workers(strategy: Strategy, value: float) -> float:
    """Returns the sum of a float over all workers. Blocks until every worker calls it."""
    if num_workers(strategy) == 1:
        return value
    import tensorflow as tf

    replicas_of_worker = len(strategy.extended.worker_devices)

    # The first replica of a worker has the value: fractions on all replicas would be rounded.
    def value_of_replica(context):
        is_first = context.replica_id_in_sync_group % replicas_of_worker == 0
        return tf.constant(value if is_first else 0.0, tf.float64)

    parts = strategy.experimental_distribute_values_from_function(value_of_replica)
    return float(strategy.reduce(tf.distribute.ReduceOp.SUM, parts, axis=None))
