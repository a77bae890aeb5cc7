"""Sentences for the user about lines that are too long, and about unfinished translations."""

import warnings
from collections import Counter
from typing import Any

from keras_transformer.decoding.text_settings import TextSettings


def line_reports(answers: list[Any], first: int = 1, most: int | None = None) -> list[str]:
    """Returns sentences about lines that are too long, and about unfinished translations.

    Args:
        answers: list of the lists of hypotheses of each line.
        first: number of the first line. Defaults to `1`.
        most: int. Maximum number of long lines with their own sentence; one more sentence counts
            the others. Defaults to all.
    """
    return [
        *long_line_reports(answers, first, most),
        *unfinished_report(**count_unfinished(answers)),
    ]


def long_line_reports(answers: list[Any], first: int = 1, most: int | None = None) -> list[str]:
    """Returns the sentences of `line_reports` about lines that are too long."""
    reports = []
    for number, (best, *_) in enumerate(answers, first):
        if best.dropped_tokens:
            left_out = f"its last {best.dropped_tokens} tokens are left out."
            if best.pieces > 1:  # it is in sentences, or cut around protected text
                left_out = f"{best.dropped_tokens} tokens at the ends of its parts are left out."
            reports.append(f"Line {number} is too long: {left_out}")
        elif best.too_long:
            pieces = f"translated in {best.pieces} pieces."
            reports.append(f"Line {number} is too long for one piece: {pieces}")
    if most is None or len(reports) <= most:
        return reports
    return [*reports[:most], f"{len(reports) - most:,} more lines are too long."]


def count_unfinished(answers: list[Any]) -> Counter[str]:
    """Counts the lines, and the lines whose best translation is unfinished."""
    return Counter(lines=len(answers), unfinished=sum(best.unfinished for best, *_ in answers))


def unfinished_report(lines: int = 0, unfinished: int = 0) -> list[str]:
    """Returns a list with the sentence about the counts, or an empty list if all are finished."""
    if not unfinished:
        return []
    return [
        f"{unfinished:,} of {lines:,} translations are unfinished: they reached the maximum length "
        "and have no end token. Raise `extra_length` (`--extra-length`), `length_ratio` or "
        "`max_length`."
    ]


def warn_of(answers: list[Any], settings: TextSettings) -> None:
    """Warns the caller of a translator of the first long lines, and of unfinished translations."""
    if reports := long_line_reports(answers, 1, 5):
        bound = f"`max_source_tokens` is {settings.max_source_tokens}."
        warnings.warn(f"{bound} {' '.join(reports)}", stacklevel=3)
    for report in unfinished_report(**count_unfinished(answers)):
        warnings.warn(report, stacklevel=3)
