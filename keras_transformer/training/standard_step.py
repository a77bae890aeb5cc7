"""The training methods of Keras, with their arguments stated and checked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.training.losses import refuse_probabilities
from keras_transformer.training.padding_warning import warn_if_padding_counts

if TYPE_CHECKING:
    from keras import Model
else:
    Model = object  # `super()` finds the methods in `keras.Model`, which follows in the MRO

KEPT = "accumulation_steps", "r_drop", "fused_loss"


class StandardTraining(Model):
    """Mixin to list before `keras.Model`: states the arguments of its training methods.

    Arguments and results of `fit` and the other methods are
    [those of Keras](https://keras.io/api/models/model_training_apis/), but `class_weight` must be
    `None`, and the compiled loss must take logits.

    The attributes in `KEPT` are kept where the arguments of `compile` are: by `load_model`, copies
    and pickles of a compiled model.

    Attributes:
        accumulation_steps: number of micro-batches per update; see `ExactTraining`.
    """

    _accumulation_steps = 1
    _pad_token_id: int | None = None  # label of the padding, if the model knows it

    @property
    def accumulation_steps(self) -> int:
        return self._accumulation_steps

    @accumulation_steps.setter
    def accumulation_steps(self, value: int) -> None:
        if not isinstance(value, int) or value < 1:
            raise ValueError(
                "`accumulation_steps` must be an int of at least 1. "
                f"Received: accumulation_steps={value!r}"
            )
        self._accumulation_steps = value
        self.train_function = None  # the next `fit` traces it again

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of `compile`, and the attributes of the step that were set."""
        config = super().get_compile_config()
        attributes = {name: getattr(self, name) for name in KEPT if f"_{name}" in vars(self)}
        return {**config, "step": attributes} if config and attributes else config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model as the one that was saved, and sets the same attributes."""
        config = dict(config)
        for name, value in config.pop("step", {}).items():
            setattr(self, name, value)
        super().compile_from_config(config)

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
    ) -> keras.callbacks.History:
        """Trains the model for some epochs; see `keras.Model.fit`."""
        return self._check_and_call("fit", locals())

    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Returns loss and metrics over a dataset; see `keras.Model.evaluate`."""
        return self._check_and_call("evaluate", locals())

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: None = None,
        return_dict: bool = False,
    ) -> Any:
        """Makes one update with a batch; see `keras.Model.train_on_batch`."""
        logs = self._check_and_call("train_on_batch", locals() | {"return_dict": True})
        if return_dict:
            return logs
        logs.pop("gradient_norm", None)  # Keras returns the loss alone if there are no metrics
        return self._flatten_metrics_in_order(logs)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """Returns loss and metrics of a batch; see `keras.Model.test_on_batch`."""
        return self._check_and_call("test_on_batch", locals())

    def _check_and_call(self, method, arguments):
        """Calls a method of Keras with arguments that come from `locals()`."""
        arguments = {name: value for name, value in arguments.items() if name != "self"}
        arguments |= arguments.pop("kwargs", {})
        class_weight = arguments.pop("class_weight", None)
        if class_weight is not None:
            raise ValueError(
                "`class_weight` must be None, because labels are per token, not per row. Use "
                f"`sample_weight` of shape (B, T). Received: class_weight={class_weight!r}"
            )
        refuse_probabilities(getattr(self, "loss", None))
        is_nested = "_use_cached_eval_dataset" in arguments  # `evaluate` inside of `fit`
        if self._pad_token_id is not None and not is_nested:
            warn_if_padding_counts(self, self._pad_token_id, arguments)
        return self._call_keras(method, arguments)

    def _call_keras(self, method, arguments):
        """Calls a method of `keras.Model`; the exact step changes the arguments here."""
        return getattr(super(), method)(**arguments)
