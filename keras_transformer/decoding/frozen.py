"""A model with the weights that it has now: its graphs are faster, and do not follow training."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.loop import BACKEND
from keras_transformer.present_weights import present_weights
from keras_transformer.types import Tensor

if BACKEND == "tensorflow":
    import tensorflow as tf

# Bytes. Small weights (biases, norms) are many: if they are constants, a step has hundreds of
# operations less. Matrices gain nothing, and each graph would hold several copies of them.
_LARGEST_CONSTANT = 2**14


def freeze(model: Any, dtype: str | None = None, is_shared: bool = True) -> Any:
    """Returns a model with the weights that `model` has now, also if `model` is trained later.

    Args:
        model: `Transformer`, or `Ensemble`.
        dtype: as in `copy_model`.
        is_shared: bool. Whether the caller or others may train the model later: then it is copied.
            Defaults to `True`.

    Returns:
        `FrozenTransformer` on TensorFlow; elsewhere a copy of the model, or the model itself.
    """
    if dtype is not None or is_shared:
        model = copy_model(model, dtype)
    return FrozenTransformer(model) if BACKEND == "tensorflow" else model


def copy_model(model: Any, dtype: str | None = None) -> Any:
    """Returns a copy of a model.

    On TensorFlow and without `dtype`, both share the memory of the weights until one of them is
    trained: a variable takes new memory when it is written, if its tensor is used elsewhere.

    Args:
        model: `Transformer`, or `Ensemble`.
        dtype: name of the dtype of the copy's weights and computation, such as `"bfloat16"`.
            Defaults to the model's own policy.
    """
    if isinstance(model, Ensemble):
        return Ensemble([copy_model(member, dtype) for member in model.models])
    config = model.get_config()
    if dtype is not None:
        config["dtype"] = dtype
    copy = model_of_config(model, config)
    copy_weights(copy.weights, present_weights(model))
    return copy


def model_of_config(model: Any, config: dict[str, Any]) -> Any:
    """Returns a new model of a config of `model`, with the same number of last rows to train."""
    copy = type(model).from_config(config)
    for stack, twin in ((model.encoder, copy.encoder), (model.decoder, copy.decoder)):
        rows = stack.embedding.last_rows  # the config does not have them; both may share them
        if rows is not None and twin.embedding.last_rows is None:
            twin.embedding.train_last_rows(rows.shape[0])
    return copy


def copy_weights(weights: Sequence[Any], others: Sequence[Any]) -> None:
    """Assigns `others` to `weights`, in order; see `copy_model` for the memory."""
    for weight, other in zip(weights, others, strict=True):
        # JAX: `fit` deletes the arrays that it was given, so they cannot be shared.
        weight.assign(other if BACKEND == "tensorflow" else ops.copy(other))


class FrozenTransformer:
    """Computes with the weights that a model has now, also if it is trained later. TensorFlow only.

    All graphs share the matrices. Until the model is trained, these are the model's own, not
    copies. Small weights are constants of each graph. Under mixed precision, weights are cast once.

    Args:
        model: `Transformer`, or `Ensemble`.

    Attributes:
        model: the model.
        config: that of the model.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self._weights = {id(v): tf.convert_to_tensor(v.value) for v in model.weights}
        self._cast: dict[Any, Tensor] = {}

    def __call__(self, inputs: dict[str, Tensor], /) -> Tensor:
        """As a call of `Transformer`."""
        return self._compute(self.model, inputs)

    def attention_scores(self, inputs: dict[str, Tensor], /) -> Any:
        """As `Transformer.attention_scores`."""
        return self._compute(self.model.attention_scores, inputs)

    def init_cache(self, encoder_token_ids: Tensor, /, **options: Any) -> Any:
        """As `Transformer.init_cache`."""
        return self._compute(self.model.init_cache, encoder_token_ids, **options)

    def decode_step(self, *args: Any, **options: Any) -> Any:
        """As `Transformer.decode_step`."""
        return self._compute(self.model.decode_step, *args, **options)

    def __reduce__(self):
        """For `pickle` and `copy`: a copy of the model with these weights."""
        copy = copy_model(self.model)
        for new, old in zip(copy.weights, self.model.weights, strict=True):
            new.assign(self._weights[id(old)])
        return type(self), (copy,)

    def _compute(self, method, *args, **options):
        with _FrozenScope(self._weights, self._cast):
            return method(*args, **options)


class _FrozenScope(keras.StatelessScope):
    """Gives tensors of the weights to the layers that are traced."""

    def __init__(self, weights, cast):
        super().__init__(initialize_variables=False)
        self._weights, self._cast = weights, cast

    def get_current_value(self, variable):
        key = id(variable)
        if key in self._weights and key not in self.state_mapping:
            # Kept for this call only: the next one may be in another graph, as the body of a loop.
            self.state_mapping[key] = self._tensor(variable)
        return super().get_current_value(variable)

    def _tensor(self, variable):
        """Returns the weight as the layer casts it: a constant, or a tensor from outside graphs."""
        weight = self._weights[id(variable)]
        with (
            tf.init_scope(),  # outside graphs, so that all of them can share the tensor
            keras.StatelessScope([(variable, weight)], initialize_variables=False),
        ):
            tensor = variable.value  # `weight`, cast
        if math.prod(tensor.shape) * tensor.dtype.size <= _LARGEST_CONSTANT:
            return tf.constant(tensor.numpy())
        return self._cast.setdefault((id(variable), tensor.dtype), tensor)
