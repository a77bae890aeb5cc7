"""Training a part of a model: frozen weights and LoRA.

The model of `init_from` is then the base of the run: its checkpoints hold what is trained, and its
model files are those of a plain model, with the differences of LoRA added to the weights.
"""

import collections
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.layers.composite_layer import Projection
from keras_transformer.layers.float_weight import LAST_ROWS, is_substitute, with_trained
from keras_transformer.layers.parts import parts_of
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.training_settings import FREEZE, LORA_LAYERS, TrainingSettings
from keras_transformer.training.model_state import TRAINED, save_model
from keras_transformer.types import Path


def adapt(model: Transformer, training: TrainingSettings) -> None:
    """Freezes weights and adds the matrices of LoRA, as the settings say. Compile afterwards.

    The embeddings of tokens that were added to the model are trained in any case.

    Args:
        model: built.
        training: with `lora_rank`, only the matrices of LoRA are trained.
    """
    for name in training.freeze or ():
        _freeze(model, FREEZE[name])
    if training.lora_rank is not None:
        _freeze(model, "")
        patterns = [LORA_LAYERS[name] for name in training.lora_layers or ("query", "value")]
        for path, part in parts_of(model, "").items():
            if isinstance(part, Projection) and re.search("|".join(patterns), path):
                part.enable_lora(training.lora_rank)
    embedding = model.decoder.embedding  # of both sides, if tokens were added
    if model.config.added_tokens and not embedding.trainable_weights:
        embedding.train_last_rows(model.config.added_tokens)


def _freeze(model, pattern):
    for weight in model.weights:
        if re.search(pattern, weight.path):
            weight.trainable = False


def base_of(training: TrainingSettings) -> dict[str, str] | None:
    """Returns path and hash of the model file of `init_from`; `None` if all weights are trained.

    Raises:
        FileNotFoundError: if the file is missing.
    """
    if not training.has_base:
        return None
    path = RunFolder.existing(str(training.init_from)).model_file
    with open(path, "rb") as file:
        return {"path": str(path), "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def merged_weights(weights: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields path and array of each weight of a plain model, made of those of an adapted one.

    A frozen weight has what was trained in its place, such as a difference by LoRA.

    Args:
        weights: variables or arrays of the adapted model by their paths.
    """
    layers: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for path, weight in weights.items():
        layer, _, name = path.rpartition("/")
        layers[layer][name] = weight
    for layer, by_name in layers.items():
        substitutes = {name: _array(w) for name, w in by_name.items() if is_substitute(name)}
        for name, weight in by_name.items():
            if name not in substitutes:
                # The factor of LoRA is 1, as `adapt` makes it.
                yield f"{layer}/{name}", with_trained(_array(weight), substitutes, name)


def _array(value):
    return value if isinstance(value, np.ndarray) else ops.convert_to_numpy(ops.copy(value))


def merged_arrays(
    base: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the state of a plain model, made of the frozen and the trained weights.

    Args:
        base: state of the model that the frozen weights are from, see `model_state`.
        trained: state of the trained part: `trained/<path>` to array.
    """
    parts = {name.replace(f"{TRAINED}/", "model/", 1): array for name, array in trained.items()}
    return dict(merged_weights({**base, **parts}))


def plain_model(model: Transformer) -> Transformer:
    """Returns a plain model, all trainable, with the weights of an adapted one."""
    plain = type(model)(model.config, dtype=model.dtype_policy)
    variables = {weight.path: weight for weight in plain.weights}
    for path, value in merged_weights({weight.path: weight for weight in model.weights}):
        variables[path].assign(value)
    return plain


def set_weights(model: Transformer, weight_of: Callable[[str], Any]) -> None:
    """Sets the weights of a plain or adapted model to those of a plain one.

    Args:
        model: what is trained beside its weights is set to change nothing: LoRA's differences to 0.
        weight_of: returns the weight of a path.
    """
    for weight in model.weights:
        layer, _, name = weight.path.rpartition("/")
        if name == LAST_ROWS:
            weight.assign(weight_of(f"{layer}/embeddings")[-weight.shape[0] :])
        elif name.startswith("lora_") and name.endswith("_b"):
            weight.assign(ops.zeros(weight.shape))
        elif not is_substitute(name):
            weight.assign(weight_of(weight.path))


def save_plain_model(model: Transformer, path: Path) -> None:
    """Writes the `plain_model` of a model to a `.keras` file atomically."""
    save_model(plain_model(model), path)
