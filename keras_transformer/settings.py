"""Settings that check themselves: the base of all configuration read from YAML.

Pure Python.
"""

import difflib
import re
import reprlib
import sys
from dataclasses import asdict, fields

import yaml


class Settings:
    """Base of frozen dataclasses whose fields come from users.

    Checks each value against the type that its field is annotated with, refuses floats that are
    infinite or not a number, and names the field where something is wrong. Subclasses call
    `super().__post_init__()` before checks of their own.
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
            # An int beyond all floats is as wrong as an infinite float. NaN compares as False.
            if is_float and value is not None and not abs(value) <= sys.float_info.max:
                self._reject(field.name, "a finite number")

    def to_dict(self):
        """Returns all fields as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values):
        """Returns the settings that `to_dict` described; unknown or missing keys are an error."""
        if not isinstance(values, dict):
            received = "nothing" if values is None else reprlib.repr(values)
            raise ValueError(
                f"{cls.__name__} must be a mapping of fields to values. Received: {received}"
            )
        known = [field.name for field in fields(cls)]
        for key in map(str, values):
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}"
                raise ValueError(f"Unknown key of {cls.__name__}: {key!r}. {hint}")
        try:
            return cls(**values)
        except TypeError as error:  # a field without a default is missing
            raise ValueError(f"{cls.__name__}: {str(error).split('() ')[-1]}") from None

    def to_yaml(self):
        """Returns all fields as YAML text."""
        values = self.to_dict()
        return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)

    @classmethod
    def from_yaml(cls, text, source=None):
        """Returns the settings in YAML text, such as `to_yaml` writes.

        Floats may be written as `1e-3`, which YAML 1.1 reads as text. A key that stands twice in
        one mapping is an error.

        Args:
            text: str.
            source: path of the file that the text is from, which errors then name. Optional.
        """
        try:
            return cls.from_dict(yaml.load(text, Loader=_Loader))
        except yaml.YAMLError as error:
            message = f"not valid YAML: {_problem_of(error)}"
        except ValueError as error:
            message = str(error)
        raise ValueError(message if source is None else f"{source}: {message}")

    def _reject(self, name, expected):
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={getattr(self, name)!r}")


def _name_of(kind):
    return getattr(kind, "__name__", str(kind)) if isinstance(kind, type) else str(kind)


class _Loader(yaml.SafeLoader):
    """YAML's plain values; refuses a key that stands twice."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        lines = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    first = lines[key.value]
                    problem = f"the key {key.value!r} stands twice, first in line {first}"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes the text that `_Loader` would read as a float."""


# A float may do without the point and the sign of the exponent, which YAML 1.1 asks for.
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def _problem_of(error):
    """What is wrong in a YAML text, and in which line, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # a character that YAML does not allow
        return str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
