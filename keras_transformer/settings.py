"""Settings that users give. `setting` states a field, its rule and its meaning in one place.

From it come the check and its error, the entry in a docstring, the option of a command and the row
of a page. Also reads and writes YAML. Pure Python.
"""

import difflib
import inspect
import re
import reprlib
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import Any, Self, get_args

import yaml

SECTIONS = re.compile(r"^    (?:Raises|Example|Reference)", re.MULTILINE)  # sections after `Args`


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a setting means, and which values of its type are allowed.

    Args:
        text: sentences; `--help` shows the first one.
        at_least, at_most, above, below: bounds of a number. Optional.
        choices: tuple of all values that it may have. Optional.
        default_text: the default in words, if the value of the field does not say it. Optional.
        may_change: bool. In a recipe, whether the value may change when the run is resumed; in a
            search, whether it may change between calls of one graph. Defaults to `False`.
    """

    text: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    default_text: str | None = None
    may_change: bool = False

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=\.)\s", self.text, maxsplit=1)[0]

    @property
    def allowed(self) -> str:
        """What a value must be, in words; empty if every value of its type is allowed."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        if self.at_least is not None and self.at_most is not None:
            return f"from {self.at_least:,} to {self.at_most:,}"
        bounds = {
            "at least": self.at_least,
            "more than": self.above,
            "at most": self.at_most,
            "less than": self.below,
        }
        return " and ".join(f"{word} {n:,}" for word, n in bounds.items() if n is not None)

    def allows(self, value: Any) -> bool:
        """Whether the rule allows a value, whose type was checked before."""
        if self.choices:
            return value in self.choices
        if not isinstance(value, int | float):
            return True
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def nearest(self, value: Any) -> Any:
        """Returns the nearest number from `at_least` to `at_most`."""
        return min(max(value, self.at_least), self.at_most)


_NO_RULE = Setting(text="")


def setting(default: Any, text: str, **rule: Any) -> Any:
    """Returns a field of `Settings`; the arguments are its default and those of `Setting`."""
    return field(default=default, metadata={"setting": Setting(text=text, **rule)})


def same_setting(kind: type["Settings"], name: str) -> Any:
    """Returns a field that is a setting of another class too, with its default and its rule."""
    other = kind.__dataclass_fields__[name]
    return field(default=other.default, metadata=other.metadata)


def setting_of(field: Field) -> Setting:
    """Returns the `Setting` of a field; an empty one if `setting` did not make the field."""
    return field.metadata.get("setting", _NO_RULE)


def may_change(kind: type["Settings"]) -> list[str]:
    """Returns the names of the settings that may change; see `Setting`."""
    return [field.name for field in fields(kind) if setting_of(field).may_change]


def type_text(kind: Any) -> str:
    """Returns a type in words, without `None`."""
    kinds = [kind for kind in get_args(kind) or (kind,) if kind not in (type(None), object)]
    return " or ".join(kind.__name__ for kind in kinds)


def _default(field):
    """Returns the docstring's sentence on the default; empty if the field has none."""
    if text := setting_of(field).default_text:
        return f"Defaults to {text}."
    if field.default is MISSING:
        return ""
    if field.default in (None, ()):
        return "Optional."
    return f"Defaults to `{field.default!r}`.".replace("'", '"')


def _with_arguments(docstring, entries):
    """Returns a docstring with the section `Args`, before sections such as `Raises`."""
    next_section = SECTIONS.search(docstring)
    end = next_section.start() if next_section else len(docstring)
    arguments = "\n".join(["    Args:", *entries, ""])
    return f"{docstring[:end].rstrip()}\n\n{arguments}\n{docstring[end:]}"


def _entry(name, kind, field):
    """Returns the entry of a docstring: type, what is allowed, text and default."""
    rule = setting_of(field)
    if rule.choices:
        allowed = " or ".join(f"`{value!r}`" for value in rule.choices).replace("'", '"')
    else:
        allowed = ", ".join(filter(None, [type_text(kind), rule.allowed]))
    text = " ".join(filter(None, [f"{name}: {allowed}.", rule.text, _default(field)]))
    return textwrap.fill(
        text,
        width=100,
        initial_indent=" " * 8,
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses whose fields come from users.

    Checks each value against the annotated type of its field and its `Setting`, and rejects
    infinite floats and NaN. Converts numbers of NumPy and TensorFlow to Python's, also in lists and
    mappings. Errors name the field. Subclasses call `super().__post_init__()` before checks of
    several fields together. Each field that `setting` made gets an entry in the docstring of its
    class.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        new_fields = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        entries = [
            _entry(name, kind, new_fields[name])
            for name, kind in cls.__annotations__.items()
            if name in new_fields and setting_of(new_fields[name]).text
        ]
        if entries and cls.__doc__:
            cls.__doc__ = _with_arguments(cls.__doc__, entries)

    @classmethod
    def rule(cls, name: str) -> Setting:
        """Returns the `Setting` of a field."""
        return setting_of(cls.__dataclass_fields__[name])

    def __post_init__(self) -> None:
        for item in fields(self):
            value = _plain_value(getattr(self, item.name))
            object.__setattr__(self, item.name, value)
            # Accept int for float, but not bool, which is a subclass of int.
            is_float = item.type in (float, float | None)
            allowed: Any = item.type | int if is_float else item.type
            is_bool = isinstance(value, bool)
            if not isinstance(value, allowed) or (is_bool and item.type is not bool):
                name = item.type.__name__ if isinstance(item.type, type) else item.type
                self._reject(item.name, f"of type {name}")
            # Also rejects ints that are too large for a float; `not <=` also rejects NaN.
            if is_float and value is not None and not abs(value) <= sys.float_info.max:
                self._reject(item.name, "a finite number")
            if not setting_of(item).allows(value):
                self._reject(item.name, setting_of(item).allowed)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], others: Iterable[str] = ()) -> Self:
        """Creates settings from the dict of `to_dict`; unknown and missing keys are errors.

        Args:
            values: dict.
            others: keys of other settings in the same mapping, which the error suggests too.
                Optional.
        """
        if not isinstance(values, dict):
            received = "nothing" if values is None else reprlib.repr(values)
            raise ValueError(
                f"{cls.__name__} must be a mapping of fields to values. Received: {received}"
            )
        names = list(inspect.signature(cls).parameters)
        known = [*names, *others]
        for key in map(str, values):
            if key not in names:
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
        """Replaces each single path by a list that holds it. Call it before types are checked."""
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
    return text.removesuffix("...\n").strip()  # YAML ends a lone scalar with "..."


def _plain_value(value):
    """Returns numbers of NumPy and TensorFlow as Python numbers, also inside lists and mappings.

    Any other value is unchanged.
    """
    if isinstance(value, dict):
        return {key: _plain_value(item) for key, item in value.items()}
    if type(value) in (list, tuple):  # a named tuple may be a processor of a search
        return type(value)(map(_plain_value, value))
    value = value.numpy() if hasattr(value, "numpy") else value
    is_number = hasattr(value, "item") and getattr(value, "shape", None) == ()
    return value.item() if is_number else value


class _Loader(yaml.SafeLoader):
    """Loads plain values; rejects duplicate keys, and lists and mappings that hold themselves."""

    def construct_document(self, node):
        self.deep_construct = True  # what holds itself is then an error of YAML
        return super().construct_document(node)

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
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if mark is None:  # a character that YAML does not allow
        return str(error).splitlines()[0]
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
