"""What must be the same when a training is resumed: the pairs, their batches, and the training."""

import contextlib
import json
import pathlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_transformer.data.pipeline import BatchStream
from keras_transformer.layers.parts import parts_of
from keras_transformer.training.model_state import unnumbered

serialize = keras.saving.serialize_keras_object

# Keys of configs that change no number of a training: where a class is, what the checkpoint holds.
LEFT_OUT = "module registered_name shared_object_id build_config compile_config seed".split()


def identity_of(
    stream: BatchStream, validation: BatchStream | None, model: keras.Model | None
) -> dict[str, Any]:
    """Returns the hashes of the pairs, the arguments of the batches and the training, as JSON.

    Args:
        stream: the training batches.
        validation: the validation batches. Optional.
        model: compiled model; `None` if a recipe states the training.
    """
    return {
        "data": stream.fingerprint,
        "validation": None if validation is None else validation.fingerprint,
        "batches": stream.settings,
        "training": {} if model is None else _training_of(model),
    }


def _training_of(model):
    """The configs of a compiled model, its optimizer and its loss, as JSON.

    Weights, random states and a learning rate that is a number are in the checkpoint, not here.
    What has no config is left out.
    """
    parts = [part for part in parts_of(model, "").values() if isinstance(part, keras.layers.Layer)]
    has_config = type(model).get_config is not keras.Model.get_config
    whole = _config(serialize, model) if has_config else None
    return {
        "model": [_config(serialize, part) for part in parts] if whole is None else whole,
        "r_drop": getattr(model, "r_drop", 0.0),
        "optimizer": _config(serialize, model.optimizer),
        "loss": _config(serialize, model.loss),
        "loss_weights": (_config(model.get_compile_config) or {}).get("loss_weights"),
    }


def _config(make, *arguments):
    with contextlib.suppress(Exception), warnings.catch_warnings():  # of a class of the user
        warnings.simplefilter("ignore")  # of a loss that is a lambda
        return _essence(json.loads(json.dumps(make(*arguments))))
    return None


def _essence(value):
    """A config without what does not count; see `LEFT_OUT`."""
    if isinstance(value, dict):
        return {
            key: _essence(inner)
            for key, inner in value.items()
            if key not in LEFT_OUT
            and not key.endswith("initializer")
            and not (key == "learning_rate" and isinstance(inner, float))
        }
    if isinstance(value, list):
        return [_essence(inner) for inner in value]
    return unnumbered(value) if isinstance(value, str) else value


def _differences(saved: Any, now: Any, name: str, owner: str = "") -> Iterator[str]:
    """Yields `"Adam.beta_1=0.8, not 0.9"` for each difference of two configs.

    Keys that only one of them has do not count: another version of Keras may add some.
    """
    if isinstance(saved, dict) and isinstance(now, dict):
        classes = saved.get("class_name"), now.get("class_name")
        if classes[0] != classes[1]:
            yield f"{name}={classes[1]}, not {classes[0]}"
            return
        for key in [key for key in saved if key in now]:
            yield from _differences(saved[key], now[key], key, now.get("class_name", owner))
    elif isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        for one, other in zip(saved, now, strict=True):
            yield from _differences(one, other, name, owner)
    elif saved != now:
        yield f"{owner and f'{owner}.'}{name}={now}, not {saved}"


def check_identity(
    identity: Mapping[str, Any],
    saved: Mapping[str, Any],
    path: pathlib.Path | str,
    advice: str,
) -> None:
    """Raises a `ValueError` if pairs, batches or training are not those of a checkpoint.

    Args:
        identity: from `identity_of`.
        saved: metadata of the checkpoint.
        path: file of the checkpoint, for the message.
        advice: what to do instead of resuming, for the message.
    """
    for name, split in (("data", "training"), ("validation", "validation")):
        values = saved[name], identity[name]
        if values[0] != values[1] and None not in values:  # one `fit` had no validation data
            raise ValueError(
                f"The {split} pairs differ from those of {path}. Use the same data, or {advice}."
            )
    now = identity["batches"]
    before = dict.fromkeys(now) | saved["batches"]  # unused noise is left out
    now = dict.fromkeys(before) | now
    training = saved["training"], identity["training"]
    for what, cure, configs in (
        ("batches differ from those", "Use the same arguments of `make_dataset`", (before, now)),
        ("training differs from that", "Compile the same model as before", training),
    ):
        received = list(dict.fromkeys(_differences(*configs, "")))
        if received:
            more = f" and {len(received) - 3} more" if len(received) > 3 else ""
            raise ValueError(
                f"The {what} of {path}. Received: {', '.join(received[:3])}{more}. "
                f"{cure}, or {advice}."
            )
