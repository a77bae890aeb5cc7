"""`TrainingStep`: the training methods of Keras, with their arguments checked."""

import contextlib
import functools
import importlib
import inspect
import logging
import numbers
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras

from keras_transformer.present_weights import fetch_weights
from keras_transformer.processor import say_if_emulated
from keras_transformer.training import objective
from keras_transformer.training.callbacks import ClosedCallback, DatasetEpoch, check_callbacks
from keras_transformer.training.metrics import TokenMean
from keras_transformer.training.optimizers import check_precision, without_loss_scaling

# `super()` finds the methods in `keras.Model`, which follows in the MRO.
if TYPE_CHECKING:
    from keras import Model as Base
elif keras.config.backend() == "jax":
    from keras_transformer.training.state_jax import KeptState as Base
else:
    Base = object

# The step of Keras's backend: `step_tensorflow`, `step_jax` or `step_torch`.
step = importlib.import_module(f"keras_transformer.training.step_{keras.config.backend()}")
LOGGER = logging.getLogger(__name__)


def step_attribute(name: str, default: Any, rule: str, is_valid: Callable[[Any], bool]) -> Any:
    """Returns a property that checks values and is saved with the `compile` arguments.

    Args:
        name: name of the property.
        default: its value until it is set. Values are converted to its type.
        rule: what a value must be, for the error.
        is_valid: called with a value, returns whether it follows the rule.
    """

    def get(model: Any) -> Any:
        return getattr(model, f"_{name}", default)

    def set_checked(model: Any, value: Any) -> None:
        if not is_valid(value):
            raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}")
        setattr(model, f"_{name}", type(default)(value))
        model.train_function = model.test_function = None  # the next `fit` traces them again

    return property(get, set_checked)


def _is_count(value):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= 1


def _is_weight(value):
    return isinstance(value, numbers.Real) and 0 <= value < float("inf")


def checked(name: str) -> Any:
    """Returns a training method of Keras that checks its arguments before it runs."""
    keras_method = getattr(keras.Model, name)
    signature = inspect.signature(keras_method)

    @functools.wraps(keras_method)
    def method(self, *args, **kwargs):
        arguments = signature.bind(self, *args, **kwargs).arguments
        del arguments["self"]
        arguments |= arguments.pop("kwargs", {})
        next_method = getattr(super(TrainingStep, self), name)
        if "_use_cached_eval_dataset" in arguments:  # `evaluate` inside of `fit`
            return next_method(**arguments)
        fetch_weights(self)
        if name in ("fit", "train_on_batch"):
            self.prepare_training()
        class_weight = arguments.pop("class_weight", None)
        if class_weight is not None:
            raise ValueError(
                "`class_weight` must be None, because labels are per token, not per row. Use "
                f"`sample_weight` of shape (B, T). Received: class_weight={class_weight!r}"
            )
        if self.compiled:
            _check_compiled(self)
            _warn_if_not_fused(self)
            _warn_if_padding_counts(self, arguments)
            say_if_emulated(self.compute_dtype, warnings.warn)
            if name in ("fit", "train_on_batch"):
                _warn_if_frozen(self)
                check_precision(self)
        with contextlib.ExitStack() as stack:
            if name == "fit" and self.compiled:
                for callback in _prepared_callbacks(self, arguments):
                    if isinstance(callback, ClosedCallback):
                        stack.callback(callback.close)
            return step.call_keras(next_method, self, arguments)

    method.__doc__ = inspect.getdoc(keras_method)
    return method


def reads_weights(method: Callable) -> Any:
    """Decorates a method of a model: fetches the present weights before the method runs.

    Needed if a callback may call the method in the middle of an epoch.
    """

    @functools.wraps(method)
    def method_of_present_weights(self, *args, **kwargs):
        fetch_weights(self)
        return method(self, *args, **kwargs)

    return method_of_present_weights


def of_present_weights(name: str) -> Any:
    """Returns a method of `keras.Model` that fetches the present weights before it runs."""
    keras_method = getattr(keras.Model, name)

    @functools.wraps(keras_method)
    def method(self, *args, **kwargs):
        return getattr(super(TrainingStep, self), name)(*args, **kwargs)

    method.__doc__ = inspect.getdoc(keras_method)
    return reads_weights(method)


class TrainingStep(Base):
    """Mixin to list before `keras.Model`: makes the same update on any number of devices.

    `gradient = sum over tokens(weight * d loss) / sum over tokens(weight)`, where the sums go over
    all replicas of all workers and all micro-batches. Then the gradient is clipped, if the
    optimizer has a `clipnorm`, `clipvalue` or `global_clipnorm`, and applied. The losses and
    metrics that `fit` and `evaluate` report are means over all tokens of the epoch so far.

    The model has one output, logits `(B, T, V)`, and labels `(B, T)`. The compiled loss must return
    one value per token, as `SmoothedCrossEntropy` and Keras's
    `SparseCategoricalCrossentropy(from_logits=True)` do. The `reduction` of the loss selects the
    divisor:

    - `"mean_with_sample_weight"`: the sum of the weights;
    - `"sum_over_batch_size"` (Keras's default) or `"mean"`: the number of labels that are not
      ignored;
    - `"sum"`: 1.

    `loss_weights` is a factor of the loss.

    Regularizers, activity regularizers and `add_loss` count once per update. A loss that a layer
    adds during its call must be a mean over rows, like Keras's activity regularizers: the loss of
    each part of a batch is weighted by the number of rows in the part.

    A subclass may override `compute_loss`, but can then train only on one device, without
    micro-batches and R-Drop.

    A model has a fused loss if its `output_kernel` is a matrix `(V, D)` and its logits are
    `hidden @ output_kernel^T + output_bias`, where `hidden` `(B, T, D)` is what its `call` returns
    with `return_hidden=True`, and `output_bias` has the shape `(V,)` or is `None`. Loss, gradient
    and metrics are then computed without the logits, only for tokens that count; the results are
    the same. In these cases, the step computes the logits instead, and logs the reason once:

    - `compile` was given another loss than `SmoothedCrossEntropy`, or other metrics than
      `TokenAccuracy` and `Perplexity`;
    - a subclass overrides `call`, `compute_loss` or `compute_metrics`;
    - the model computes in float16;
    - on TensorFlow, `jit_compile` is set;
    - several JAX devices are used.

    Attributes:
        accumulation_steps: number of micro-batches that each replica's rows are split into, to save
            memory. They are processed in sequence, and the update is the same. Defaults to `1`.
        r_drop: the weight `a` of R-Drop. Unless 0, each batch passes the model twice, with
            different dropout, and the loss of a token is `(l1 + l2 + a / 2 * (KL(p1 || p2) +
            KL(p2 || p1))) / 2`, where `l` are the losses of the two passes and `p` their
            predictions. Metrics are those of the first pass; validation has one pass. Defaults to
            `0.0`. Reference:
            [Liang et al., 2021](https://arxiv.org/abs/2106.14448), equation 4, divided by 2: the
            loss stays a mean per token.
        fused_loss: `False` always computes the logits. Defaults to `True`.
        excluded_token_id: a class of probability 0, whose logit is about -1e9, or `None`.
        trains_output: whether `output_kernel` or `output_bias` is computed from a trained weight.
            `False` saves the time of their gradients. Defaults to `True`.

    Like the arguments of `compile`, the first three attributes are kept by `load_model`, and by
    copies and pickles of a compiled model.

    Raises:
        ValueError: from `fit` and the other training methods:

            - `class_weight` is given, or the loss does not return one value per token;
            - the optimizer has `gradient_accumulation_steps`;
            - `compute_loss` is overridden, with several replicas or micro-batches or R-Drop;
            - `jit_compile` is set on TensorFlow, with several replicas or micro-batches.
    """

    test_function: Any  # for the type checker; Keras creates it
    excluded_token_id: int | None = None
    # A subclass with a fused loss overrides these by properties.
    output_kernel: Any = None
    output_bias: Any = None
    trains_output: Any = True
    _pad_token_id: int | None = None  # label of the padding, if the model knows it
    _warned_reason: str | None = None  # why the loss is not fused, as logged last

    accumulation_steps = step_attribute("accumulation_steps", 1, "an int of at least 1", _is_count)
    r_drop = step_attribute("r_drop", 0.0, "a number of at least 0", _is_weight)
    fused_loss = step_attribute("fused_loss", True, "a bool", lambda value: isinstance(value, bool))

    fit, evaluate = checked("fit"), checked("evaluate")
    train_on_batch, test_on_batch = checked("train_on_batch"), checked("test_on_batch")
    train_step, test_step = step.train_step, step.test_step
    save, save_weights = of_present_weights("save"), of_present_weights("save_weights")
    get_weights, __call__ = of_present_weights("get_weights"), of_present_weights("__call__")
    predict = of_present_weights("predict")
    # Called by `keras.saving.save_model` and `save_weights`, and by `pickle`.
    save_own_variables = of_present_weights("save_own_variables")
    # Called by `load_weights`. On JAX, the state of the update would replace the loaded weights.
    load_own_variables = of_present_weights("load_own_variables")

    def prepare_training(self) -> None:
        """Called before `fit` and `train_on_batch`. A subclass may override it to set weights."""

    @property
    def weights(self) -> list[Any]:
        """The variables of the layers; see `keras.Model.weights`."""
        fetch_weights(self)
        return super().weights

    def predict_on_batch(self, x: Any) -> Any:
        """Returns the outputs for a batch; see `keras.Model.predict_on_batch`."""
        fetch_weights(self)
        if objective.num_replicas(self) == 1:
            return super().predict_on_batch(x)
        # Keras runs the whole batch on every replica and returns every copy, so use `predict`.
        return self.predict(x, batch_size=keras.tree.flatten(x)[0].shape[0], verbose=0)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns the arguments of `compile`, and the attributes of the step that were set."""
        fetch_weights(self)  # for variables of the optimizer, such as a learning rate
        config = super().get_compile_config()
        names = "accumulation_steps", "r_drop", "fused_loss"
        attributes = {name: getattr(self, name) for name in names if f"_{name}" in vars(self)}
        return {**config, "step": attributes} if config and attributes else config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles the model with saved arguments, and sets the saved attributes of the step."""
        config = dict(config)
        for name, value in config.pop("step", {}).items():
            setattr(self, name, value)
        super().compile_from_config(config)

    # === Overridden methods that Keras calls in its training methods ===

    def _resolve_auto_jit_compile(self):
        # Off by default on TensorFlow: XLA would compile each of the many batch shapes.
        return keras.config.backend() != "tensorflow" and super()._resolve_auto_jit_compile()

    def _make_function(self, step_function, *args, **kwargs):
        if objective.num_replicas(self) > 1:
            return step.make_function(self, step_function)
        return super()._make_function(step_function, *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds a model that is not built, and optimizer and metrics under a TensorFlow strategy.

        The step reads the weights before it calls the model. Otherwise, the first step builds
        optimizer and metrics. Reads only the shapes of the data. Keras's method reads a batch, and
        a generator would lose this batch.
        """
        if keras.config.backend() != "tensorflow":  # of JAX, since Keras 3.16
            super()._maybe_symbolic_build(iterator=iterator, data_batch=data_batch)
            return
        strategy = self._distribute_strategy
        if strategy is None and self.built:
            return
        if data_batch is None:
            data_batch = step.symbolic_batch(iterator._get_iterator())
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def _symbolic_build(self, iterator=None, data_batch=None):
        """Checks the shapes of a batch before Keras builds loss and metrics with it."""
        if data_batch is None and self._compile_loss is not None and not self._compile_loss.built:
            for _, _, batches in iterator:  # as in Keras; `fit` then resets the iterator
                data_batch = batches[0] if isinstance(batches, list | tuple) else next(batches)
                break
        if data_batch is not None:
            data_batch = data_batch[:3] if isinstance(data_batch, tuple) else data_batch
            objective.check_shapes(data_batch)
        super()._symbolic_build(iterator=iterator, data_batch=data_batch)

    def _flatten_metrics_in_order(self, logs):
        # Leave out the norm: Keras returns the loss alone only if the logs hold nothing else.
        return super()._flatten_metrics_in_order(
            {name: value for name, value in logs.items() if name != "gradient_norm"}
        )


def _prepared_callbacks(model, arguments):
    """Checks and returns the callbacks of `fit`; adds `DatasetEpoch` if the data have a stream."""
    argument = arguments.get("callbacks") or []
    is_callback_list = isinstance(argument, keras.callbacks.CallbackList)
    callbacks = argument.callbacks if is_callback_list else keras.tree.flatten(argument)
    check_callbacks(callbacks, model.optimizer)
    stream = getattr(arguments.get("x"), "stream", None)  # of a dataset of `make_dataset`
    if stream is not None:
        # In front of `RunKeeper`, which moves the dataset to a batch within the epoch.
        callbacks.insert(0, DatasetEpoch(stream))
        arguments["callbacks"] = argument if is_callback_list else callbacks
    return callbacks


def _check_compiled(model):
    """Raises a `ValueError` for arguments of `compile` that the step does not support."""
    loss, _, traits = objective.compiled_loss(model)
    if traits.takes_probabilities:
        raise ValueError(
            "The loss must take logits: use `SmoothedCrossEntropy()`, or a loss of Keras with "
            f"`from_logits=True`. Received: loss={loss!r}"
        )
    optimizer = without_loss_scaling(model.optimizer)  # `None` if the model is never trained
    steps = None if optimizer is None else optimizer.gradient_accumulation_steps
    if steps:
        raise ValueError(
            "The optimizer's `gradient_accumulation_steps` must be None: it ignores the number of "
            "tokens of each batch. Use the model's `accumulation_steps`. "
            f"Received: gradient_accumulation_steps={steps}"
        )
    replicas = objective.num_replicas(model)
    num_parts = replicas * model.accumulation_steps
    has_own_loss = type(model).compute_loss is not keras.Model.compute_loss
    problem = None
    if num_parts > 1 and model.jit_compile and keras.config.backend() == "tensorflow":
        problem = "`jit_compile` must be False, because XLA needs static numbers of rows"
    if (num_parts > 1 or model.r_drop) and has_own_loss:
        problem = (
            f"`{type(model).__name__}.compute_loss` must not be overridden: its result is the loss "
            "of a whole batch in one pass"
        )
    if problem:
        raise ValueError(
            f"With several replicas, micro-batches or R-Drop, {problem}. Received: {replicas} "
            f"replicas, accumulation_steps={model.accumulation_steps}, r_drop={model.r_drop}"
        )


def _warn_if_not_fused(model):
    """Logs once why the loss of a model is not fused, unless `fused_loss` is `False`."""
    # `None` is a reason to log only if the class has a property `output_kernel`.
    can_fuse = model.output_kernel is not None or type(model).output_kernel is not None
    if not model.fused_loss or not can_fuse:
        return
    reason = objective.reason_for_logits(model)
    if reason and reason != model._warned_reason:
        model._warned_reason = reason
        LOGGER.warning(
            "The logits of all tokens are computed, which takes more time and memory, because %s. "
            "Set `fused_loss = False` on the model to avoid this message.",
            reason,
        )


def _warn_if_frozen(model):
    """Warns, as the steps of Keras do, if a built model has no weight to train."""
    if model.built and model.weights and not model.trainable_variables:
        warnings.warn("The model does not have any trainable weights.", UserWarning, stacklevel=3)


def _warn_if_padding_counts(model, arguments):
    """Warns if padding has weight 1 in the compiled loss or in `TokenAccuracy` or `Perplexity`.

    There is no warning where this is unknown: for data such as generators, whose structure is known
    only after reading a batch, and for a loss without the attribute `ignore_class`.
    """
    pad_token_id = model._pad_token_id
    if pad_token_id is None:
        return
    problems = []
    for metric, is_weighted in objective.token_metrics(model):
        if isinstance(metric, TokenMean) and metric.ignore_class is None and not is_weighted:
            problems.append(
                f"`{type(metric).__name__}` in `metrics`: Keras gives sample weights only to "
                "`weighted_metrics`"
            )
    has_weights = arguments.get("sample_weight") is not None
    if arguments.get("y") is None:
        spec = getattr(arguments.get("x"), "element_spec", None)  # of a `tf.data.Dataset`
        has_weights = not isinstance(spec, tuple) or len(spec) > 2
    traits = objective.compiled_loss(model).traits
    if traits.can_ignore and traits.ignore_class is None and not has_weights:
        problems.append("the loss: the data have no `sample_weight`")
    if problems:
        warnings.warn(
            f"Padding counts in {', and in '.join(problems)}. Pass `ignore_class={pad_token_id}` "
            "to the loss and the metrics, or `sample_weight` with 0 at padding and metrics as "
            "`weighted_metrics`. `make_dataset` makes such a `sample_weight`.",
            UserWarning,
            stacklevel=3,
        )
