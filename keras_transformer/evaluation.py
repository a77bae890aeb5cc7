"""BLEU and chrF (by sacreBLEU, with signature) and exact match of lists of strings.

Imports nothing of the package. Paper section 6.1 (table 2 reports BLEU).
"""

import dataclasses
import operator
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score.

    Attributes:
        name: `"BLEU"` or `"chrF2"`.
        value: from 0 to 100.
        signature: sacreBLEU's signature: the settings that the score was computed with. Compare
            scores only if their signatures are equal.
    """

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(
    hypotheses: Iterable[str],
    references: Iterable[str],
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Corpus BLEU: geometric mean of 1- to 4-gram precisions times the brevity penalty.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order.
        tokenized: whether the text is already tokenized. `False`: plain text, which sacreBLEU
            tokenizes with `13a`; use it for scores that you publish. `True`: sacreBLEU splits the
            text at white space only.
        lowercase: ignore case.

    Raises:
        ValueError: if the lists are empty or of unequal length.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), "A Call for Clarity in Reporting BLEU".
    """
    from sacrebleu.metrics import BLEU

    tokenize = "none" if tokenized else "13a"
    # `force` only silences the warning that the text looks tokenized.
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references)


def chrf(hypotheses: Iterable[str], references: Iterable[str]) -> Score:
    """Corpus chrF2: F-score of character 1- to 6-grams, without white space; recall has weight 2.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order.

    Raises:
        ValueError: if the lists are empty or of unequal length.

    Reference:
        [Popović, 2015](https://aclanthology.org/W15-3049).
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def exact_match(hypotheses: Iterable[str], references: Iterable[str]) -> float:
    """Fraction of translations that equal their reference, character for character.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order.

    Raises:
        ValueError: if the lists are empty or of unequal length.
    """
    translations, expected = _checked_lists(hypotheses, references)
    return sum(map(operator.eq, translations, expected)) / len(expected)


def _checked_lists(hypotheses, references):
    hypotheses, references = list(hypotheses), list(references)
    if len(hypotheses) != len(references):
        raise ValueError(
            "`hypotheses` and `references` must have equal length. "
            f"Received: {len(hypotheses)} hypotheses, {len(references)} references"
        )
    if not hypotheses:
        raise ValueError("`hypotheses` must hold at least one line. Received: hypotheses=[]")
    return hypotheses, references


def _score(metric, hypotheses, references):
    hypotheses, references = _checked_lists(hypotheses, references)
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.name, result.score, str(metric.get_signature()))
