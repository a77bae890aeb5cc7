"""The JSON schema of recipes, with which editors complete and check them. Pure Python."""

from dataclasses import MISSING, fields
from typing import Any, get_args

from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.models.config import TransformerConfig
from keras_transformer.runs.recipe import PRESETS, DataSettings
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.runs.vocabulary_settings import VocabularySettings
from keras_transformer.settings import Settings, setting_of

TYPES = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    tuple: "array",
    dict: "object",
    type(None): "null",
}
BOUNDS = {
    "minimum": "at_least",
    "maximum": "at_most",
    "exclusiveMinimum": "above",
    "exclusiveMaximum": "below",
}
# Fields that no recipe sets: the sizes come from the vocabulary, and YAML cannot hold objects.
NO_KEYS = ("vocabulary_size", "source_vocabulary_size", "processors", "sampler")


def recipe_schema() -> dict[str, Any]:
    """Returns the JSON schema of a recipe, as plain values."""
    data = _section(DataSettings)
    data["properties"]["clean"] |= _section(CleaningSettings) | {"type": ["object", "null"]}
    vocabulary = _section(VocabularySettings)
    # A string stands for a list with this one path.
    vocabulary["properties"]["files"]["type"].append("string")
    for split in ("train", "validation", "test"):
        data["properties"][split]["type"].append("string")
    model = _section(TransformerConfig)
    layers = {"type": "integer", "minimum": 1}
    model["properties"] |= {"preset": {"enum": list(PRESETS)}, "num_layers": layers}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Recipe of keras-transformer",
        "type": "object",
        "properties": {
            "data": data,
            "vocabulary": vocabulary,
            "model": model,
            "training": _section(TrainingSettings),
            "search": _section(SearchSettings, TextSettings),
        },
        "required": ["data"],
        "additionalProperties": False,
    }


def _section(*kinds: type[Settings]) -> dict[str, Any]:
    settings = [field for kind in kinds for field in fields(kind) if field.name not in NO_KEYS]
    section = {
        "type": "object",
        "properties": {field.name: _key(field) for field in settings},
        "additionalProperties": False,
    }
    if required := [field.name for field in settings if field.default is MISSING]:
        section["required"] = required
    return section


def _key(field):
    rule = setting_of(field)
    key = {"description": rule.text}
    if field.default is not MISSING:
        key["default"] = [] if field.default == () else field.default
    if rule.choices:
        return key | {"enum": list(rule.choices)}
    key["type"] = sorted({TYPES[kind] for kind in get_args(field.type) or (field.type,)})
    bounds = {word: getattr(rule, name) for word, name in BOUNDS.items()}
    return key | {word: bound for word, bound in bounds.items() if bound is not None}
