"""Spans of text that a translation keeps as they are: placeholders, tags, addresses, emoji.

Plain Python.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from keras_transformer.data.placeholders import SYMBOL, symbols
from keras_transformer.texts import UNSPACED, import_extra

RE2 = "'google-re2>=1.1.20250722,<2'"
MARK = "\U000f0000"  # takes the place of a span; a private-use character
_PICTURES = "\u231a-\u23ff\u25aa-\u27bf\u2b05-\u2b55\U0001f000-\U0001faff"
_JOINERS = "\ufe0f\u200d\u20e3\U000e0020-\U000e007f"
_CONVERSION = (
    r"%(?:\d+\$|\(\w+\))?[-+0#']*(?:[1-9]\d*|\*)?(?:\.(?:\d+|\*))?"
    r"(?:hh?|ll?|[jqtzL])?[diouxXeEfFgGaAcsp@]"
)
# Each pattern takes time in proportion to the text. Behind a digit, a conversion of `printf` must
# end a word, so "50%discount" has none.
PATTERNS = {
    "printf": rf"%%|(?<!\d){_CONVERSION}|{_CONVERSION}(?![A-Za-z])",
    "tags": r"""<!--[^<]*?-->|</?[A-Za-z](?:[^<>"']|"[^<"]*"|'[^<']*')*>"""
    r"|&(?:\w{1,32}|#\d{1,7}|#[xX][\da-fA-F]{1,6});",
    "urls": r"""\b(?:(?:https?|ftp|file)://|www\.)(?:[^\s<>"'`()]|\([^\s<>()]*\))+(?<![.,;:!?])""",
    "emails": r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]+\.)+[\w-]+",
    "emoji": f"[0-9#*]\ufe0f?\u20e3|[^\\w\\s]\ufe0f|[{_PICTURES}][{_PICTURES}{_JOINERS}]*",
}
NAMES = ("printf", "braces", "tags", "urls", "emails", "backticks", "emoji", "unknown")
# A message of ICU, the beginning of braces, their end, or the number in a branch of a message.
_BRACE = re.compile(r"(\{\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,)|([$#%]?\{)|\}|#")
# A word, or a character of a script without spaces, with their accents.
_ACCENTS = r"[\u0300-\u036f\ufe00-\ufe0f]*"
_WORD = re.compile(rf"(?:[^\W{UNSPACED}]{_ACCENTS})+|\S{_ACCENTS}")
# Marks and symbols that the text itself contains are protected too.
_OURS = re.compile(f"{MARK}+|{SYMBOL.pattern}")
_BYTE = re.compile("<0x..>")
# Closing punctuation and white space, but not the dot of ".NET".
CLOSING = (
    r"""(?:[\s,;!?…)\]}»”。、，．！？；：）］｝」』】〉》]|[.:](?!\w)"""
    r"""|["'’](?=[\s.,;:!?…)\]}»”]|\Z))*"""
)
OPENING = "([{«„¿¡（［｛「『【〈《"
_KEPT = re.compile(f"({MARK}{CLOSING})")  # a span, and the closing characters behind it
_LETTER = re.compile(r"[^\W\d_]")
_BACKTICKS = re.compile("`+")

Find = Callable[[str], Iterable[tuple[int, int]]]  # text -> spans
Mask = Callable[[str], tuple[str, list[str]]]


def finders(protect: tuple[str, ...]) -> list[Find]:
    """Returns functions that find the protected spans, except those of `unknown`.

    Args:
        protect: names of `NAMES`, and regular expressions.

    Raises:
        ValueError: if one is neither.
        ImportError: if one is a regular expression, and `re2` is not installed.
    """
    for text in protect:  # such as a mapping, which the cache could not hold
        if not isinstance(text, str):
            raise _no_pattern(text, "no text")
    return _finders(protect)


@functools.cache
def _finders(protect):
    scanners: dict[str, Find] = {"braces": _braces, "backticks": _backticks}
    scans = [scan for name, scan in scanners.items() if name in protect]
    texts = [text for text in protect if text not in (*scanners, "unknown")]
    patterns = [re.compile(PATTERNS[p]) if p in PATTERNS else _expression(p) for p in texts]
    return scans + [functools.partial(_spans, pattern.finditer) for pattern in (_OURS, *patterns)]


def _spans(finditer, text):
    return (match.span() for match in finditer(text) if match[0].strip())


def _expression(text):
    """Compiles a user's expression by RE2, which takes linear time: none can block a server."""
    problem = "no name of a pattern"
    if text.strip() and not text.isidentifier():
        re2 = import_extra(["re2"], "A regular expression in `protect` needs", RE2)
        options = re2.Options()
        options.log_errors = False
        try:
            return re2.compile(text, options)
        except re2.error as error:
            problem = error.args[0].decode()
    raise _no_pattern(text, problem)


def _no_pattern(text, problem):
    """Returns the error for an item of `protect`."""
    return ValueError(
        f"`protect` must hold names, {', '.join(NAMES)}, or regular expressions of RE2, which are "
        f"no single words. Received: {text!r}, {problem}"
    )


def _braces(text):
    """Yields the spans of balanced braces; of an ICU message, all but the texts of its branches."""
    stack: list[tuple[str, int]] = []  # kind of each open brace, and where its span begins
    for token in _BRACE.finditer(text):
        start, end = token.span()
        kind = stack[-1][0] if stack else ""
        if token[1]:
            stack.append(("message", start))
        elif token[2] and kind == "message":
            yield stack[-1][1], end  # up to the text of the branch
            stack.append(("branch", start))
        elif token[2]:
            stack.append(("braces", start))
        elif token[0] == "#" and kind == "branch":
            yield start, end
        elif token[0] == "}" and kind:
            _, begin = stack.pop()
            if kind == "branch":
                stack[-1] = "message", start  # its next span begins behind the branch's text
            else:
                yield begin, end


def _backticks(text):
    """Yields the spans from a run of backticks to the next run of the same length.

    A regular expression would read the rest of the text for each run that is never closed.
    """
    runs = [run.span() for run in _BACKTICKS.finditer(text)]
    next_ends: dict[int, int] = {}  # length of a run -> where the next one of this length ends
    closed_at = {}  # start of a run -> where the run that closes it ends
    for start, end in reversed(runs):
        closed_at[start] = next_ends.get(end - start)
        next_ends[end - start] = end
    last_end = 0
    for start, _ in runs:
        if start >= last_end and (end := closed_at[start]):
            last_end = end
            yield start, end


def find_unknown(tokenizer: Any, unk_token_id: int, text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of words in which a character becomes the unknown token or bytes."""
    words = [*_WORD.finditer(text)]
    for word, ids in zip(words, tokenizer.encode([word[0] for word in words]), strict=True):
        if any(i == unk_token_id or _BYTE.fullmatch(tokenizer.vocabulary[i]) for i in ids):
            yield word.span()


def mask(protect: tuple[str, ...], unknown: Find | None, text: str) -> tuple[str, list[str]]:
    """Returns a text with one `MARK` for each protected span, and the spans.

    Spans that overlap or touch are merged.

    Args:
        protect: as in `finders`.
        unknown: finds what the pattern `unknown` protects. Optional.
        text: str.
    """
    finds = [*finders(protect)]
    if unknown is not None and "unknown" in protect:
        finds.append(unknown)
    merged: list[list[int]] = []
    for start, end in sorted(span for find in finds for span in find(text)):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    borders = [0, *itertools.chain(*merged), len(text)]
    # Text and spans in turn, beginning and ending with text, which may be empty.
    parts = [text[start:end] for start, end in itertools.pairwise(borders)]
    return MARK.join(parts[::2]), parts[1::2]


def with_symbols(text: str, spans: list[str], most: int) -> str | None:
    """Returns a text with symbols for its marks, or `None` if symbols cannot be used.

    They cannot be used without spans, for more than `most` spans, without a letter to translate, or
    if a span is a part of an ICU message, whose parts a model may reorder.
    """
    is_whole = all(span.count("{") == span.count("}") for span in spans)
    if not (0 < len(spans) <= most and is_whole and _LETTER.search(text)):
        return None
    names = iter(symbols(most))
    return re.sub(MARK, lambda _: next(names), text)


def put_back(text: str, spans: list[str]) -> tuple[str, list[str]]:
    """Puts protected text back in place of its symbols.

    Args:
        text: a translation, with a symbol for each span.
        spans: the protected text, in the order of the symbols.

    Returns:
        the text, and the spans whose symbol the translation lacks or repeats. If the translation
        holds a symbol of no span, no symbol can be trusted, and all spans are returned.
    """
    span_of = dict(zip(symbols(len(spans)), spans, strict=True))
    translated = SYMBOL.findall(text)
    if span_of.keys() >= {*translated}:
        wrong = [span for symbol, span in span_of.items() if translated.count(symbol) != 1]
    else:
        wrong = spans
    return SYMBOL.sub(lambda match: span_of.get(match[0], ""), text), wrong


def without_opening(text: str) -> str:
    """Returns a text without white space and opening marks at its end."""
    return text.rstrip().rstrip(OPENING).rstrip()


def cut(text: str, spans: Iterator[str]) -> list[tuple[str, str]]:
    """Cuts a text at its marks: returns each part to translate, and the text to keep behind it.

    A part without a letter is kept too. If the text begins with text to keep, the first part is
    empty.

    Args:
        text: str, a result of `mask`, or a part of it.
        spans: iterator of spans; those of this text are taken from it.
    """
    if MARK not in text:
        return [(text, "")]
    parts: list[tuple[str, list[str]]] = [("", [])]  # words, and the texts to keep behind them
    texts_and_marks = [*_KEPT.split(text), ""]
    for before, mark in zip(texts_and_marks[::2], texts_and_marks[1::2], strict=True):
        words = without_opening(before) if _LETTER.search(before) else ""
        if words:
            parts.append((words, []))
        span = re.sub(MARK, lambda _: next(spans), mark)
        parts[-1][1].extend([before[len(words) :], span])
    joined = [(words, "".join(kept)) for words, kept in parts]
    return joined if joined[0][1] else joined[1:]
