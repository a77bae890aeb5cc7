"""BLEU and chrF (by sacreBLEU, with signature), exact match, and the paired bootstrap.

Imports nothing of the package. Paper section 6.1 (table 2 reports BLEU).
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeAlias

References: TypeAlias = Iterable[str] | Iterable[Iterable[str]]


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score.

    Attributes:
        name: `"BLEU"` or `"chrF2"`.
        value: from 0 to 100.
        signature: sacreBLEU's signature: the settings that the score was computed with. Compare
            scores only if their signatures are equal.
        length_ratio: tokens of the translations / tokens of the references nearest in length, for
            BLEU; else `None`.
    """

    name: str
    value: float
    signature: str
    length_ratio: float | None = None

    def __str__(self) -> str:
        ratio = "" if self.length_ratio is None else f", length ratio {self.length_ratio:.3f}"
        return f"{self.name} {self.value:.2f} ({self.signature}){ratio}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two systems on the same lines.

    Attributes:
        score: float, BLEU of the system.
        baseline: float, BLEU of the baseline.
        p_value: float: how often chance alone makes a difference of this size. Usually a difference
            is believed below 0.05.
        signature: sacreBLEU's signature, with the number of samples.
    """

    score: float
    baseline: float
    p_value: float
    signature: str

    def __str__(self) -> str:
        difference = self.score - self.baseline
        return (
            f"BLEU {self.score:.2f}, baseline {self.baseline:.2f}: {difference:+.2f}, "
            f"p = {self.p_value:.3f} ({self.signature})"
        )


def bleu(
    hypotheses: Iterable[str],
    references: References,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Corpus BLEU: geometric mean of 1- to 4-gram precisions times the brevity penalty.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists.
        tokenized: whether the text is already tokenized. `False`: plain text, which sacreBLEU
            tokenizes with `13a`; use it for scores that you publish. `True`: sacreBLEU splits the
            text at white space only.
        lowercase: ignore case.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is not in a list.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), "A Call for Clarity in Reporting BLEU".
    """
    return _score(_bleu(tokenized, lowercase), hypotheses, references)


def paired_bootstrap(
    hypotheses: Iterable[str],
    baseline: Iterable[str],
    references: References,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Comparison:
    """Compares the BLEU of two systems on 1,000 random samples of the lines.

    Args:
        hypotheses: the translations.
        baseline: those of the other system, of the same lines.
        references, tokenized, lowercase: as in `bleu`.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is not in a list.

    Reference:
        [Koehn, 2004](https://aclanthology.org/W04-3250), as in sacreBLEU.
    """
    from sacrebleu.significance import PairedTest

    scores: Any
    translations, streams = _checked_lists(hypotheses, references)
    others, _ = _checked_lists(baseline, streams)
    metric = _bleu(tokenized, lowercase)
    systems = [("baseline", others), ("system", translations)]
    signatures, scores = PairedTest(systems, {"BLEU": metric}, streams, test_type="bs")()
    before, now = (each.score for each in scores["BLEU"])
    # For equal scores, sacreBLEU returns a p-value near 0.
    p_value = 1.0 if now == before else scores["BLEU"][1].p_value
    return Comparison(now, before, p_value, str(signatures["BLEU"]))


def chrf(hypotheses: Iterable[str], references: References) -> Score:
    """Corpus chrF2: F-score of character 1- to 6-grams, without white space; recall has weight 2.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is not in a list.

    Reference:
        [Popović, 2015](https://aclanthology.org/W15-3049).
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def exact_match(hypotheses: Iterable[str], references: References) -> float:
    """Fraction of translations that equal their reference, character for character.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is not in a list.
    """
    translations, streams = _checked_lists(hypotheses, references)
    matches = (text in expected for text, *expected in zip(translations, *streams, strict=True))
    return sum(matches) / len(translations)


def _bleu(tokenized, lowercase):
    from sacrebleu.metrics import BLEU

    # `force` only silences the warning that the text looks tokenized.
    return BLEU(tokenize="none" if tokenized else "13a", lowercase=lowercase, force=True)


def _checked_lists(hypotheses, references):
    """Returns the translations, and a list of lists of references."""
    for name, lines in (("hypotheses", hypotheses), ("references", references)):
        if isinstance(lines, str):
            raise ValueError(f"`{name}` must be a list of lines. Received: {name}={lines!r}")
    hypotheses, references = list(hypotheses), list(references)
    has_several = references and not isinstance(references[0], str)
    streams = [list(each) for each in references] if has_several else [references]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise ValueError(
                "`hypotheses` and `references` must have equal length. "
                f"Received: {len(hypotheses)} hypotheses, {len(stream)} references"
            )
    if not hypotheses:
        raise ValueError("`hypotheses` must hold at least one line. Received: hypotheses=[]")
    allowed = str | None if has_several else str  # a line may lack some of several references
    for name, lines in (("hypotheses", hypotheses), *(("references", each) for each in streams)):
        for number, line in enumerate(lines, start=1):
            if not isinstance(line, str if name == "hypotheses" else allowed):
                raise ValueError(f"`{name}` must be strings. Received: line {number} is {line!r}")
    return hypotheses, streams


def _score(metric, hypotheses, references):
    hypotheses, streams = _checked_lists(hypotheses, references)
    result = metric.corpus_score(hypotheses, streams)
    ratio = getattr(result, "ratio", None)  # BLEU's, of lengths
    return Score(result.name, result.score, str(metric.get_signature()), ratio)
