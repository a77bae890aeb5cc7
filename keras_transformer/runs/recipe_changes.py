"""Changes of single keys of a recipe, such as `training.epochs=5`. Pure Python."""

from typing import Any

from keras_transformer.settings import read_yaml, yaml_line


def apply_change(change: str, values: dict[str, Any]) -> None:
    """Applies a change to the mapping of a recipe.

    Args:
        change: `"SECTION.KEY=VALUE"`, the value in YAML.
        values: the mapping, whose sections become copies.

    Raises:
        ValueError: if the change has another form, or its value is not valid YAML.
    """
    path, equals, text = change.partition("=")
    *sections, key = path.strip().split(".")
    if not (equals and sections and all((*sections, key))):
        raise ValueError(
            "A changed key must be SECTION.KEY=VALUE, such as training.epochs=5. "
            f"Received: {change!r}"
        )
    for number, section in enumerate(sections, start=1):
        inner = values.get(section, {})
        if not isinstance(inner, dict):
            raise ValueError(
                f"`{'.'.join(sections[:number])}` must be a mapping of keys to values. "
                f"Received: {yaml_line(inner)}"
            )
        values[section] = dict(inner)  # copy: YAML aliases share one object
        values = values[section]
    values[key] = read_yaml(text)
