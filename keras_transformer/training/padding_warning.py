"""A warning if padding counts in the loss or in a metric."""

import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.training.metrics import TokenMean

CALLER = 4  # stack level of the code that calls `fit`


def warn_if_padding_counts(
    model: keras.Model, pad_token_id: int, arguments: Mapping[str, Any]
) -> None:
    """Warns if padding has weight 1 in the compiled loss or in `TokenAccuracy` or `Perplexity`.

    No warning is given where it is unknown: for data that must be read to see their structure, such
    as generators, and for a loss without the attribute `ignore_class`.

    Args:
        model: compiled model.
        pad_token_id: label of the padding.
        arguments: those of `fit` or another training method.
    """
    compiled = model._compile_metrics
    unweighted = keras.tree.flatten(compiled._user_metrics) if compiled is not None else []
    problems = [
        f"`{type(metric).__name__}` in `metrics`: Keras gives sample weights only to "
        "`weighted_metrics`"
        for metric in unweighted
        if isinstance(metric, TokenMean) and metric.ignore_class is None
    ]
    losses = keras.tree.flatten(getattr(model, "loss", None))
    counts = any(getattr(loss, "ignore_class", pad_token_id) is None for loss in losses)
    if counts and not _may_have_sample_weight(arguments):
        problems.append("the loss: the data have no `sample_weight`")
    if problems:
        warnings.warn(
            f"Padding counts in {', and in '.join(problems)}. Pass `ignore_class={pad_token_id}` "
            "to the loss and the metrics, or `sample_weight` with 0 at padding and metrics as "
            "`weighted_metrics`. `make_dataset` makes such a `sample_weight`.",
            UserWarning,
            stacklevel=CALLER,
        )


def _may_have_sample_weight(arguments):
    if arguments.get("sample_weight") is not None:
        return True
    if arguments.get("y") is not None:
        return False
    spec = getattr(arguments["x"], "element_spec", None)  # of a `tf.data.Dataset`
    return not isinstance(spec, tuple) or len(spec) > 2
