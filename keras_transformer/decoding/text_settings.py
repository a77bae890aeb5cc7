"""`TextSettings`: what a translator does with lines of text before and after the search.

Pure Python.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_transformer.data.language_codes import LANGUAGES
from keras_transformer.decoding.protected_text import finders
from keras_transformer.settings import Settings, setting

# The settings with which a line is one row of token ids.
WHOLE_LINES: dict[str, Any] = {"on_too_long": "truncate", "split": "lines", "protect": ()}


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """The settings of `Translator` and `load_run` that do not concern the search of token ids.

    They are given together with those of `SearchSettings`. All but `distinct_texts` may change from
    call to call at no cost.

    Raises:
        ValueError: if a value is of another type or out of its range.

    Example:

    >>> TextSettings(split="sentences", protect=["urls"]).protect
    ('urls',)
    """

    max_source_tokens: int | None = setting(
        None,
        "Maximum number of tokens of a line that is translated as a whole, the end token included. "
        "Time and memory are quadratic in it.",
        at_least=2,
        default_text="`data.max_length` of a run's recipe, the model's learned positions, or 256",
        may_change=True,
    )
    on_too_long: str = setting(
        "split",
        "A line with more tokens is translated in pieces, which end with a sentence or else with a "
        "word; or it is cut after the last word within the bound; or it is an error.",
        choices=("split", "truncate", "error"),
        may_change=True,
    )
    split: str = setting(
        "lines",
        "A line is translated as a whole, or each of its sentences by itself. Their translations "
        "are joined by what stood between them.",
        choices=("lines", "sentences"),
        may_change=True,
    )
    protect: tuple | list | None = setting(
        None,
        'What a translation keeps as it is: `"printf"`, `"braces"`, `"tags"`, `"urls"`, '
        '`"emails"`, `"backticks"`, `"emoji"`, `"unknown"` (words with a character that the '
        "vocabulary does not hold), and regular expressions of RE2 that are not single words. If "
        "the vocabulary holds symbols, see `add_placeholders`, the model copies symbols in place "
        "of this text. If it loses a symbol, or has none, the text in between is translated in "
        "parts.",
        default_text="all names if the vocabulary holds symbols, or nothing",
        may_change=True,
    )
    source_language: str | tuple | list | None = setting(
        None,
        "Code of the language of the lines, of a model that has tokens of languages, such as NLLB. "
        "In Python also one for each line.",
        may_change=True,
    )
    target_language: str | tuple | list | None = setting(
        None,
        "Code of the language to translate to, of a model that has several. In Python also one "
        "for each line. With Marian's models, a line may begin with its tag, `>>fra<<`, "
        "instead; a line with neither is translated without a tag. Models with tokens of languages "
        "need this setting, and find theirs by other codes too: `de` finds `deu_Latn`.",
        may_change=True,
    )
    distinct_texts: bool = setting(
        True,
        "Whether a translation is left out if a better one has the same text, in other tokens. The "
        "next best ones take the places of those left out, so with several translations the search "
        "goes on until `beam_size` hypotheses are final. The best translation is the same.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protect is not None:
            object.__setattr__(self, "protect", tuple(self.protect))
        finders(tuple(self.protect or ()))  # raises if one of them is not a pattern
        for name in LANGUAGES:
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))


def divided(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divides settings by name: those of `SearchSettings`, and those of `TextSettings`."""
    text = {n: value for n, value in settings.items() if n in TextSettings.__dataclass_fields__}
    return {n: value for n, value in settings.items() if n not in text}, text
