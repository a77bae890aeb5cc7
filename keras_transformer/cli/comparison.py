"""Command that compares runs: `compare`."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()


@commands.command()
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Folders of two or more runs, finished or not.", show_default=False),
    ],
) -> None:
    """Compare runs: settings that differ, figures, and the scores that `evaluate` wrote.

    Example:

        keras-transformer compare runs/a runs/b
    """
    from keras_transformer.runs.comparison import RunRecord

    if len({run.resolve() for run in runs}) < max(2, len(runs)):
        received = " ".join(map(str, runs))
        raise ValueError(f"`compare` needs two or more different runs. Received: {received}")
    for line in report_lines([RunRecord(run) for run in runs]):
        print(line)


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
