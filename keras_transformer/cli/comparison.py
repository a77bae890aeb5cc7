"""Command that compares runs: `compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from keras_transformer.cli import completion, evaluation, options, translators

commands = typer.Typer()

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of two or more runs, finished or not; the first one is the baseline.",
        show_default=False,
        autocompletion=completion.run_folders,
    ),
]
TranslateOption = Annotated[
    bool, typer.Option("--translate", help="Translate the test set: paired bootstrap.")
]
TranslationsOption = Annotated[
    list[Path] | None,
    typer.Option(help="Instead of --translate: file of `evaluate --output`, once for each run."),
]


@commands.command()
@options.search_options(*options.ONE_BEST)
def compare(
    runs: RunsArgument,
    output: Annotated[
        Path | None, typer.Option(help="Picture of the learning curves, over each other.")
    ] = None,
    translate: TranslateOption = False,
    translations: TranslationsOption = None,
    data: options.Data = Path("."),
    source: options.Source = None,
    reference: options.References = None,
    tokenized: options.Tokenized = False,
    *,
    settings: dict[str, Any],
    target_language: options.TargetLanguage = None,
) -> None:
    """Compare runs: settings that differ, figures, scores, learning curves, and translations.

    Only --translate loads the models.

    Example:

        keras-transformer compare runs/a runs/b --output curves.png
        keras-transformer compare runs/a runs/b --translate --data ~/multi30k --tokenized
        keras-transformer compare runs/a runs/b --translations a.de --translations b.de
    """
    from keras_transformer.runs.comparison import RunRecord

    check_arguments(runs, output, translate, translations)
    records = [RunRecord(run) for run in runs]
    is_translated = translate or translations
    if is_translated:
        check_test_sets(records, source)
        sources, references = evaluation.test_set(runs[0], data, source, reference)
        files = [
            evaluation.read_translations(f, len(sources), "--translations")
            for f in translations or ()
        ]
    for line in report_lines(records):
        print(line)
    if output is not None:
        draw_curves(records, output)
    if is_translated:
        print(end="", flush=True)  # before a translation, which takes long
        columns = files or [translated(run, sources, target_language, settings) for run in runs]
        print_scores(runs, columns, references, tokenized)


def check_arguments(runs, output, translate, translations):
    """Raises an error about the arguments, before anything is read."""
    from keras_transformer import plotting

    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        received = " ".join(map(str, runs))
        raise ValueError(f"`compare` needs two or more different runs. Received: {received}")
    if translations and (translate or len(translations) != len(runs)):
        received = " and --translate" if translate else f", for {len(runs)} runs"
        must = "`--translations` must be given once for each run, and without `--translate`."
        raise ValueError(f"{must} Received: {len(translations)} files{received}")
    if output is not None:
        plotting.require_matplotlib()
        options.check_output(output)


def check_test_sets(records, source):
    """Raises a `ValueError` if the test splits of the recipes differ and no files are given."""
    splits = [record.settings and record.settings["data"]["test"] for record in records]
    if source is None and any(split != splits[0] for split in splits):
        must = "The runs must have the same `test` split in `data` of their recipes."
        raise ValueError(f"{must} Give `--source` and `--reference` to translate other lines.")


def report_lines(records):
    """Yields the lines of the comparison: settings, figures, signatures of the scores."""
    from keras_transformer.runs.comparison import differing_settings
    from keras_transformer.runs.recipe import align, shown

    with_recipe = [record.name for record in records if record.settings is not None]
    if differing := differing_settings(records):
        yield from table_lines("settings that differ", with_recipe, differing, shown, str.ljust)
        yield ""
    elif len(with_recipe) > 1:
        yield "All settings are the same.\n"
    for record in records:
        if record.settings is None:
            yield f"{record.name} has no recipe: its settings are not compared.\n"
    names, figures = [record.name for record in records], align(*(r.figures() for r in records))
    yield from table_lines("figures", names, figures, figure_text, str.rjust)
    yield from signature_lines(records)


def table_lines(title, names, sections, text, justify):
    """Yields the lines of a table with a column for each name.

    Args:
        title: heading of the first column.
        names: headings of the other columns.
        sections: section to key to the list of values, one of each column.
        text: function that formats a value.
        justify: `str.ljust` or `str.rjust`, for the values.
    """
    table = [(title, names)]
    for section, keys in sections.items():
        if keys:
            table.append((section, ["" for _ in names]))
        table += [(f"  {key}", list(map(text, values))) for key, values in keys.items()]
    first = max(len(heading) for heading, _ in table)
    widths = [max(map(len, column)) for column in zip(*(cells for _, cells in table), strict=True)]
    for heading, cells in table:
        values = (justify(cell, width) for cell, width in zip(cells, widths, strict=True))
        yield "  ".join([heading.ljust(first), *values]).rstrip()


def figure_text(value):
    """Formats a figure; one that a run does not have is a dash."""
    from keras_transformer.runs.recipe import ABSENT

    if value is ABSENT or isinstance(value, bool):
        return {ABSENT: "-", True: "yes", False: "no"}[value]
    if isinstance(value, str):
        return value
    return f"{value:.4f}" if isinstance(value, float) else f"{value:,}"


def signature_lines(records):
    """Yields the signature of each score, or a warning if the runs have different ones."""
    names = dict.fromkeys(name for record in records for name in record.scores)
    for name in names:
        scored = [record for record in records if name in record.scores]
        signatures = [record.scores[name]["signature"] for record in scored]
        if len(set(signatures)) == 1:
            yield f"{name}: {signatures[0]}"
        else:
            yield f"{name}: do not compare the values, their signatures differ."
            for record, signature in zip(scored, signatures, strict=True):
                yield f"  {record.name}: {signature}"


def draw_curves(records, path):
    """Draws the learning curves of all runs over each other."""
    from keras_transformer import plotting
    from keras_transformer.runs.folder import RunFolder

    histories = {r.name: RunFolder(r.name).history_file for r in records if r.history}
    if not histories:
        raise ValueError("No epoch of these runs is finished: there are no curves to draw.")
    plotting.plot_histories(histories).savefig(path, dpi=120)
    print(path)


def translated(run, sources, target_language, settings):
    """Returns the translations of a run's model."""
    translator = translators.load_translator(run, **settings)
    return translators.with_progress(
        translator, sources, label=str(run), target_language=target_language
    )


def print_scores(runs, columns, references, tokenized):
    """Prints the scores of each run's translations, and compares the others with the first."""
    for run, translations in zip(runs, columns, strict=True):
        scores, match = evaluation.evaluation_scores(translations, references, tokenized)
        print(f"\n{run}", *scores, f"exact match {match:.4f}", sep="\n")
    for run, translations in zip(runs[1:], columns[1:], strict=True):
        print(f"\n{run} against {runs[0]}, paired bootstrap:")
        evaluation.print_comparison(translations, columns[0], references, tokenized)
