"""Splits plain and HTML texts into lines to translate and what stands between them.

Regular expressions find tags where browsers do, in linear time. `html.parser` does not tell where a
tag ends, and takes quadratic time in older releases of Python.
"""

import collections
import html
import re
from collections.abc import Callable, Iterator

from keras_transformer.decoding.protected_text import CLOSING, without_opening

# The rest of a tag: ">" ends it, except in a quoted value.
REST = r"""(?:[^>"'=]++|["']|=\s*+(?:"[^"]*+"?+|'[^']*+'?+)?+)*+>?+"""
# A comment or declaration; an element whose contents are no HTML; a tag (`name`); or the end.
MARKUP = re.compile(
    rf"""<!--(?:-?>|.*?(?:--!?>|\Z))|<(?:[!?]|/(?![a-z]))[^>]*+>?+
    |<(script|style|textarea)(?=[\s/>]){REST}.*?(?:</\1(?=[\s/>]){REST}|\Z)
    |</?+(?P<name>[a-z][^\s/>]*+){REST}|\Z""",
    re.ASCII | re.DOTALL | re.IGNORECASE | re.VERBOSE,
)
# A name, and perhaps a value with its quotation marks.
ATTRIBUTE = re.compile(r"""([^\s/>=]++)(?:\s*+=\s*+("[^"]*+"?+|'[^']*+'?+|[^\s>]*+))?+""", re.ASCII)
# Elements without contents.
VOID = frozenset("area base br col embed hr img input link meta source wbr".split())
# Elements whose end tag may be left out, and the start tags that end them.
ROWS = frozenset("tbody tfoot thead tr".split())
ENDED_BY = {
    "li": {"li"},
    **dict.fromkeys(["dt", "dd"], {"dt", "dd"}),
    **dict.fromkeys(["td", "th"], ROWS | {"td", "th"}),
    "option": {"option", "optgroup", "hr"},
    "optgroup": {"optgroup", "hr"},
    **dict.fromkeys(ROWS, ROWS),
}
# Elements whose end tag also ends inner elements that may lack their own end tag.
BLOCKS = frozenset(
    "address article aside blockquote body center details dialog div dl fieldset figcaption figure"
    " footer form h1 h2 h3 h4 h5 h6 header hgroup html main menu nav ol pre search section select"
    " summary table ul".split()
)
ENDING = BLOCKS | ENDED_BY.keys()
ENDED_BY["p"] = ENDING | {"hr", "p"}
BEHIND_TAG = re.compile(CLOSING)
LETTER = re.compile(r"[^\W\d_]")


Fill = Callable[[list[str]], str]  # puts the translations of the lines into the text


def of_text(text: str, escape: Callable[[str], str] = str) -> tuple[list[str], Fill]:
    """Returns the lines of a text, and the function that puts their translations in."""
    lines = text.replace("\r\n", "\n").split("\n")
    return lines, lambda translations: "\n".join(map(escape, translations))


def of_html(text: str) -> tuple[list[str], Fill]:
    """Returns the texts between tags, and the function that puts their translations in, escaped.

    Not translated: spaces beside a tag, marks that close what stands before the tag or open what
    stands behind it, and text without a letter. HTML without markup is a plain text.
    """
    if not next(MARKUP.finditer(text))[0] and html.unescape(text) == text:
        return of_text(text, lambda line: re.sub("<(?=[a-zA-Z/!?])", "&lt;", line))
    lines = []
    before = []  # what is kept before each line
    end, opening = 0, ""  # of the previous text: where it ends, and its last spaces and marks
    for start, stop in _between_tags(text):
        inner = html.unescape(text[start:stop])
        if LETTER.search(inner):
            closing = next(BEHIND_TAG.finditer(inner))[0]  # at the beginning, perhaps empty
            words = without_opening(inner)
            lines.append(" ".join(words[len(closing) :].split()))
            before.append(opening + text[end:start] + closing)
            end, opening = stop, inner[len(words) :]
    after_all = opening + text[end:]

    def fill(translations):
        escaped = [html.escape(line, quote=False) for line in translations]
        return "".join(map("".join, zip(before, escaped, strict=True))) + after_all

    return lines, fill


def _between_tags(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans between tags, without the contents of elements that are kept."""
    end, kept = 0, _Kept()
    for token in MARKUP.finditer(text):
        if not kept.names and end < token.start():
            yield end, token.start()
        end = token.end()
        if token["name"]:
            kept.read(token["name"].lower(), token[0])


class _Kept:
    """The open elements whose contents are kept: an element that is kept and those inside it.

    Attributes:
        names: list of their names, the outermost first. Inner elements are left out if their tags
            cannot end another element.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._counts: collections.Counter[str] = collections.Counter()

    def read(self, name: str, tag: str) -> None:
        """Reads a start or end tag."""
        if tag.startswith("</"):
            if self._counts[name]:  # ends the element and those inside it
                while self._close() != name:
                    pass
            elif self.names and self.names[0] in ENDED_BY and name in ENDING:
                self.names.clear()  # the tag ends an element that contains the outermost one
                self._counts.clear()
            return
        while self.names and name in ENDED_BY.get(self.names[-1], ()):
            self._close()
        if name in VOID or tag.endswith("/>"):
            return
        if self.names:
            is_listed = name == self.names[0] or name in BLOCKS or name in ENDED_BY
        else:
            is_listed = _is_kept(name, tag)
        if is_listed:
            self.names.append(name)
            self._counts[name] += 1

    def _close(self):
        name = self.names.pop()
        self._counts[name] -= 1
        return name


def _is_kept(name, tag):
    if name in ("code", "pre"):
        return True
    attributes = {}
    for attribute in ATTRIBUTE.finditer(tag, 1 + len(name)):
        value = (attribute[2] or "").strip("\"'")
        # The first attribute of a name counts.
        attributes.setdefault(attribute[1].lower(), value.lower())
    return (
        attributes.get("translate", "").strip() == "no"
        or "notranslate" in attributes.get("class", "").split()
    )
