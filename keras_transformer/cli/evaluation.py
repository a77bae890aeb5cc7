"""Commands that evaluate a run: `evaluate` computes scores, `plot` draws figures."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer import evaluation
from keras_transformer.cli import options, stream, translators
from keras_transformer.cli.directions import Direction, directions_of, read_parts, split_pairs
from keras_transformer.console import console

MAX_REPORTS = 5  # maximum number of long lines to report
MAX_LENGTH_RATIO = 1.3  # longer translations probably repeat themselves
TABLE_SCORES = "bleu", "chrf"

commands = typer.Typer()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The translations of a direction, and what they score.

    Attributes:
        direction: `Direction`.
        answers: list of lists of `Hypothesis`, best first.
        scores: dict from names in `evaluation.SCORES` to `Score`.
        matches: dict from `exact_match` and `accuracy@n` to fractions of the lines.
    """

    direction: Direction
    answers: list[list[Any]]
    scores: dict[str, evaluation.Score]
    matches: dict[str, float]

    @property
    def translations(self) -> list[str]:
        """The best translation of each line."""
        return [best.text for best, *_ in self.answers]

    @property
    def unfinished(self) -> int:
        """Number of translations that reached their maximum length."""
        return sum(best.unfinished for best, *_ in self.answers)


@commands.command()
@options.search_options(*options.ONE_BEST)
def evaluate(
    runs: options.RunArguments,
    data: options.Data = Path("."),
    source: options.Sources = None,
    reference: options.References = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="File of other translations, to compare by paired bootstrap."),
    ] = None,
    tokenized: options.Tokenized = False,
    output: Annotated[Path | None, typer.Option(help="Also write the translations here.")] = None,
    *,
    settings: dict[str, Any],
    samples: Annotated[int, typer.Option(help="Translations to show.", min=0)] = 5,
    n_best: Annotated[
        int,
        typer.Option(help="Also print accuracy@n: how often one of the n best is right.", min=1),
    ] = 1,
    model: options.Model = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF, WER, PER and CER with signatures, exact match.

    WER: lines that equal no reference; PER and CER: edits per 100 tokens and characters.

    A model of many languages gets a row for each direction. Name the directions by several
    --source, as many --reference, and languages separated by commas; or set `languages` of the
    corpora in the recipe's test split.

    COMET is not computed, because its models would have to be downloaded: use --output.

    Example:

        keras-transformer evaluate runs/multi30k_en_de --data ~/multi30k --tokenized
        keras-transformer evaluate runs/mine --source new.en --reference new.de
        keras-transformer evaluate runs/nllb --source a.en --reference a.de --source b.en \
--reference b.fr --source-language en --target-language de,fr
    """
    from keras_transformer.runs.folder import RunFolder

    folder = RunFolder(runs[0])
    is_recorded = source is None and model is None and len(runs) == 1
    if is_recorded:
        folder.report()  # fails early if the report is damaged
    if output is not None:
        options.check_output(output)
    parts = read_parts(runs[0], data, source, reference, settings)
    translator = translators.load_runs(runs, model, **settings)
    directions = directions_of(parts, translator)
    baseline_lines = read_baseline(baseline, directions) if baseline else []
    results = [
        evaluate_direction(translator, direction, n_best, tokenized) for direction in directions
    ]
    for result in results:
        first_references = result.direction.references[0]
        print_samples(samples, result.direction.sources, result.translations, first_references)
    if len(results) > 1:
        print_table(results)
    else:
        print_scores(results[0])
    if baseline_lines:
        print_comparison(results[0], baseline_lines, tokenized)
    print_notes(translator, results)
    if output is not None:
        stream.write_lines([text for result in results for text in result.translations], output)
    if is_recorded:
        record(folder, translator.all_settings, results)


@commands.command()
@options.search_options(*options.OF_WHOLE_LINES)
def plot(
    run: options.RunArgument,
    data: options.Data = Path("."),
    text: Annotated[
        str | None, typer.Option(help="What to translate. [default: first line of the test split]")
    ] = None,
    *,
    settings: dict[str, Any],
    model: options.Model = None,
) -> None:
    """Draw attention.png, curves.png and positions.png into the run's folder.

    With relative positions, there is no positions.png.

    Example:

        keras-transformer plot runs/multi30k_en_de --text "a man sleeps ."
    """
    from keras_transformer import plotting
    from keras_transformer.decoding.reports import line_reports
    from keras_transformer.runs.folder import RunFolder

    if text is None:
        pairs = split_pairs(run, data, "test", instead="`--text`")
        text = next(line for line, _ in pairs if line.strip())
    translator = translators.load_runs([run], model, on_too_long="truncate", **settings)
    hypotheses = translator(text, return_attention=True)
    (best,) = hypotheses
    for report in line_reports([hypotheses]):
        console.print(report)
    if not best.tokens:
        raise ValueError(f"`--text` must have a translation to draw. Received: {text!r}")
    source, translation = (best.source_tokens, "source"), (best.tokens, "translation")
    # The decoder reads the translation shifted right.
    inputs = best.attention.decoder_tokens, "decoder inputs"

    def draw(scores, query, key):
        (query_tokens, query_label), (key_tokens, key_label) = query, key
        return plotting.plot_attention(
            scores, query_tokens, key_tokens, text, query_label, key_label
        )

    embedding = translator.model.encoder.embedding
    positions = list(range(min(64, embedding.max_sequence_length or 64)))
    encoding = embedding.encode_positions(positions)
    figures = {
        "attention": draw(best.attention.encoder_decoder, translation, source),
        "attention_encoder": draw(best.attention.encoder, source, source),
        "attention_decoder": draw(best.attention.decoder, translation, inputs),
    }
    if embedding.positions != "none":
        figures["positions"] = plotting.plot_positional_encoding(encoding)
    if RunFolder(run).history():  # an imported run has none
        figures["curves"] = plotting.plot_history(RunFolder(run).history_file)
    for name, figure in figures.items():
        path = run / f"{name}.png"
        figure.savefig(path, dpi=120)
        RunFolder(run).add_owned_files(path.name)
        print(path)


def notes(translator, answers, sources, references):
    """Yields what lowers the scores: long lines, lengths, repetitions, symbols without a token."""
    from keras_transformer.data.report import UnknownSymbols
    from keras_transformer.decoding.reports import line_reports

    yield from line_reports(answers, most=MAX_REPORTS)
    length = sum(len(best.text) for best, *_ in answers)
    expected = sum(len(text or "") for text in references[0])
    if length > MAX_LENGTH_RATIO * expected > 0:
        yield (
            f"The translations have {length / expected:.2f} times the characters of the "
            "references: a model that is trained too little repeats itself. Train for more epochs; "
            "in Python, the processor `no_repeat_ngram_size(3)` forbids repeated trigrams."
        )
    for side, columns in (("source", [sources]), ("target", references)):
        unknown_symbols = UnknownSymbols(getattr(translator, f"{side}_tokenizer"))
        for lines in columns:
            unknown_symbols.add(line or "" for line in lines)  # a line may lack some references
        if note := unknown_symbols.note(f"the {side}"):
            yield note


def print_samples(number, *columns):
    """Prints the first `number` rows of the columns: sources, translations and references."""
    for row in itertools.islice(zip(*columns, strict=True), number):
        print("source       {}\ntranslation  {}\nreference    {}\n".format(*row))


def evaluate_direction(translator, direction, n_best, tokenized):
    """Translates and scores the lines of a direction; returns an `Evaluation`."""
    references = direction.references
    answers = translators.with_progress(
        translator, direction.sources, n_best=n_best, **direction.languages
    )
    ranked = [[hypothesis.text for hypothesis in hypotheses] for hypotheses in answers]
    translations = [texts[0] for texts in ranked]
    scores = {
        name: evaluation.score(name, translations, references, tokenized)
        for name in score_names(references, tokenized)
    }
    matches = {"exact_match": evaluation.exact_match(translations, references)}
    if n_best > 1:
        matches[f"accuracy@{n_best}"] = evaluation.accuracy_at_n(ranked, references)
    return Evaluation(direction=direction, answers=answers, scores=scores, matches=matches)


def print_scores(result):
    """Prints the scores of one direction, a line each."""
    print(*result.scores.values(), sep="\n")
    for name, value in result.matches.items():
        print(f"{name.replace('_', ' ')} {value:.4f} of {len(result.answers):,} lines", flush=True)


def print_table(results):
    """Prints a row for each direction, and the signatures of the scores."""
    rows = [("direction", "lines", "BLEU", "chrF2", "unfinished")]
    for result in results:
        scores = [result.scores.get(name) for name in TABLE_SCORES]
        values = ["-" if score is None else f"{score.value:.2f}" for score in scores]
        lines, unfinished = f"{len(result.answers):,}", f"{result.unfinished:,}"
        rows.append((result.direction.name, lines, *values, unfinished))
    print(*aligned(rows), sep="\n")
    scores = [score for result in results for score in result.scores.values()]
    signatures = {f"{score.name}: {score.signature}" for score in scores if score.name in rows[0]}
    print(*sorted(signatures), sep="\n", flush=True)


def print_comparison(result, baseline, tokenized):
    """Prints how each score differs from that of other translations of the same lines."""
    references = result.direction.references
    for name in result.scores:
        comparison = evaluation.paired_bootstrap(
            result.translations, baseline, references, tokenized, metric=name
        )
        print(comparison)


def print_notes(translator, results):
    """Prints what lowers the scores of each direction, after its name if there are several."""
    for result in results:
        direction = result.direction
        prefix = f"{direction.name}: " if len(results) > 1 else ""
        for note in notes(translator, result.answers, direction.sources, direction.references):
            console.print(f"{prefix}{note}")


def aligned(rows):
    """Yields the lines of a table: the first column is aligned left, the others right.

    Args:
        rows: list of tuples of strings.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        numbers = (f"{cell:>{width}}" for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([f"{name:{widths[0]}}", *numbers])


def read_baseline(path, directions):
    """Returns the lines of a file; raises a `ValueError` unless it has one for each source."""
    from keras_transformer.data.corpus import read_lines

    if len(directions) > 1:
        names = ", ".join(direction.name for direction in directions)
        raise ValueError(f"`--baseline` must be of one direction. Received: {path}, for {names}")
    number = len(directions[0].sources)
    lines = list(read_lines(path))
    if len(lines) != number:
        must = f"`--baseline` must hold a translation for each of the {number:,} lines."
        raise ValueError(f"{must} Received: {path}, with {len(lines):,} lines")
    return lines


def record(folder, settings, results):
    """Writes scores and search settings into a run's report, in place of those of an earlier call.

    Prints a note if the run is not finished.
    """
    is_trained = folder.history_file.exists()  # an imported run has none
    if is_trained and "updates" not in folder.report():
        console.print(
            "The run is not finished: these scores are of its best epoch so far. When it is "
            f"resumed, they are deleted from {folder.report_file}."
        )
    search = {name: settings[name] for name in options.ONE_BEST}
    entries = [
        result.matches | {score.name: vars(score) for score in result.scores.values()}
        for result in results
    ]
    # Those of an earlier call may be of another search.
    earlier = [name for name, value in folder.report().items() if is_score(name, value)]
    if len(results) == 1:
        folder.add_to_report(earlier, search=search, **entries[0])
        return
    rows = [
        {**result.direction.languages, "lines": len(result.answers)}
        | {"unfinished": result.unfinished, **entry}
        for result, entry in zip(results, entries, strict=True)
    ]
    folder.add_to_report(earlier, search=search, directions=rows)


def is_score(name, value):
    """Whether an entry of a report is one that `record` has added, other than `search`."""
    is_of_evaluation = isinstance(value, dict) and "signature" in value
    return is_of_evaluation or name.startswith(("exact_match", "accuracy@", "directions"))


def score_names(references, tokenized):
    """Returns the names of all scores, without BLEU if no reference has a 4-gram.

    Even the references themselves would then score 0.
    """
    columns = ([text or "" for text in texts] for texts in references)
    has_bleu = any(evaluation.bleu(texts, texts, tokenized=tokenized).value for texts in columns)
    return [name for name in evaluation.SCORES if has_bleu or name != "bleu"]
