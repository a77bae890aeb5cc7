"""Saves and restores changes to a layer's parts: freezing, LoRA, quantization.

Keras saves such changes in the config of the changed layer. Layers of this package build their
parts anew from their own arguments, so their own configs hold the changes of their parts.
"""

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, Self

import keras


class PartsInConfig(keras.layers.Layer):
    """Layer whose config holds the changes to its parts; `build` applies them again."""

    _saved_parts: Mapping[str, Any] = {}

    def get_config(self) -> dict[str, Any]:
        parts = state_of(self._parts()) if self.built else self._saved_parts
        return {**super().get_config(), **({"parts": parts} if parts else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        config = dict(config)
        parts = config.pop("parts", {})
        layer = super().from_config(config)
        layer._saved_parts = parts
        return layer

    def _parts(self):
        return parts_of(self, prefix=f"{self.path}/")

    def _post_build(self):
        # Runs after the `build` of a subclass, which may add parts.
        parts, self._saved_parts = self._saved_parts, {}
        if parts:
            restore_state(self._parts, parts)
        super()._post_build()


def parts_of(layer: keras.layers.Layer, prefix: str) -> dict[str, Any]:
    """Returns a dict from path to part: sub-layers and weights.

    Outer parts come first, because setting `trainable` of a layer sets it for all its parts. A part
    that two sub-layers share appears once. Keras numbers parts without a name in a process, such as
    `dense_7` and `dense_8`; here they are `dense` and `dense#2`, numbered within their layer.

    Args:
        layer: built.
        prefix: what to remove from the beginning of the paths.
    """
    parts = [*layer._flatten_layers(include_self=False), *layer.weights]
    by_path = {(part.path or part.name).removeprefix(prefix): part for part in parts}
    by_path = dict(sorted(by_path.items(), key=lambda item: item[0].count("/")))
    taken: set[str] = set()
    stable: dict[str, str] = {}  # path in this process -> path in every process
    for path in sorted(by_path, key=lambda path: (path.count("/"), _stem_and_number(path)[1])):
        outer, slash, name = path.rpartition("/")
        start, stem = stable.get(outer, outer) + slash, _stem_and_number(name)[0]
        is_automatic = stem.endswith(_automatic_name(by_path[path]))  # `forward_lstm_1` too
        stable[path] = start + (stem if is_automatic else name)
        numbers = itertools.count(2)
        while stable[path] in taken:
            stable[path] = f"{start}{stem}#{next(numbers)}"
        taken.add(stable[path])
    return {stable[path]: part for path, part in by_path.items()}


def _stem_and_number(name):
    """Returns a name without the number at its end, and the number, or 0: `("dense", 7)`."""
    stem, number = re.fullmatch(r"(.*?)(?:_(\d+))?", name).groups()
    return stem, int(number or 0)


def _automatic_name(part):
    """Returns the name that Keras gives a part without one, without the number."""
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", type(part).__name__)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()


def state_of(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes to the parts, as JSON; empty if there are none.

    Returns:
        dict with some of: `"frozen"`, a list of paths; `"quantized"`, the kind of quantization by
        path; `"lora"`, rank and alpha by path.
    """
    frozen = [path for path, part in parts.items() if not part.trainable]
    lora = {
        path: [part.lora_rank, part.lora_alpha]
        for path, part in parts.items()
        if getattr(part, "lora_enabled", False)
    }
    quantized = {
        # Keras's layers that cannot be quantized have no `quantization_config`.
        path: _as_json(getattr(part, "quantization_config", None) or part.quantization_mode)
        for path, part in parts.items()
        if isinstance(part, keras.layers.Layer) and part.quantization_mode
    }
    state = {"frozen": frozen, "quantized": quantized, "lora": lora}
    return {name: value for name, value in state.items() if value}


def _as_json(quantization):
    """Returns a mode or a config of quantization as it is after JSON: with lists for tuples."""
    return json.loads(json.dumps(keras.saving.serialize_keras_object(quantization)))


def restore_state(find_parts: Any, state: Mapping[str, Any]) -> None:
    """Applies the changes that `state_of` returned, before the weights are loaded.

    Args:
        find_parts: returns the parts by path. Called twice: quantization and LoRA change them.
        state: what `state_of` returned.
    """
    parts = find_parts()
    for path, value in state.get("quantized", {}).items():
        quantization = keras.saving.deserialize_keras_object(value)
        part = parts[_present_path(path, parts)]
        if isinstance(quantization, str):
            part.quantize(mode=quantization)
        else:
            part.quantize(config=quantization)
    for path, (rank, alpha) in state.get("lora", {}).items():
        parts[_present_path(path, parts)].enable_lora(rank, alpha)
    parts = find_parts()
    frozen = {_present_path(path, parts) for path in state.get("frozen", ())}
    for path, part in parts.items():
        part.trainable = path not in frozen


def _present_path(path, parts):
    """Returns the path of a part by its saved path, in which older files have Keras's numbers."""
    if path in parts:
        return path
    matches = (new for new, part in parts.items() if f"/{part.path}".endswith(f"/{path}"))
    return next(matches, path)
