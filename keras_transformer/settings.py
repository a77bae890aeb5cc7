"""Settings that check themselves: the base of all configuration read from YAML.

Pure Python.
"""

from dataclasses import asdict, fields

import yaml


class Settings:
    """Base of frozen dataclasses whose fields come from users.

    Checks each value against the type that its field is annotated with, and names the field where
    something is wrong. Subclasses call `super().__post_init__()` before checks of their own.
    """

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            # An int may stand for a float; a bool, though an int to Python, may not stand for one.
            is_float = field.type in (float, float | None)
            allowed = field.type | int if is_float else field.type
            if not isinstance(value, allowed) or (
                isinstance(value, bool) and field.type is not bool
            ):
                self._reject(field.name, f"of type {_name_of(field.type)}")

    def to_dict(self):
        """Returns all fields as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Returns the settings that `to_dict` described; unknown or missing keys are an error."""
        if not isinstance(values, dict):
            raise ValueError(
                f"{cls.__name__} must be a mapping of fields to values. Received: {values!r}"
            )
        known = [field.name for field in fields(cls)]
        unknown = [str(key) for key in values if key not in known]
        if unknown:
            raise ValueError(
                f"Unknown key of {cls.__name__}: {', '.join(map(repr, unknown))}. "
                f"Known keys: {', '.join(known)}"
            )
        try:
            return cls(**values)
        except TypeError as error:  # a field without a default is missing
            raise ValueError(f"{cls.__name__}: {str(error).split('() ')[-1]}") from None

    def to_yaml(self):
        """Returns all fields as YAML text."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text):
        """Returns the settings that `to_yaml` wrote."""
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"Not valid YAML: {' '.join(str(error).split())}") from None
        return cls.from_dict(values)

    def _reject(self, name, expected):
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={getattr(self, name)!r}")


def _name_of(kind):
    return getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)
