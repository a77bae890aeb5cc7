"""Texts taken apart: the lines that are translated, and what stands between them.

Expressions find tags where browsers do, in linear time. `html.parser` does not tell where a tag
ends, and takes quadratic time in older releases of Python.
"""

import html
import re
from collections.abc import Callable, Iterator

from keras_transformer.decoding.long_lines import join_translations
from keras_transformer.decoding.protected_text import CLOSING, Mask, without_opening
from keras_transformer.decoding.sentences import split_lines

# The rest of a tag: ">" ends it, except in a quoted value.
REST = r"""(?:[^>"'=]++|["']|=\s*+(?:"[^"]*+"?+|'[^']*+'?+)?+)*+>?+"""
MARKUP = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))|<(?:[!?]|/(?![a-z]))[^>]*+>?+
    |<(script|style|textarea)(?=[\s/>]){REST}.*?(?:</\1(?=[\s/>]){REST}|\Z)
    |</?+(?P<name>[a-z][^\s/>]*+){REST}|\Z""",
    re.ASCII | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
# The start tag of an element whose contents are kept. The elements of the first list have none.
KEPT = re.compile(
    r"""<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|wbr)[\s>]|.*/>\Z)
    (?:(?:code|pre)[\s>]|[a-z].*?\s(?:translate\s*=\s*["']?no["'\s>]
    |class\s*=\s*(?:"(?:[^"]*\s)?|'(?:[^']*\s)?)?notranslate["'\s>]))""",
    re.ASCII | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
BEHIND_TAG = re.compile(CLOSING)
LETTER = re.compile(r"[^\W\d_]")


Fill = Callable[[list[str]], str]  # puts the translations of the lines into the text


def of_text(text: str, escape: Callable[[str], str] = str) -> tuple[list[str], Fill]:
    """Returns the lines of a text, which are translated, and what puts their translations in."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines, lambda found: "\n".join(map(escape, found))


def of_html(text: str) -> tuple[list[str], Fill]:
    """Returns the texts between tags, and what puts their translations in, escaped.

    Spaces beside a tag are kept, and so are marks that close what stands before it or open what
    stands behind it, and text without a letter. HTML without markup is a text.
    """
    if not next(MARKUP.finditer(text))[0] and html.unescape(text) == text:
        return of_text(text, lambda line: re.sub("<(?=[a-zA-Z/!?])", "&lt;", line))
    lines, kept, end, spaces = [], [], 0, ""
    for start, stop in _between_tags(text):
        inner = html.unescape(text[start:stop])
        if LETTER.search(inner):
            closing = next(BEHIND_TAG.finditer(inner))[0]  # at the beginning, perhaps empty
            words = without_opening(inner)
            lines.append(" ".join(words[len(closing) :].split()))
            kept.append(spaces + text[end:start] + closing)
            end, spaces = stop, inner[len(words) :]
    rest = spaces + text[end:]

    def fill(found):
        escaped = [html.escape(line, quote=False) for line in found]
        return "".join(map("".join, zip(kept, escaped, strict=True))) + rest

    return lines, fill


def of_parts(lines: list[str], fill: Fill, split: str, mask: Mask | None) -> tuple[list[str], Fill]:
    """Returns the parts of the lines, see `split_lines`, and what puts their translations in."""
    parts = split_lines(lines, split, has_tags=False, mask=mask)

    def fill_lines(found):
        rows = [[] for _ in lines]
        for line, *row in zip(parts.lines, found, parts.gaps, strict=True):
            rows[line].append(row)
        return fill([join_translations(*zip(*row, strict=True)) for row in rows])

    return parts.texts, fill_lines


def _between_tags(text: str) -> Iterator[tuple[int, int]]:
    end, kept, depth = 0, "", 0
    for token in MARKUP.finditer(text):
        if not depth and end < token.start():
            yield end, token.start()
        end, name = token.end(), (token["name"] or "").lower()
        if depth and name == kept:
            depth += -1 if token[0].startswith("</") else 1
        elif name and not depth and KEPT.match(token[0]):
            kept, depth = name, 1
