"""The table of metrics; scores of translations, and the paired bootstrap, both by sacreBLEU.

Imports nothing of the package. Paper section 6.1 (table 2 reports BLEU).
"""

import dataclasses
import functools
import itertools
import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

References: TypeAlias = Iterable[str] | Iterable[Iterable[str | None]]


@dataclasses.dataclass(frozen=True)
class Score:
    """A corpus score.

    Attributes:
        name: such as `"BLEU"` or `"PER"`.
        value: from 0 to 100; `"PER"` and `"CER"` may be more.
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
        score: float, score of the system.
        baseline: float, score of the baseline.
        p_value: float: how probable a difference of at least this size is by chance alone. Below
            0.05, a difference is usually taken to be real. A single line shows nothing: 1.
        signature: sacreBLEU's signature, with the number of samples.
        name: name of the score.
        more_is_better: whether the higher score is the better one.
    """

    score: float
    baseline: float
    p_value: float
    signature: str
    name: str = "BLEU"
    more_is_better: bool = True

    def __str__(self) -> str:
        difference = self.score - self.baseline
        note = "" if self.more_is_better else " (less is better)"
        return (
            f"{self.name} {self.score:.2f}, baseline {self.baseline:.2f}: {difference:+.2f}{note}, "
            f"p = {self.p_value:.3f} ({self.signature})"
        )


@dataclasses.dataclass(frozen=True)
class Metric:
    """A row of `METRICS`.

    Attributes:
        unit: what the value counts.
        more_is_better: whether a higher value is better.
        make: function of `tokenized` and `lowercase` that returns sacreBLEU's metric, for `score`;
            `None` for a metric that is not a `Score`.
    """

    unit: str
    more_is_better: bool
    make: Callable[[bool, bool], Any] | None = None


def score(
    metric: str,
    hypotheses: Iterable[str],
    references: References,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Corpus score by a metric.

    `"wer"` is the percentage of the lines whose tokens, between white space, differ from those of
    every reference: the word error rate of tasks whose lines are words, such as pronunciation.
    `"per"` and `"cer"` are edits (symbols to insert, delete or replace) per 100 symbols of the
    references. For `"per"`, a symbol is a token between white space (a phone, or a word); for
    `"cer"`, it is a character, also white space inside the line.
    Of several references of a line, the one with the fewest edits counts; if several have as few,
    the longest. Edits and symbols are summed over the lines before they are divided; edits may be
    more than symbols, so a score can exceed 100. If the references hold no symbol at all, the edits
    are divided by one symbol.

    Args:
        metric: `"bleu"`, `"chrf"`, `"wer"`, `"per"` or `"cer"`.
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists. A line may lack some of several references: `None`, or a blank
            string. A blank reference counts only if the line has no other.
        tokenized: as in `bleu`. It changes no other metric.
        lowercase: ignore case.

    Raises:
        ValueError: if the metric is unknown, the lists are empty or of unequal length, a string is
            given for a list, or a line has no reference.

    >>> keras_transformer.evaluation.score("per", ["k ae t s"], ["k ae t d"]).value
    25.0
    """
    hypotheses, streams = _checked_lists(hypotheses, references)
    scorer = _make_scorer(metric, tokenized, lowercase)
    result = scorer.corpus_score(hypotheses, streams)
    length_ratio = result.ratio if metric == "bleu" else None
    return Score(result.name, result.score, str(scorer.get_signature()), length_ratio)


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
        ValueError: if the lists are empty or of unequal length, or a string is given for a list.

    Reference:
        [Post, 2018](https://aclanthology.org/W18-6319), "A Call for Clarity in Reporting BLEU".
    """
    return score("bleu", hypotheses, references, tokenized, lowercase)


def paired_bootstrap(
    hypotheses: Iterable[str],
    baseline: Iterable[str],
    references: References,
    tokenized: bool = False,
    lowercase: bool = False,
    metric: str = "bleu",
) -> Comparison:
    """Compares a score of two systems on 1,000 random samples of the lines.

    Args:
        hypotheses: the translations.
        baseline: the translations of the other system, of the same lines.
        references, tokenized, lowercase, metric: as in `score`.

    Raises:
        ValueError: as `score`.

    Reference:
        [Koehn, 2004](https://aclanthology.org/W04-3250), as in sacreBLEU.
    """
    from sacrebleu.significance import PairedTest

    scores: Any
    translations, streams = _checked_lists(hypotheses, references)
    baseline_lines, _ = _checked_lists(baseline, streams, "baseline")
    scorers = {metric: _make_scorer(metric, tokenized, lowercase)}
    systems = [("baseline", baseline_lines), ("system", translations)]
    signatures, scores = PairedTest(systems, scorers, streams, test_type="bs")()
    ((name, signature),) = signatures.items()
    baseline_score, system_score = scores[name]
    # For equal scores, and for one line, of which all samples are equal, sacreBLEU returns a
    # p-value near 0.
    is_unknown = system_score.score == baseline_score.score or len(translations) == 1
    return Comparison(
        score=system_score.score,
        baseline=baseline_score.score,
        p_value=1.0 if is_unknown else system_score.p_value,
        signature=str(signature),
        name=name,
        more_is_better=METRICS[metric].more_is_better,
    )


def chrf(hypotheses: Iterable[str], references: References) -> Score:
    """Corpus chrF2: F-score of character 1- to 6-grams, without white space; recall has weight 2.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is given for a list.

    Reference:
        [Popović, 2015](https://aclanthology.org/W15-3049).
    """
    return score("chrf", hypotheses, references)


def exact_match(hypotheses: Iterable[str], references: References) -> float:
    """Fraction of translations that have the same tokens, between white space, as a reference.

    Args:
        hypotheses: the translations.
        references: one reference for each translation, in the same order; for several references,
            a list of such lists.

    Raises:
        ValueError: if the lists are empty or of unequal length, or a string is given for a list.
    """
    translations, streams = _checked_lists(hypotheses, references)
    return accuracy_at_n([[text] for text in translations], streams)


def accuracy_at_n(n_best: Iterable[list[str]], references: References) -> float:
    """Fraction of the lines for which one of n translations has the same tokens as a reference.

    Args:
        n_best: a list of n translations for each line. With n = 1, the result is `exact_match`.
        references: as in `exact_match`.

    Raises:
        ValueError: as `exact_match`, and if a line has no list of translations.

    >>> keras_transformer.evaluation.accuracy_at_n([["a", "b"], ["a", "c"]], ["b", "b"])
    0.5
    """
    ranked = list(n_best)
    for number, texts in enumerate(ranked, start=1):
        is_list = isinstance(texts, list) and bool(texts)
        if not (is_list and all(isinstance(text, str) for text in texts)):
            raise ValueError(
                "`n_best` must hold a list of translations, strings, for each line. Received: "
                f"line {number} is {reprlib.repr(texts)}"
            )
    firsts, streams = _checked_lists([texts[0] for texts in ranked], references, "n_best")
    num_right = 0
    for texts, *row in zip(ranked, *streams, strict=True):
        expected = {_spaced(reference) for reference in row if reference is not None}
        num_right += not expected.isdisjoint(map(_spaced, texts))
    return num_right / len(firsts)


def merge_references(
    pairs: Iterable[tuple[str, str]],
) -> tuple[list[str], list[list[str | None]]]:
    """Merges pairs that have the same source into one line with several references.

    Such pairs are a word with two pronunciations, or a sentence with two translations. Of equal
    pairs, one counts.

    Args:
        pairs: (source, reference) strings.

    Returns:
        the distinct sources in their order; and the references, as `score` takes them: a list of
        the first one of each source, a list of the second ones and so on, with `None` where a
        source has no more.

    >>> keras_transformer.evaluation.merge_references([("a", "x"), ("b", "y"), ("a", "z")])
    (['a', 'b'], [['x', 'y'], ['z', None]])
    """
    references: dict[str, dict[str, None]] = {}
    for source, reference in pairs:
        references.setdefault(source, {})[reference] = None
    return list(references), list(map(list, itertools.zip_longest(*references.values())))


def mbr_order(candidates: Iterable[str], utility: str = "chrf") -> list[int]:
    """Orders translations of one line by minimum Bayes risk: by how similar they are to all others.

    Each candidate may be the right one. The best is the one with the highest mean similarity to all
    of them, itself included. A candidate counts as often as it is in the list: a model draws a
    probable sample more often.

    Args:
        candidates: n best translations of the line, or samples of them.
        utility: the similarity: `"chrf"`, or `"bleu"`, which is sentence BLEU without the n-grams
            that a line is too short for. Defaults to `"chrf"`.

    Returns:
        the indices of the candidates, best first; equally good ones stay in their order. An empty
        candidate is behind all others.

    Raises:
        ValueError: if the utility is unknown.

    >>> keras_transformer.evaluation.mbr_order(["a red cat", "a dog", "a red dog", ""])
    [2, 0, 1, 3]

    Reference:
        [Eikema and Aziz, 2020](https://aclanthology.org/2020.coling-main.398).
    """
    if utility not in UTILITIES:
        raise ValueError(f"`utility` must be one of {', '.join(UTILITIES)}. Received: {utility=}")
    similarity = UTILITIES[utility]().sentence_score
    texts = list(candidates)
    counts = Counter(texts)
    # `fsum` rounds once: the sum does not depend on the order.
    sums = {
        text: math.fsum(count * similarity(text, [other]).score for other, count in counts.items())
        for text in counts
    }
    return sorted(range(len(texts)), key=lambda index: -sums[texts[index]])


def _bleu(tokenized=False, lowercase=False, **options):
    from sacrebleu.metrics import BLEU

    # `force` only silences the warning that the text looks tokenized.
    tokenize = "none" if tokenized else "13a"
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True, **options)


def _chrf(tokenized=False, lowercase=False):
    from sacrebleu.metrics import CHRF

    return CHRF(lowercase=lowercase)


def _error_rate(name, symbol, split):
    """Returns `Metric.make` for a score of edits per 100 symbols.

    Args:
        name: name of the score.
        symbol: what a symbol is, for the signature.
        split: function from a line to the sequence of its symbols.
    """

    def make(tokenized, lowercase):
        import numpy as np
        from rapidfuzz.distance import Levenshtein
        from sacrebleu.metrics.base import Metric as Base
        from sacrebleu.metrics.base import Score as BaseScore

        class ErrorRate(Base):
            def _preprocess_segment(self, sent):
                return split(sent.lower() if lowercase else sent)

            def _extract_reference_info(self, refs):
                return {"references": refs}

            def _compute_segment_statistics(self, hypothesis, ref_kwargs):
                counts = (
                    (Levenshtein.distance(hypothesis, reference), len(reference))
                    for reference in ref_kwargs["references"]
                )
                return min(counts, key=lambda count: (count[0], -count[1]))

            def _aggregate_and_compute(self, stats):
                return self._compute_score_from_stats(np.sum(stats, axis=0))

            def _compute_score_from_stats(self, stats):
                edits, symbols = map(float, stats)
                return BaseScore(name, 100 * edits / max(symbols, 1))

            def get_signature(self):
                signature = super().get_signature()
                signature.update("case", "lc" if lowercase else "mixed")
                signature.update("symbol", symbol)
                return signature

        return ErrorRate()

    return make


def _as_one_symbol(line):
    return [_spaced(line)]


# The only place that says whether more is better, for the choice of the best epoch, early stopping
# and `monitor`. A logged name ends with the name of its metric: `val_bleu`.
METRICS = {
    "bleu": Metric("% (precision of n-grams)", True, _bleu),
    "chrf": Metric("% (F-score of n-grams)", True, _chrf),
    "wer": Metric("% of the lines", False, _error_rate("WER", "line", _as_one_symbol)),
    "per": Metric("edits per 100 tokens", False, _error_rate("PER", "token", str.split)),
    "cer": Metric("edits per 100 characters", False, _error_rate("CER", "character", str.strip)),
    "exact_match": Metric("fraction of the lines", True),
    "accuracy@n": Metric("fraction of the lines", True),
    "accuracy": Metric("fraction of the tokens", True),
    "loss": Metric("nats per token", False),
    "perplexity": Metric("e to the loss", False),
}
# The similarities of `mbr_order`.
UTILITIES: dict[str, Callable[[], Any]] = {
    "chrf": _chrf,
    "bleu": functools.partial(_bleu, effective_order=True),
}
SCORES = tuple(name for name, metric in METRICS.items() if metric.make)


def _make_scorer(metric, tokenized, lowercase):
    """Returns sacreBLEU's metric by its name in `METRICS`; raises a `ValueError` if it has none."""
    make = METRICS[metric].make if metric in METRICS else None
    if make is None:
        raise ValueError(f"`metric` must be one of {', '.join(SCORES)}. Received: {metric=}")
    return make(tokenized, lowercase)


def _checked_lists(hypotheses, references, name="hypotheses"):
    """Returns the translations, and a list of lists of references; a missing one is `None`.

    `name` is that of the argument with the translations, for errors.
    """
    for argument, lines in ((name, hypotheses), ("references", references)):
        if isinstance(lines, str | bytes | Mapping):
            raise ValueError(
                f"`{argument}` must be a list of lines. Received: {argument}={lines!r}"
            )
    hypotheses, references = list(hypotheses), list(references)
    has_several = references and not isinstance(references[0], str | None)
    streams = [list(stream) for stream in references] if has_several else [references]
    for stream in streams:
        if len(hypotheses) != len(stream):
            raise ValueError(
                f"`{name}` and `references` must have equal length. "
                f"Received: {len(hypotheses)} {name}, {len(stream)} references"
            )
    if not hypotheses:
        raise ValueError(f"`{name}` must hold at least one line. Received: {name}=[]")
    _require_strings(name, hypotheses, str)
    for stream in streams:
        # A line may lack some of several references.
        _require_strings("references", stream, str | None if has_several else str)
    rows = list(zip(*streams, strict=True))  # the references of each line
    for number, row in enumerate(rows, start=1):
        if all(reference is None for reference in row):
            raise ValueError(f"Each line must have a reference. Received: none for line {number}")
    return hypotheses, list(map(list, zip(*map(_without_blanks, rows), strict=True)))


def _require_strings(name, lines, allowed):
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, allowed):
            raise ValueError(f"`{name}` must be strings. Received: line {number} is {line!r}")


def _without_blanks(references):
    """Returns the references of a line; if one has text, blank ones are `None`."""
    texts = [text if text and text.strip() else None for text in references]
    return texts if any(texts) else references


def _spaced(line):
    """Returns the tokens of a line with one space between them, for comparisons."""
    return " ".join(line.split())
