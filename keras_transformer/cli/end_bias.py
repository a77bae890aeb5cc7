"""The option `--end-bias` of `export`: a number, or the best one on validation text."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from keras_transformer import evaluation
from keras_transformer.cli import options
from keras_transformer.cli.directions import Direction, directions_of, read_parts
from keras_transformer.cli.evaluation import aligned, score_names
from keras_transformer.cli.progress import sentence_progress
from keras_transformer.console import console

AUTO = "auto"
# A step of 0.25 changes the length by 1 or 2%. A finer grid would choose by chance.
BIASES = (-2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5)
# A bias is written only if its corrected p-value is below this.
SIGNIFICANCE = 0.05
FEWEST_LINES = 100  # a bootstrap of fewer says little

EndBiasOption = Annotated[
    str | None,
    typer.Option(
        metavar="auto|NUMBER",
        help="Number to add to the logits of the end token and of tokens that end a sentence, such "
        "as the full stop: a negative one makes translations longer. auto: the best of nine on "
        "validation text, or none if that may be chance. [default: none]",
    ),
]
# The options of `auto`.
TEXT: dict[str, tuple[Any, Any]] = {
    "source": (
        Annotated[
            list[str] | None,
            typer.Option(
                help="--end-bias auto only: file of source lines. [default: the recipe's "
                "validation split]"
            ),
        ],
        None,
    ),
    "reference": (
        Annotated[
            list[str] | None,
            typer.Option(
                help="--end-bias auto only: file of references. May be given several times."
            ),
        ],
        None,
    ),
    "data": (
        Annotated[
            Path | None,
            typer.Option(
                help="--end-bias auto only: paths in the recipe are relative to this folder. "
                "[default: .]"
            ),
        ],
        None,
    ),
    "tokenized": (options.Tokenized, False),
}


@dataclass(frozen=True, kw_only=True)
class EndBias:
    """The value of `--end-bias`, and the text for `auto`.

    Attributes:
        number: the bias; `None` for `auto`.
        parts: tuple of `Part`, the text to choose the bias on.
        metric: name of the score that the run was monitored by, such as `val_bleu`.
        tokenized: whether the text is tokenized.
    """

    number: float | None = None
    parts: tuple[Any, ...] = ()
    metric: str = ""
    tokenized: bool = False

    @classmethod
    def read(cls, option: str | None, run: Path, text: Mapping[str, Any]) -> Self:
        """Reads the option, and the text for `auto`. Without the option, the number is 0.

        Args:
            option: value of `--end-bias`.
            run: path of the run.
            text: the options of `TEXT` that the user gave.
        """
        text_options = [f"--{name}" for name, value in text.items() if value]
        if option != AUTO and text_options:
            received = text_options + ([] if option is None else [f"--end-bias {option}"])
            must = f"`{text_options[0]}` needs `--end-bias auto`."
            raise ValueError(f"{must} Received: {', '.join(received)}")
        if option is None:
            return cls(number=0.0)
        if option != AUTO:
            return cls(number=_number(option))
        from keras_transformer.runs.folder import RunFolder

        data, source, reference = text.get("data"), text.get("source"), text.get("reference")
        parts = read_parts(run, data or Path("."), source, reference, {}, "validation")
        monitor = RunFolder.existing(run).recipe().monitor
        return cls(parts=tuple(parts), metric=monitor, tokenized=text["tokenized"])

    def applied(
        self, translator: Any, search: Mapping[str, Any]
    ) -> tuple[Any, dict[str, Any] | None]:
        """Returns a translator with the bias, and the bias's entry in the model card.

        Without a bias, returns the given translator and `None`.

        Args:
            translator: `Translator`.
            search: the settings that the exported model will have.
        """
        from keras_transformer.decoding.end_bias import end_tokens, with_end_bias
        from keras_transformer.decoding.translator import Translator

        bias = self._chosen(translator, search) if self.number is None else self.number
        if not bias:
            return translator, None
        model, tokenizer = translator.model, translator.target_tokenizer
        tokens = [tokenizer.vocabulary[token_id] for token_id in end_tokens(model, tokenizer)]
        model = with_end_bias(model, bias, tokenizer)
        translator = Translator(model, *translator.tokenizers, **translator.all_settings)
        return translator, {"bias": bias, "tokens": tokens}

    def _chosen(self, translator, search):
        """Returns the best bias by the monitored score, or else by the first of `score_names`."""
        direction = self._direction(translator)
        names = score_names(direction.references, self.tokenized)
        monitored = self.metric.removeprefix("val_")
        metric = monitored if monitored in names else names[0]
        texts = dict(translations(translator, search, direction))
        return chosen_bias(texts, direction.references, metric, self.tokenized)

    def _direction(self, translator):
        directions = directions_of(self.parts, translator)
        if len(directions) > 1:
            names = ", ".join(direction.name for direction in directions)
            must = "`--end-bias auto` needs text of one direction: give `--source`, `--reference`."
            raise ValueError(f"{must} Received: {names}")
        return directions[0]


def translations(
    translator: Any, search: Mapping[str, Any], direction: Direction
) -> Iterator[tuple[float, list[str]]]:
    """Yields each of `BIASES` with the translations that it leads to.

    All biases are set in the same model, so that its search is compiled once.
    """
    from keras_transformer.decoding.end_bias import end_tokens, set_end_bias, with_end_bias
    from keras_transformer.decoding.translator import Translator

    model = with_end_bias(translator.model, 0.0)
    trial: Any = Translator(model, *translator.tokenizers, **search)
    lines, token_ids = direction.sources, end_tokens(model, translator.target_tokenizer)
    with sentence_progress(len(lines) * len(BIASES)) as on_progress:
        for bias in BIASES:
            set_end_bias(model, translator.model, bias, token_ids)
            answers = trial(lines, n_best=1, on_progress=on_progress, **direction.languages)
            yield bias, [best.text for best, *_ in answers]


def chosen_bias(
    texts: Mapping[float, list[str]], references: list[list[Any]], metric: str, tokenized: bool
) -> float:
    """Prints a table of biases, lengths and scores; returns the best, or 0 if that may be chance.

    Args:
        texts: the translations with each bias; 0 must be one of them.
        references: lists of references, as in `evaluation.score`.
        metric: a name of `evaluation.METRICS`.
        tokenized: whether the text is tokenized.
    """
    scores = {
        bias: evaluation.score(metric, lines, references, tokenized)
        for bias, lines in texts.items()
    }
    rows = [("bias", "length ratio", scores[0.0].name)]
    for bias, score in scores.items():
        ratio = length_ratio(score, texts[bias], references)
        rows.append((f"{bias:+.2f}", f"{ratio:.3f}", f"{score.value:.2f}"))
    console.print("\n".join(aligned(rows)))

    best = best_bias([(bias, score.value) for bias, score in scores.items()], metric)
    name, signature, lines = scores[best].name, scores[best].signature, len(texts[best])
    console.print(f"--end-bias {best:g} has the best {name} on {lines:,} lines ({signature}).")
    if best == 0:
        return best
    advice = f"so no bias is written; `--end-bias {best:g}` writes it."
    if lines < FEWEST_LINES:
        console.print(f"{lines:,} lines are too few to tell it from chance, {advice}")
        return 0.0
    comparison = evaluation.paired_bootstrap(
        texts[best], texts[0.0], references, tokenized, metric=metric
    )
    # Bonferroni's bound: the more biases are tried, the more often one is better by chance.
    num_tries = len(texts) - 1
    p_value = min(1.0, comparison.p_value * num_tries)
    corrected = f"p = {p_value:.3f}, corrected for the best of {num_tries}"
    baseline = f"Without a bias: {name} {comparison.baseline:.2f} ({corrected})."
    if p_value < SIGNIFICANCE:
        console.print(baseline)
        return best
    console.print(f"{baseline} That may be chance, {advice}")
    return 0.0


def best_bias(scores: list[tuple[float, float]], metric: str) -> float:
    """Returns the bias of the best score; of equal scores, the one nearest to 0.

    Args:
        scores: pairs of bias and score.
        metric: a name of `evaluation.METRICS`.
    """
    sign = -1 if evaluation.METRICS[metric].more_is_better else 1
    return min(scores, key=lambda pair: (sign * pair[1], abs(pair[0])))[0]


def length_ratio(score: evaluation.Score, texts: list[str], references: list[list[Any]]) -> float:
    """Returns the length of the translations divided by that of the references.

    The lengths are in tokens if the score is BLEU. Otherwise they are in characters, and only the
    first reference of each line counts.
    """
    if score.length_ratio is not None:
        return score.length_ratio
    return sum(map(len, texts)) / max(sum(len(text or "") for text in references[0]), 1)


def _number(option):
    try:
        bias = float(option)
    except ValueError:
        bias = math.nan
    if not math.isfinite(bias):
        must = "`--end-bias` must be `auto` or a finite number."
        raise ValueError(f"{must} Received: {option}")
    return bias
