"""Lines of text to learn a vocabulary from, and checks of choices and numbers. Pure Python."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from keras_transformer.texts import check_line, require_texts

LEAST_COVERAGE = 0.98  # the least `character_coverage` that SentencePiece takes


def check_choice(argument: str, value: Any, choices: Sequence[str]) -> None:
    """Raises a `ValueError` if a value is none of the choices."""
    if value not in choices:
        raise ValueError(f"`{argument}` must be one of {choices}. Received: {argument}={value!r}")


def check_number(argument: str, value: Any, is_valid: bool, expected: str) -> None:
    """Raises a `ValueError` that says what a number must be, unless it is valid."""
    if not is_valid:
        raise ValueError(f"`{argument}` must be {expected}. Received: {argument}={value!r}")


def training_lines(lines: Iterable[str], read: Callable[[str], Any]) -> Iterator[Any]:
    """Yields what `read` returns for each line of text to train on, unless it is empty.

    Raises:
        TypeError: if `lines` is not an iterable of strings.
        ValueError: if UTF-8 cannot encode a line, or all are empty.
    """
    require_texts(lines, "lines", "To train on files: `Tokenizer.train(files, ...)`")
    is_empty = True
    for number, line in enumerate(lines, 1):
        check_line(line, "lines", number)
        if content := read(line):
            is_empty = False
            yield content
    if is_empty:
        raise ValueError(f"There must be a line of text to train on. Received: {lines!r}")
