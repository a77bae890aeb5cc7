"""The languages of lines: tags at their beginning, such as `>>fra<<`, and codes of a request."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.data.language_codes import find_language
from keras_transformer.decoding.lines import ASCII_SPACE

UNKNOWN_LANGUAGE = (
    "`target_language` must be a language that the model has a tag for: {}. "
    "Received: target_language={}"
)
WRONG_TAG = "A line must begin with at most one tag, that of {}. Received: line {} begins with {}"
# A tag as a tokenizer reads it: after any white space, from ">>" to the first "<<".
_TAG = re.compile(r"\s*(>>.*?<<)", re.DOTALL)
SHOWN = 60  # bytes of a tag in an error


def language_tokens(
    language: str | Sequence[str] | None, name: str, language_ids: Mapping[str, int], count: int
) -> list[int]:
    """Returns the token of the language of each line.

    Args:
        language: one code for all lines, or the code of each line.
        name: name of the argument, for errors.
        language_ids: the tokens of the model's languages, by their codes.
        count: the number of lines.

    Raises:
        ValueError: if a language is missing, or is not one of the model's.
    """
    codes = languages_of_lines(language, name, count)
    if language is None or None in codes:
        received = "" if language is None else f" Received: none for line {codes.index(None) + 1}"
        raise ValueError(
            f"`{name}` (`--{name.replace('_', '-')}`) must be given: the model has "
            f"{len(language_ids)} languages, such as {', '.join([*language_ids][:3])}.{received}"
        )
    distinct = _distinct(language, codes)
    tokens = {code: language_ids[find_language(code, name, language_ids)] for code in distinct}
    return [tokens[code] for code in codes]


def tag_lines(
    lines: list[str], language: str | Sequence[str] | None, codes: list[str]
) -> list[str]:
    """Returns lines with the tag of their target language in front.

    A line that begins with this tag gets no second one. If no language is asked for, a line may
    begin with any tag of the model. Lines without text get none.

    Args:
        lines: list of strings.
        language: code such as `"fra"` for all lines, or the code of each line; `None` if none is
            asked for.
        codes: the languages that the model has tags for. If it has none, no text is a tag.

    Raises:
        ValueError: if the language is not one of the model's; or if a line begins with two tags,
            with a tag that the model lacks, or with the tag of another language.
    """
    languages = languages_of_lines(language, "target_language", len(lines))
    for code in _distinct(language, languages):
        if code is not None and code not in codes:
            known = ", ".join(codes) or "it has none"
            raise ValueError(UNKNOWN_LANGUAGE.format(known, code))
    if not codes:
        return lines
    tags = {f">>{code}<<" for code in codes}

    def tag_line(number, line, code):
        target_tag = f">>{code}<<"
        tag, text = split_tag(line)
        if not tag:
            needs_tag = code is not None and line.strip(ASCII_SPACE)
            return f"{target_tag} {line}" if needs_tag else line
        second_tag, _ = split_tag(text)
        second_tag = second_tag if second_tag in tags else ""
        allowed_tags = tags if code is None else {target_tag}
        if tag not in allowed_tags or second_tag:
            allowed = ", ".join(codes) if code is None else f"`target_language`, {target_tag}"
            raise ValueError(WRONG_TAG.format(allowed, number, _short(tag) + second_tag))
        return tag + text

    return list(map(tag_line, itertools.count(1), lines, languages))


def languages_of_lines(language: Any, name: str, count: int) -> list[Any]:
    """Returns the language of each of `count` lines.

    Args:
        language: one code, or `None`, for all lines; or a list with one for each line.
        name: name of the argument, for errors.
        count: the number of lines.

    Raises:
        TypeError: if an item of a list is no code.
        ValueError: if a list has another length.
    """
    if language is None or isinstance(language, str):
        return [language] * count
    if len(language) != count:
        raise ValueError(
            f"`{name}` must be one code, or one for each line. Received: {len(language)} codes, "
            f"{count} lines"
        )
    for number, code in enumerate(language, start=1):
        if not isinstance(code, str | None):
            must = f"`{name}` must hold codes of languages."
            raise TypeError(f"{must} Received: {code!r} for line {number}")
    return [*language]


def _distinct(language, codes):
    """Returns the codes to check: one code for all lines is checked even if there are no lines."""
    return [language] if isinstance(language, str) else [*dict.fromkeys(codes)]


def split_tag(line):
    """Returns the tag of a line, empty if there is none, and what follows."""
    match = _TAG.match(line)
    return (match[1], line[match.end() :]) if match else ("", line)


def _short(tag):
    """Returns a tag as an error shows it: in one line, not too long."""
    return re.sub(r"\s", " ", tag).encode()[:SHOWN].decode(errors="replace")
