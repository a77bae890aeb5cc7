"""What was done to the parts of a layer after building it: frozen, LoRA, quantized.

Keras stores it for layers that are saved themselves, but a layer's config rebuilds its parts anew.
"""

import json
from collections.abc import Mapping
from typing import Any

import keras


def parts_of(layer: keras.layers.Layer, outside: str) -> dict[str, Any]:
    """Returns a dict from path to part: sub-layers and weights, outer parts first.

    Freezing an outer layer, or the opposite, does the same to its parts; two may share a part.

    Args:
        layer: built.
        outside: the beginning of the paths that the keys leave out.
    """
    parts = [*layer._flatten_layers(include_self=False), *layer.weights]
    by_path = {(part.path or part.name).removeprefix(outside): part for part in parts}
    return dict(sorted(by_path.items(), key=lambda item: item[0].count("/")))


def adaptations(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns LoRA ranks and kinds of quantization by path, as JSON; empty if there are none."""
    lora = {
        path: [part.lora_rank, part.lora_alpha]
        for path, part in parts.items()
        if getattr(part, "lora_enabled", False)
    }
    quantized = {
        path: _as_json(getattr(part, "quantization_config", None) or part.quantization_mode)
        for path, part in parts.items()
        if getattr(part, "quantization_mode", None)
    }
    return {k: v for k, v in {"quantized": quantized, "lora": lora}.items() if v}


def _as_json(kind):
    return json.loads(json.dumps(keras.saving.serialize_keras_object(kind)))


def adapt(
    parts: Mapping[str, Any], quantized: Mapping[str, Any] = {}, lora: Mapping[str, list] = {}
) -> None:
    """Quantizes parts and enables LoRA again, before the weights are loaded."""
    for path, saved in quantized.items():
        kind = keras.saving.deserialize_keras_object(saved)
        parts[path].quantize(**{"mode" if isinstance(kind, str) else "config": kind})
    for path, (rank, alpha) in lora.items():
        parts[path].enable_lora(rank, alpha)
