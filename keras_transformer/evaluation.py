"""BLEU and chrF of lists of strings, by sacreBLEU, each with the signature to compare it by.

Last station of the data flow: translations -> scores; knows no translator.
Paper section 6.1 (table 2 reports BLEU).
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score.

    Attributes:
        name: `"BLEU"` or `"chrF2"`.
        value: float in [0, 100].
        signature: sacreBLEU's record of how it was computed. Scores compare only if it is equal.
    """

    name: str
    value: float
    signature: str

    def __str__(self):
        return f"{self.name} {self.value:.2f} ({self.signature})"


def bleu(hypotheses, references, tokenized=False, lowercase=False):
    """Corpus BLEU: geometric mean of 1- to 4-gram precisions times the brevity penalty.

    Args:
        hypotheses: list of strings, the translations.
        references: list of strings, one reference for each hypothesis, in the same order.
        tokenized: bool. `False`: plain text, tokenised by sacreBLEU (`13a`), which is the score to
            publish. `True`: both sides are tokenised already and are split at white space only.
        lowercase: bool. Compare without regard to case.

    Returns:
        `Score`.

    Raises:
        ValueError: if the lists are empty or of unequal length.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), "A Call for Clarity in Reporting BLEU".
    """
    from sacrebleu.metrics import BLEU

    tokenize = "none" if tokenized else "13a"
    # `force` only silences the warning that the text looks tokenised.
    return _score(BLEU(tokenize=tokenize, lowercase=lowercase, force=True), hypotheses, references)


def chrf(hypotheses, references):
    """Corpus chrF2: F-score of character 1- to 6-grams, recall weighing twice, white space ignored.

    Args:
        hypotheses: list of strings, the translations.
        references: list of strings, one reference for each hypothesis, in the same order.

    Returns:
        `Score`.

    Raises:
        ValueError: if the lists are empty or of unequal length.

    Reference:
        [Popović, 2015](https://aclanthology.org/W15-3049).
    """
    from sacrebleu.metrics import CHRF

    return _score(CHRF(), hypotheses, references)


def exact_match(hypotheses, references):
    """The share of translations that equal their reference, character for character.

    Args:
        hypotheses: list of strings, the translations.
        references: list of strings, one reference for each hypothesis, in the same order.

    Returns:
        float in [0, 1].

    Raises:
        ValueError: if the lists are empty or of unequal length.
    """
    hypotheses, references = list(hypotheses), list(references)
    _check(hypotheses, references)
    pairs = zip(hypotheses, references, strict=True)
    return sum(hypothesis == reference for hypothesis, reference in pairs) / len(references)


def _check(hypotheses, references):
    if len(hypotheses) != len(references):
        raise ValueError(
            "`hypotheses` and `references` must be equally many. "
            f"Received: {len(hypotheses)} hypotheses, {len(references)} references"
        )
    if not hypotheses:
        raise ValueError("`hypotheses` must hold at least one line. Received: hypotheses=[]")


def _score(metric, hypotheses, references):
    hypotheses, references = list(hypotheses), list(references)
    _check(hypotheses, references)
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.name, result.score, str(metric.get_signature()))
