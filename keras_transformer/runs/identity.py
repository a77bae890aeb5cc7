"""What must be the same when a training is resumed: the pairs, their batches, and the training."""

import contextlib
import json
import pathlib
import warnings
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.data.pipeline import UNSTORED, BatchStream
from keras_transformer.layers.parts import parts_of
from keras_transformer.texts import first_of
from keras_transformer.training.methods import TrainingStep
from keras_transformer.training.model_state import unnumbered

serialize = keras.saving.serialize_keras_object

# Keys of configs that do not change a training: names of classes, and what checkpoints hold.
LEFT_OUT = "module registered_name shared_object_id build_config compile_config seed".split()


def identity_of(
    stream: BatchStream,
    validation: BatchStream | None,
    model: keras.Model | None,
    base: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Returns the hashes of the pairs, the arguments of the batches and the training, as JSON.

    Args:
        stream: the training batches.
        validation: the validation batches. Optional.
        model: compiled model; `None` if a recipe states the training.
        base: path and hash of the model that frozen weights are from. Optional.
    """
    settings = dict.fromkeys(UNSTORED) | stream.settings
    return {
        "data": stream.fingerprint,  # with the languages, however they are spelled
        "validation": None if validation is None else validation.fingerprint,
        "batches": {name: value for name, value in settings.items() if name not in LANGUAGES},
        "training": {} if model is None else dict(_values(_training_of(model))),
        **({} if base is None else {"base": base}),
    }


def _training_of(model):
    """Returns the configs of a compiled model, its optimizer and its loss, as JSON.

    A model without a config is replaced by the configs of its layers, any other object by `None`.
    """
    has_config = type(model).get_config is not keras.Model.get_config
    config = _config(serialize, model) if has_config else None
    if config is None:
        parts = parts_of(model, "").values()
        layers = [part for part in parts if isinstance(part, keras.layers.Layer)]
        config = [_config(serialize, layer) for layer in layers]
    return {
        "model": config,
        "r_drop": model.r_drop if isinstance(model, TrainingStep) else 0.0,
        "optimizer": _config(serialize, model.optimizer),
        "loss": _config(serialize, model.loss),
        "loss_weights": (_config(model.get_compile_config) or {}).get("loss_weights"),
    }


def _config(make, *arguments):
    """Returns what `make` returns for the arguments, as plain values of JSON; `None` if it fails.

    A class of the user may raise any exception.
    """
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of a loss that is a lambda
        return json.loads(json.dumps(make(*arguments)))
    return None


def _values(config, name=""):
    """Yields each value of nested configs by its name, such as `optimizer.Adam.beta_1`.

    Leaves out `LEFT_OUT`, initializers and a constant learning rate: the checkpoint holds what they
    set.
    """
    if isinstance(config, dict):
        for key, inner in config.items():
            if key not in LEFT_OUT and not key.endswith("initializer"):
                part = config.get("class_name", key) if key == "config" else key
                yield from _values(inner, f"{name}.{part}".lstrip("."))
    elif isinstance(config, list):
        yield f"{name}.length", len(config)
        for index, inner in enumerate(config):
            yield from _values(inner, f"{name}.{index}")
    elif isinstance(config, str):
        yield name, unnumbered(config)
    elif not (name.endswith(".learning_rate") and isinstance(config, float)):
        yield name, config


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
        old, new = saved[name], identity[name]
        if old != new and None not in (old, new):  # `None`: no validation data in that `fit`
            raise ValueError(
                f"The {split} pairs differ from those of {path}. Use the same data, or {advice}."
            )
    if "base" in identity:
        check_base(identity["base"], saved, path, advice)
    for name, what, cure in (
        ("batches", "batches differ from those", "Use the same arguments of `make_dataset`"),
        ("training", "training differs from that", "Compile the same model as before"),
    ):
        # Keys in only one of the two do not count: another version of Keras may add keys.
        values = {key: (now, saved[name].get(key, now)) for key, now in identity[name].items()}
        received = [f"{key}={now}, not {old}" for key, (now, old) in values.items() if now != old]
        if received:
            raise ValueError(
                f"The {what} of {path}. Received: {first_of(received, 3)}. {cure}, or {advice}."
            )


def check_base(
    base: Mapping[str, str],
    saved: Mapping[str, Any],
    path: pathlib.Path | str,
    advice: str = "average another run",
) -> None:
    """Raises a `ValueError` if the frozen weights of a checkpoint were those of another model.

    Args:
        base: path and hash of the model.
        saved, path, advice: as in `check_identity`.
    """
    if base["sha256"] != saved["base"]["sha256"]:
        raise ValueError(
            f"{base['path']} must be the model that this run was trained from, because {path} "
            "holds only what was trained. Received: a model with another hash. Restore that "
            f"file, or {advice}."
        )
