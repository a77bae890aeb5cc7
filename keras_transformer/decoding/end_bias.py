"""A bias of the tokens that end a translation: longer or shorter translations in every engine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.data.pieces import SPACE_SYMBOL
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.frozen import copy_weights, model_of_config
from keras_transformer.decoding.sentences import SENTENCE_MARKS
from keras_transformer.present_weights import present_weights


def with_end_bias(model: Any, bias: float, tokenizer: Any = None) -> Any:
    """Returns a copy of a model, with a number added to the logit of the end token.

    A negative number makes translations longer, also those of greedy search. After a full stop, a
    model is almost sure of the end token, so a bias of that token alone changes little. Give the
    tokenizer, and tokens such as `.` and `?` get the bias too.

    The number is added to the copy's `output_bias`, so files and exports of the copy contain it. On
    TensorFlow, model and copy share the memory of the weights until either is trained. The copy is
    not compiled.

    Args:
        model: `Transformer`; or `Ensemble`, each of whose models gets the bias.
        bias: float, added to the logits: the odds of these tokens are multiplied by `exp(bias)`.
        tokenizer: that of the target. Defaults to `None`: the end token alone.

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
        return Ensemble([with_end_bias(member, bias, tokenizer) for member in model.models])
    if not hasattr(model, "logits_layer"):
        raise TypeError(
            "`model` must be a `Transformer` or an `Ensemble`; of a translator, give "
            f"`translator.model`. Received: {type(model).__name__}"
        )
    config = model.get_config()
    config["config"] = config["config"] | {"output_bias": True}
    copy = model_of_config(model, config)
    is_new = not model.config.output_bias
    weights = [w for w in copy.weights if not (is_new and w is copy.logits_layer.bias)]
    copy_weights(weights, present_weights(model))
    set_end_bias(copy, model, bias, end_tokens(model, tokenizer))
    return copy


def end_tokens(model: Any, tokenizer: Any = None) -> list[int]:
    """Returns the ids of the end token and, with a tokenizer, of marks that end a sentence."""
    vocabulary = [] if tokenizer is None else tokenizer.vocabulary
    texts = [(token or "").removeprefix(SPACE_SYMBOL) for token in vocabulary]
    mark_ids = [i for i, text in enumerate(texts) if text and SENTENCE_MARKS.issuperset(text)]
    return [model.config.end_token_id, *mark_ids]


def set_end_bias(copy: Any, model: Any, bias: float, token_ids: Sequence[int]) -> None:
    """Changes the bias of a copy, in place, to that of `with_end_bias(model, bias)`.

    Searches that were traced or compiled for the copy use the new bias.

    Args:
        copy: what `with_end_bias` returned for the model.
        model, bias: as in `with_end_bias`.
        token_ids: what `end_tokens` returned.
    """
    if isinstance(model, Ensemble):
        for copied, original in zip(copy.models, model.models, strict=True):
            set_end_bias(copied, original, bias, token_ids)
        return
    weight, ids = copy.logits_layer.bias, np.array(token_ids)
    values = np.array(ops.convert_to_numpy(weight))
    has_bias = model.config.output_bias
    values[ids] = ops.convert_to_numpy(model.output_bias)[ids] if has_bias else 0.0
    values[ids] += np.float32(bias)
    weight.assign(values)
