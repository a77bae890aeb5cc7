"""The tags of target languages at the beginning of lines, such as `>>fra<<`."""

import re

from keras_transformer.decoding.lines import ASCII_SPACE

UNKNOWN_LANGUAGE = (
    "`target_language` must be a language that the model has a tag for: {}. "
    "Received: target_language={}"
)
WRONG_TAG = "A line must begin with at most one tag, that of {}. Received: line {} begins with {}"
# Behind white space, what a tokenizer with tags reads as one: up to the first "<<".
_TAG = re.compile(r"\s*(>>.*?<<)", re.DOTALL)
SHOWN = 60  # bytes of a tag in an error


def tag_lines(lines: list[str], language: str | None, codes: list[str]) -> list[str]:
    """Returns lines with the tag of their target language in front, each once.

    A line that begins with a tag of the model keeps it. Lines without text get none.

    Args:
        lines: list of strings.
        language: code such as `"fra"`, that of all lines; `None` if none is asked for.
        codes: the languages that the model has tags for. If it has none, no text is a tag.

    Raises:
        ValueError: if the language is none of the model's; or if a line begins with a tag that is
            none of the model's or not that of the language, or with two tags.
    """
    if language is not None and language not in codes:
        known = ", ".join(codes) or "it has none"
        raise ValueError(UNKNOWN_LANGUAGE.format(known, language))
    if not codes:
        return lines
    tags, asked = {f">>{code}<<" for code in codes}, f">>{language}<<"

    def tagged(number, line):
        tag, rest = split_tag(line)
        if not tag:
            return line if language is None or not line.strip(ASCII_SPACE) else f"{asked} {line}"
        second, _ = split_tag(rest)
        second = second if second in tags else ""
        if tag not in tags or (language is not None and tag != asked) or second:
            of = ", ".join(codes) if language is None else f"`target_language`, {asked}"
            raise ValueError(WRONG_TAG.format(of, number, _short(tag) + second))
        return tag + rest

    return [tagged(*numbered) for numbered in enumerate(lines, start=1)]


def split_tag(line):
    """Returns the tag of a line, empty if there is none, and what follows."""
    match = _TAG.match(line)
    return (match[1], line[match.end() :]) if match else ("", line)


def _short(tag):
    """Returns a tag as an error shows it: in one line, not too long."""
    return re.sub(r"\s", " ", tag).encode()[:SHOWN].decode(errors="replace")
