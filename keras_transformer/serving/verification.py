"""Replays the examples of an exported folder, to verify it with the libraries installed here."""

import json
import math
import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer import types
from keras_transformer.decoding.saved_model import SavedModelEngine
from keras_transformer.decoding.text_settings import WHOLE_LINES
from keras_transformer.decoding.translator import Translator
from keras_transformer.texts import lines_of

MAX_SCORE_DIFFERENCE = 1e-4
BATCH_LINES = 32


class Verified(NamedTuple):
    """An example, and what the model answered.

    Attributes:
        text: str.
        expected: str, the translation of the example.
        translation: str, the translation by the model.
        difference: float, of the scores; 0 if neither is a number, inf if only one is.
    """

    text: str
    expected: str
    translation: str
    difference: float

    @property
    def is_equal(self) -> bool:
        """Whether the translation is the same, with almost the same score."""
        return self.expected == self.translation and self.difference <= MAX_SCORE_DIFFERENCE


def verify(translator: Translator, folder: types.Path) -> Iterator[Verified]:
    """Yields each example in `examples.jsonl` of a folder with the model's translation.

    Args:
        translator: the translator of the folder.
        folder: path of the folder.

    Raises:
        FileNotFoundError: if there are no examples.
        ValueError: if a line is not an example.
    """
    examples = _examples(Path(folder) / "examples.jsonl")
    # The examples of a SavedModel are answers of its graph, which neither splits nor protects.
    is_graph = isinstance(translator.engine, SavedModelEngine)
    settings: dict[str, Any] = WHOLE_LINES if is_graph else {}
    for start in range(0, len(examples), BATCH_LINES):
        batch = examples[start : start + BATCH_LINES]
        answers = translator([text for text, *_ in batch], n_best=1, **settings)
        for (line, expected, score), (best, *_) in zip(batch, answers, strict=True):
            received = best.score if math.isfinite(best.score) else None
            yield Verified(line, expected, best.text, _difference(score, received))


def _examples(path):
    examples = []
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        try:
            fields = operator.itemgetter("text", "translation", "score")(json.loads(line))
            text, _, score = fields
            if not (isinstance(text, str) and isinstance(score, int | float | None)):
                raise TypeError
            examples.append(fields)
        except (ValueError, TypeError, KeyError) as error:
            must = f"Line {number} of {str(path)!r} must have `text`, `translation` and `score`."
            raise ValueError(f"{must} Received: {line[:80]!r}") from error
    if not examples:
        raise ValueError(f"{str(path)!r} must hold an example in each line. Received: no line")
    return examples


def _difference(expected, score):
    """Returns the difference of two scores; a score that is not finite is `None`."""
    if expected is None or score is None:
        return 0.0 if expected is score else math.inf
    return abs(expected - score)
