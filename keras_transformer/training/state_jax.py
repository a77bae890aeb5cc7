"""`KeptState`: on JAX, keeps the weights when `fit`, `evaluate` or `predict` is interrupted."""

import contextlib
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.training.flat_values import FlatValues, layout_of
from keras_transformer.training.optimizers import Adam, without_loss_scaling
from keras_transformer.training.step_jax import train_step

if TYPE_CHECKING:
    from keras import Model
else:
    Model = object  # `super()` finds the methods in `keras.Model`, which follows in the MRO


class KeptState(Model):
    """Mixin to list before `keras.Model`: the model keeps its weights if training fails.

    Keras takes the weights out of the variables, and a compiled step overwrites them. So the state
    after each step is kept where `jax_state_sync` finds it. A Ctrl-C between a compiled step and
    the line that keeps its result would lose the result, so it waits until the result is kept.
    """

    _jax_state: dict[str, Any] | None = None  # of the last step, by the names of Keras

    def _make_function(self, step_function: Callable, *args: Any, **kwargs: Any) -> Callable:
        def step(state, data):
            with _later_interrupt():
                outputs, state = step_function(state, data)
                _keep(self, state)
            return outputs, state

        return super()._make_function(step, *args, **kwargs)

    def _get_jax_state(self, **parts: bool) -> tuple[Any, ...]:
        """Returns the state that Keras takes from the variables before the first step.

        The state of `fit` is `FlatValues` instead of lists, with three exceptions: with
        `keras.distribution`, whose layouts are for lists; with the step of a subclass; and if the
        step is not compiled.
        """
        with _later_interrupt():
            state = super()._get_jax_state(**parts)
            if not parts.get("purge_model_variables"):  # the variables keep their values
                return state
            _keep(self, state)
            is_compiled = self.jit_compile and not self.run_eagerly
            is_ours = is_compiled and type(self).train_step is train_step
            is_distributed = keras.distribution.distribution() is not None
            if parts.get("optimizer_variables") and is_ours and not is_distributed:
                state = _flat(self, state)
                _keep(self, state)
        return state

    def jax_state_sync(self) -> None:
        """Gives the variables the values of the last step.

        Does nothing if a failed program has overwritten these values, so that the program's error
        is raised, not one about overwritten values.
        """
        with _later_interrupt():
            parts = (self._jax_state or {}).values()
            flat = [part for part in parts if isinstance(part, FlatValues)]
            if not any(part.is_lost() for part in flat):
                super().jax_state_sync()
            if self._jax_state_synced:
                for part in flat:  # otherwise `fit` would hold the memory until its next update
                    part.release()
                object.__setattr__(self, "_jax_state", None)


def _flat(model, state):
    """Returns the state of `fit` as `FlatValues`.

    Adam's first moments become one vector if they have one dtype, and so do the second moments.
    """
    optimizer = without_loss_scaling(model.optimizer)
    all_moments = optimizer.moments if isinstance(optimizer, Adam) else ()
    position_of = {id(variable): n for n, variable in enumerate(model.optimizer.variables)}
    groups = []
    for moments in all_moments:
        # Keras has `None` for variables that it overwrites by their gradient, as float8 needs.
        variables = [variable for variable in moments if variable is not None]
        if len({variable.dtype for variable in variables}) == 1:
            groups.append([position_of[id(variable)] for variable in variables])
    trainable, non_trainable, of_optimizer, of_metrics = state
    return (
        FlatValues.of(trainable, layout_of(trainable)),
        FlatValues.of(non_trainable, layout_of(non_trainable)),
        FlatValues.of(of_optimizer, layout_of(of_optimizer, groups)),
        FlatValues.of(of_metrics, layout_of(of_metrics)),
    )


def _keep(model, state):
    """Leaves the state of a train, test or predict step where `jax_state_sync` finds it."""
    names = {
        4: ("trainable", "non_trainable", "optimizer", "metrics"),
        3: ("trainable", "non_trainable", "metrics"),
        2: ("trainable", "non_trainable"),
    }[len(state)]
    parts = {f"{name}_variables": part for name, part in zip(names, state, strict=True)}
    object.__setattr__(model, "_jax_state", parts)  # Keras would wrap each array, in each update
    model._jax_state_synced = False


@contextlib.contextmanager
def _later_interrupt():
    """Delays a Ctrl-C until the end of the block; a second Ctrl-C delivers both at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received = []

    def delay(number, frame):
        received.append(frame)
        if len(received) > 1:
            deliver()

    def deliver():
        if signal.getsignal(signal.SIGINT) is delay:  # no other handler was set in the block
            signal.signal(signal.SIGINT, handler)
        frames = received.copy()
        received.clear()
        for frame in frames:
            handler(signal.SIGINT, frame)

    signal.signal(signal.SIGINT, delay)
    try:
        yield
    finally:
        deliver()
