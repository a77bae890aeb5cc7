"""Training a part of a model: frozen weights and LoRA.

The run `init_from` gives the frozen weights: its model is the base. The checkpoints of such a run
hold only what is trained. Its model files hold plain models: the differences of LoRA are added to
the weights.
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
        training: with `lora_rank`, only the matrices of LoRA are trained. Layers that `freeze`
            names get none.

    Raises:
        ValueError: if nothing is left to train.
    """
    for name in training.freeze or ():
        _freeze(model, FREEZE[name])
    if training.lora_rank is not None:
        patterns = [LORA_LAYERS[name] for name in training.lora_layers or ("query", "value")]
        layers = [
            part
            for path, part in parts_of(model, "").items()
            if isinstance(part, Projection) and re.search("|".join(patterns), path)
        ]
        layers = [layer for layer in layers if layer.kernel.trainable]
        _freeze(model, "")
        for layer in layers:
            layer.enable_lora(training.lora_rank)
    embedding = model.decoder.embedding  # a model with added tokens shares it with the encoder
    if model.config.added_tokens and not embedding.trainable_weights:
        embedding.train_last_rows(model.config.added_tokens)
    if not model.trainable_weights:
        raise ValueError(
            "`freeze` of `training` must leave weights to train. Received: "
            f"freeze={training.freeze}, lora_rank={training.lora_rank}. Take a part out of it."
        )


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
    """Yields path and array of each weight of the plain model that an adapted model is equal to.

    What was trained in place of a frozen weight, such as a difference by LoRA, is merged into it.

    Args:
        weights: variables or arrays of the adapted model by their paths.
    """
    layers: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for path, weight in weights.items():
        layer, _, name = path.rpartition("/")
        layers[layer][name] = weight
    for layer, by_name in layers.items():
        trained = {name: _array(weight) for name, weight in by_name.items() if is_substitute(name)}
        for name, weight in by_name.items():
            if name not in trained:
                # `adapt` leaves the factor of LoRA at 1.
                yield f"{layer}/{name}", with_trained(_array(weight), trained, name)


def _array(value):
    return value if isinstance(value, np.ndarray) else ops.convert_to_numpy(ops.copy(value))


def merged_arrays(
    base: Mapping[str, np.ndarray], trained: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the state of the plain model with these frozen and trained weights.

    Args:
        base: state of the model that the frozen weights are from, see `model_state`.
        trained: state of the trained part: `trained/<path>` to array.
    """
    parts = {name.replace(f"{TRAINED}/", "model/", 1): array for name, array in trained.items()}
    return dict(merged_weights({**base, **parts}))


def plain_model(model: Transformer) -> Transformer:
    """Returns a plain, wholly trainable model that computes the same as an adapted one."""
    plain = type(model)(model.config, dtype=model.dtype_policy)
    variables = {weight.path: weight for weight in plain.weights}
    for path, value in merged_weights({weight.path: weight for weight in model.weights}):
        variables[path].assign(value)
    return plain


def set_weights(model: Transformer, weight_of: Callable[[str], Any]) -> None:
    """Sets the weights of a plain or adapted model so that it computes the same as a plain one.

    Args:
        model: the model to change. LoRA's differences in it become 0.
        weight_of: returns the plain model's weight with a path.
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
