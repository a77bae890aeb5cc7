"""Base class of validated settings, with reading and writing of YAML.

Pure Python.
"""

import difflib
import inspect
import re
import reprlib
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import yaml


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses whose fields come from users.

    Checks each value against the annotated type of its field, and rejects infinite floats and NaN.
    Converts numbers of NumPy and TensorFlow to Python's. Errors name the field. Subclasses call
    `super().__post_init__()` before their own checks.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _plain_number(getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            # Accept int for float, but not bool, which is a subclass of int.
            is_float = field.type in (float, float | None)
            allowed: Any = field.type | int if is_float else field.type
            is_bool = isinstance(value, bool)
            if not isinstance(value, allowed) or (is_bool and field.type is not bool):
                name = field.type.__name__ if isinstance(field.type, type) else field.type
                self._reject(field.name, f"of type {name}")
            # Also rejects ints that are too large for a float; `not <=` also rejects NaN.
            if is_float and value is not None and not abs(value) <= sys.float_info.max:
                self._reject(field.name, "a finite number")

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], others: Iterable[str] = ()) -> Self:
        """Creates settings from the dict of `to_dict`; unknown and missing keys are errors.

        Args:
            values: dict.
            others: keys that stand beside them, for the error. Optional.
        """
        if not isinstance(values, dict):
            received = "nothing" if values is None else reprlib.repr(values)
            raise ValueError(
                f"{cls.__name__} must be a mapping of fields to values. Received: {received}"
            )
        own = list(inspect.signature(cls).parameters)
        known = [*own, *others]
        for key in map(str, values):
            if key not in own:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}"
                raise ValueError(f"Unknown key of {cls.__name__}: {key!r}. {hint}")
        try:
            return cls(**values)
        except TypeError as error:  # a field without a default is missing
            raise ValueError(f"{cls.__name__}: {str(error).split('() ')[-1]}") from None

    def to_yaml(self) -> str:
        """Returns all fields as YAML text."""
        return yaml_text(self.to_dict())

    def _make_lists(self, *names):
        """Makes one path a list of one, before the types are checked."""
        for name in names:
            if isinstance(path := getattr(self, name), str):
                object.__setattr__(self, name, [path])

    def _require(self, name, is_valid, expected):
        if not is_valid:
            self._reject(name, expected)

    def _require_choice(self, name, choices):
        self._require(
            name, getattr(self, name) in choices, f"one of {', '.join(map(str, choices))}"
        )

    def _reject(self, name, expected):
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={getattr(self, name)!r}")


def read_yaml(text: str) -> Any:
    """Returns the plain values of YAML text.

    Floats may be written as `1e-3`, which YAML 1.1 reads as text. Duplicate keys are an error.

    Raises:
        ValueError: if the text is not valid YAML.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {_problem_of(error)}") from None


def yaml_text(values: Any, **style: Any) -> str:
    """Returns plain values as YAML text."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, **style)


def yaml_line(value: Any) -> str:
    """Returns a plain value as one line of YAML."""
    text = yaml_text(value, default_flow_style=True, width=sys.maxsize)
    return text.removesuffix("...\n").strip()  # the end mark of a document that is one scalar


def _plain_number(value):
    """A number of NumPy or TensorFlow as Python's; any other value as it is."""
    value = value.numpy() if hasattr(value, "numpy") else value
    is_number = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


class _Loader(yaml.SafeLoader):
    """Loads plain values; rejects duplicate keys."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        lines = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    problem = f"duplicate key {key.value!r}, first in line {lines[key.value]}"
                    raise yaml.composer.ComposerError(None, None, problem, key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a float."""


# In YAML 1.1 a float needs a point and a signed exponent: `1e-3` and `1.0e3` are text. Read them
# as floats.
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )


def _problem_of(error):
    """Returns the position and the problem of a YAML error, in one line."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # a character that YAML does not allow
        return str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
