"""Commands that evaluate a run: `evaluate` computes scores, `plot` draws figures."""

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer import evaluation
from keras_transformer.cli import options, stream, translators
from keras_transformer.console import console

MOST_REPORTS = 5  # of long lines
MOST_LENGTH_RATIO = 1.3  # of translations that do not repeat themselves

commands = typer.Typer()


@commands.command()
@options.search_options(*options.ONE_BEST)
def evaluate(
    runs: options.RunArguments,
    data: options.Data = Path("."),
    source: options.Source = None,
    reference: options.References = None,
    baseline: Annotated[
        Path | None, typer.Option(help="File of other translations: paired bootstrap.")
    ] = None,
    tokenized: options.Tokenized = False,
    output: Annotated[Path | None, typer.Option(help="Also write the translations here.")] = None,
    *,
    settings: dict[str, Any],
    samples: Annotated[int, typer.Option(help="Translations to show.", min=0)] = 5,
    n_best: Annotated[
        int, typer.Option(help="Also accuracy@n: one of the n best translations is right.", min=1)
    ] = 1,
    model: options.Model = None,
) -> None:
    """Translate a test set and score it: BLEU, chrF, WER, PER and CER with signatures, exact match.

    WER: lines that equal no reference; PER and CER: edits per 100 tokens and characters.

    Nothing here computes COMET: its models would have to be downloaded. Use --output.

    Example:

        keras-transformer evaluate runs/multi30k_en_de --data ~/multi30k --tokenized
        keras-transformer evaluate runs/mine --source new.en --reference new.de
    """
    from keras_transformer.runs.folder import RunFolder

    folder = RunFolder(runs[0])
    is_recorded = source is None and model is None and len(runs) == 1
    if is_recorded:
        folder.report()  # fails early if the report is damaged
    if output is not None:
        options.check_output(output)
    sources, references = test_set(runs[0], data, source, reference)
    others = read_baseline(baseline, len(sources)) if baseline else []
    translator = translators.load_runs(runs, model, **settings)
    answers = translators.with_progress(translator, sources, n_best=n_best)
    ranked = [[hypothesis.text for hypothesis in hypotheses] for hypotheses in answers]
    translations = [texts[0] for texts in ranked]
    names = score_names(references, tokenized)
    scores = [evaluation.score(name, translations, references, tokenized) for name in names]
    matches = {"exact_match": evaluation.exact_match(translations, references)}
    if n_best > 1:
        matches[f"accuracy@{n_best}"] = evaluation.accuracy_at_n(ranked, references)
    print_samples(samples, sources, translations, references[0])
    print(*scores, sep="\n")
    for name, value in matches.items():
        print(f"{name.replace('_', ' ')} {value:.4f} of {len(sources):,} lines", flush=True)
    for name in names if others else ():
        print(evaluation.paired_bootstrap(translations, others, references, tokenized, metric=name))
    for note in notes(translator, answers, sources, references):
        console.print(note)
    if output is not None:
        stream.write_lines(translations, output)
    if is_recorded:
        record(folder, translator.all_settings, scores, matches)


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
        pairs = test_pairs(run, data, instead="`--text`")
        text = next(line for line, _ in pairs if line.strip())
    translator = translators.load_runs([run], model, on_too_long="truncate", **settings)
    (best,) = hypotheses = translator(text, return_attention=True)
    for report in line_reports([hypotheses]):
        console.print(report)
    if not best.tokens:
        raise ValueError(f"`--text` must have a translation to draw. Received: {text!r}")
    source, translation = (best.source_tokens, "source"), (best.tokens, "translation")
    # The decoder reads the translation shifted right.
    inputs = best.attention.decoder_tokens, "decoder inputs"

    def draw(scores, query, key):
        (rows, row_label), (columns, column_label) = query, key
        return plotting.plot_attention(scores, rows, columns, text, row_label, column_label)

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

    yield from line_reports(answers, most=MOST_REPORTS)
    translated = sum(len(best.text) for best, *_ in answers)
    expected = sum(len(text or "") for text in references[0])
    if translated > MOST_LENGTH_RATIO * expected > 0:
        yield (
            f"The translations have {translated / expected:.2f} times the characters of the "
            "references: a model that is trained too little repeats itself. Train for more epochs; "
            "in Python, the processor `no_repeat_ngram_size(3)` forbids repeated trigrams."
        )
    for side, columns in (("source", [sources]), ("target", references)):
        unknown = UnknownSymbols(getattr(translator, f"{side}_tokenizer"))
        for lines in columns:
            unknown.add(line or "" for line in lines)  # a line may lack some references
        if note := unknown.note(f"the {side}"):
            yield note


def print_samples(number, *columns):
    """Prints the first of some sources, translations and references."""
    for row in itertools.islice(zip(*columns, strict=True), number):
        print("source       {}\ntranslation  {}\nreference    {}\n".format(*row))


def read_baseline(path, lines):
    """Returns the lines of a file; raises a `ValueError` unless it has this number of them."""
    from keras_transformer.data.corpus import read_lines

    others = list(read_lines(path))
    if len(others) != lines:
        must = f"`--baseline` must hold a translation for each of the {lines:,} lines."
        raise ValueError(f"{must} Received: {path}, with {len(others):,} lines")
    return others


def record(folder, settings, scores, matches):
    """Adds scores and search settings to a run's report; prints a note if it is not finished."""
    if "updates" not in folder.report():
        console.print(
            "The run is not finished: these scores are of its best epoch so far. When it is "
            f"resumed, they are deleted from {folder.report_file}."
        )
    search = {name: settings[name] for name in options.ONE_BEST}
    by_name = {score.name: vars(score) for score in scores}
    folder.add_to_report(search=search, **matches, **by_name)


def score_names(references, tokenized):
    """Returns the names of all scores, but not BLEU if it is 0 for the references themselves.

    BLEU is 0 if no reference has a 4-gram.
    """
    complete = ([text or "" for text in texts] for texts in references)
    has_bleu = any(evaluation.bleu(texts, texts, tokenized=tokenized).value for texts in complete)
    return [name for name in evaluation.SCORES if has_bleu or name != "bleu"]


def test_set(run, data, source, references):
    """Returns the lines to translate, and a list of lists of references.

    They are from files, or from the test split of the recipe. If its files hold both sides, a
    source that stands there several times is one line with several references. In two files, lines
    are what published scores count, so they stay.
    """
    from keras_transformer.data.corpus import read_parallel
    from keras_transformer.runs.folder import RunFolder

    if (source is None) != (not references):
        received = f"--source {source}, --reference {' '.join(references or ['None'])}"
        raise ValueError(f"Give both `--source` and `--reference`, or none. Received: {received}")
    if source is None:
        corpora = [list(test_pairs(run, data, instead="`--source` and `--reference`"))]
        if all("file" in corpus for corpus in RunFolder(run).recipe().data.mappings("test")):
            sources, merged = evaluation.merge_references(corpora[0])
            if repeated := len(corpora[0]) - len(sources):
                console.print(
                    f"{repeated:,} of {len(corpora[0]):,} lines repeat an earlier source: their "
                    "targets are further references of it."
                )
            return sources, merged
    else:
        files = (read_parallel(source, reference, allow_empty=True) for reference in references)
        corpora = list(map(list, files))
    sources = [line for line, _ in corpora[0]]
    if not sources:
        raise ValueError(f"`--source` must hold a line to translate. Received: {source}")
    return sources, [[target for _, target in corpus] for corpus in corpora]


def test_pairs(run, data, instead):
    """Returns the sentence pairs of the test split of the recipe.

    `instead` names the options that replace a missing test split.
    """
    from keras_transformer.runs.folder import RunFolder

    settings = RunFolder.existing(run).recipe().data
    if settings.test is None:
        raise ValueError(f"The run's recipe has no test split; give {instead}.")
    return settings.pairs("test", data)
