"""A bias of the end token: translations of a model that are longer or shorter in every engine."""

from typing import Any

import numpy as np
from keras import ops

from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.frozen import copy_weights
from keras_transformer.present_weights import present_weights


def with_end_bias(model: Any, bias: float) -> Any:
    """Returns a copy of a model, with a number added to the logit of the end token.

    A negative number makes the translations of every search longer, greedy search too. It is part
    of the bias of the logits, and `output_bias` of the copy's config is `True`: files and exports
    of the copy have it. On TensorFlow, the copy shares the memory of the weights until one of both
    is trained. It is not compiled.

    Args:
        model: `Transformer`; or `Ensemble`, each of whose models gets the bias.
        bias: float, added to the logit: the odds of the end token are multiplied by `exp(bias)`.

    Returns:
        a model of the same class.

    Raises:
        TypeError: if `model` is neither, such as a `Translator`.
        ValueError: if `bias` is not finite in float32.

    >>> model = keras_transformer.Transformer(vocabulary_size=50, num_layers=1, hidden_dim=16)
    >>> longer = keras_transformer.with_end_bias(model, -0.5)
    >>> float(longer.output_bias[model.config.end_token_id])
    -0.5
    """
    if not abs(bias) <= float(np.finfo("float32").max):
        raise ValueError(f"`bias` must be a finite number of float32. Received: {bias=}")
    if isinstance(model, Ensemble):
        return Ensemble([with_end_bias(each, bias) for each in model.models])
    if not hasattr(model, "logits_layer"):
        raise TypeError(
            "`model` must be a `Transformer` or an `Ensemble`; of a translator, give "
            f"`translator.model`. Received: {type(model).__name__}"
        )
    config = model.get_config()
    config["config"] = config["config"] | {"output_bias": True}
    copy = type(model).from_config(config)
    is_new = not model.config.output_bias
    weights = [w for w in copy.weights if not (is_new and w is copy.logits_layer.bias)]
    copy_weights(weights, present_weights(model))
    set_end_bias(copy, model, bias)
    return copy


def set_end_bias(copy: Any, model: Any, bias: float) -> None:
    """Sets the bias of a copy to what `with_end_bias(model, bias)` has.

    Searches that are traced or compiled for the copy then use it.

    Args:
        copy: what `with_end_bias` returned for the model.
        model, bias: as in `with_end_bias`.
    """
    if isinstance(model, Ensemble):
        for each, original in zip(copy.models, model.models, strict=True):
            set_end_bias(each, original, bias)
        return
    token_id, weight = model.config.end_token_id, copy.logits_layer.bias
    before = float(model.output_bias[token_id]) if model.config.output_bias else 0.0
    values = np.array(ops.convert_to_numpy(weight))
    values[token_id] = before + bias
    weight.assign(values)
