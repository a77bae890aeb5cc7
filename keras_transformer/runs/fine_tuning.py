"""Training a part of a model: frozen weights and LoRA.

The model of `init_from` is then the base of the run: its checkpoints hold what is trained, and its
model files are those of a plain model, with the differences of LoRA added to the weights.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.layers.composite_layer import Projection
from keras_transformer.layers.parts import parts_of
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.training_settings import FREEZE, LORA_LAYERS, TrainingSettings
from keras_transformer.training.model_state import save_model
from keras_transformer.types import Path


def adapt(model: Transformer, training: TrainingSettings) -> None:
    """Freezes weights and adds the matrices of LoRA, as the settings say. Compile afterwards.

    Args:
        model: built.
        training: with `lora_rank`, only the matrices of LoRA are trained.
    """
    for name in training.freeze or ():
        _freeze(model, FREEZE[name])
    if training.lora_rank is None:
        return
    _freeze(model, "")
    patterns = [LORA_LAYERS[name] for name in training.lora_layers or ("query", "value")]
    for path, part in parts_of(model, "").items():
        if isinstance(part, Projection) and re.search("|".join(patterns), path):
            part.enable_lora(training.lora_rank)


def _freeze(model, pattern):
    for weight in model.weights:
        if re.search(pattern, weight.path):
            weight.trainable = False


def is_of_lora(path: str) -> bool:
    """Whether the weight of a path is a matrix of LoRA."""
    return "/lora_" in path


def base_of(training: TrainingSettings) -> dict[str, str] | None:
    """Returns path and hash of the model file of `init_from`, if a part of the model is trained.

    Raises:
        FileNotFoundError: if it is missing.
    """
    if not training.has_base:
        return None
    path = RunFolder.existing(str(training.init_from)).model_file
    with open(path, "rb") as file:
        return {"path": str(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def merged_weight(weights: Mapping[str, Any], path: str) -> np.ndarray:
    """Returns a weight with what was trained beside it.

    Args:
        weights: variables or arrays by their paths.
        path: of a weight of the plain model.
    """
    value = _array(weights[path])
    folder, _, name = path.rpartition("/")
    first = weights.get(f"{folder}/lora_{name}_a")
    if first is not None:
        value = value + _array(first) @ _array(weights[f"{folder}/lora_{name}_b"])
    return value


def _array(value):
    return value if isinstance(value, np.ndarray) else ops.convert_to_numpy(ops.copy(value))


def plain_model(model: Transformer) -> Transformer:
    """Returns a model with the weights of an adapted one, whose weights are all trainable."""
    weights = {weight.path: weight for weight in model.weights}
    plain = type(model)(model.config, dtype=model.dtype_policy)
    for weight in plain.weights:
        weight.assign(merged_weight(weights, weight.path))
    return plain


def set_merged(model: Transformer, arrays: Mapping[str, np.ndarray]) -> None:
    """Sets the weights of a plain or adapted model to those of a plain one.

    Args:
        model: the matrices of LoRA become zeros.
        arrays: state of a plain model, `model/<path>`.
    """
    for weight in model.weights:
        is_difference = is_of_lora(weight.path)
        weight.assign(ops.zeros_like(weight) if is_difference else arrays[f"model/{weight.path}"])


def save_plain_model(model: Transformer, path: Path) -> None:
    """Writes the `plain_model` of a model to a `.keras` file atomically."""
    save_model(plain_model(model), path)


def merged_arrays(
    base: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the state of a plain model.

    Args:
        base: that of a model with the weights that are frozen, see `model_state`.
        trained: that of the trained part, `trained/<path>`.
    """
    weights = dict(base)
    for name, array in trained.items():
        weights[name.replace("trained/", "model/", 1)] = array
    return {name: merged_weight(weights, name) for name in base if not is_of_lora(name)}
