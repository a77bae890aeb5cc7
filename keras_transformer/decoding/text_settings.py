"""`TextSettings`: what a translator does with lines of text, above the search of token ids.

Pure Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_transformer.decoding.protected_text import finders
from keras_transformer.settings import Settings

CHOICES = {"on_too_long": ("split", "truncate", "error"), "split": ("lines", "sentences")}


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """The settings of `Translator` and `load_run` that are no matter of the search.

    They are given together with those of `SearchSettings`, and may change from call to call at no
    cost.

    Args:
        max_source_tokens: int, at least 2. Maximum number of tokens of a line that is translated as
            a whole, with the end token; time and memory are quadratic in it. Defaults to the
            model's learned positions, or else to 256, the `max_length` of `make_dataset`; for
            `load_run` to the `data.max_length` of the run's recipe.
        on_too_long: `"split"`: a longer line is translated in pieces, which end with a sentence, or
            else with a word, and their translations are joined by a space; `"truncate"`: only the
            words within the bound are translated; `"error"`: a longer line is an error. Defaults to
            `"split"`.
        split: `"lines"`: a line is translated as a whole; `"sentences"`: each of its sentences by
            itself, and their translations are joined by what stood between them. Defaults to
            `"lines"`.
        protect: list of what a translation keeps as it is: `"printf"`, `"braces"`, `"tags"`,
            `"urls"`, `"emails"`, `"backticks"`, `"emoji"`, `"unknown"`, the characters that the
            vocabulary does not hold, and regular expressions of RE2 that are no single words. If
            the vocabulary holds symbols, see `add_placeholders`, they take its place, and the model
            copies them; where it loses one, and without symbols, the text around it is translated
            in parts. Defaults to all names if the vocabulary holds symbols, and to nothing if not.
        distinct_texts: bool. Whether a translation is left out if a better one has the same text,
            in other tokens; then the search goes on until `beam_size` hypotheses are final, and
            the next best ones take the places. The best translation is the same. Defaults to
            `True`.

    Raises:
        ValueError: if a value is of another type or out of its range.

    Example:

    >>> TextSettings(split="sentences", protect=["urls"]).protect
    ('urls',)
    """

    max_source_tokens: int | None = None
    on_too_long: str = "split"
    split: str = "lines"
    protect: tuple | list | None = None
    distinct_texts: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_source_tokens is not None and self.max_source_tokens < 2:
            self._reject("max_source_tokens", "at least 2: a token and the end token")
        for name, choices in CHOICES.items():
            self._require_choice(name, choices)
        if self.protect is not None:
            object.__setattr__(self, "protect", tuple(self.protect))
        finders(tuple(self.protect or ()))  # raises if one is no pattern


def divided(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides settings by name: those of `SearchSettings`, and those of `TextSettings`."""
    of_text = {n: value for n, value in settings.items() if n in TextSettings.__dataclass_fields__}
    return {n: value for n, value in settings.items() if n not in of_text}, of_text
