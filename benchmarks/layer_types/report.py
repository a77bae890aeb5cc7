"""Prints the results as Markdown tables, and draws the pictures of the page "Why attention"."""

import pathlib
import statistics

from matplotlib.figure import Figure

from layer_types import results

IMAGES = pathlib.Path(__file__).parents[2] / "docs" / "pages" / "images"
LAYER_TYPES = "self-attention", "recurrent", "convolutional"
LENGTHS = 10, 20, 50, 100, 200
STYLES = {
    "self-attention": ("#0072B2", "o-"),
    "recurrent": ("#D55E00", "s--"),
    "convolutional": ("#009E73", "^-."),
}
SCORES, HEADS, WIDTH = ("scaled", "unscaled", "additive"), (8, 1), 128


def tables():
    """Returns the Markdown tables of all that was measured, by part."""
    return {
        "structure": table(["", *(f"n = {n}" for n in LENGTHS)], structure_rows()),
        "speed": table(["milliseconds", *(f"n = {n}" for n in LENGTHS)], speed_rows()),
        "quality": table(
            ["", "number names, exact match", "CPU seconds", "Multi30k, BLEU", "CPU seconds"],
            quality_rows(),
        ),
        "scores": table(["score", *map(heads_and_width, HEADS)], score_rows()),
    }


def table(head, rows):
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def structure_rows():
    measured = results.read("structure")
    names = {
        "multiply_adds": "multiplications, millions",
        "sequential": "products in a row",
        "path": "operations between position 0 and n - 1",
        "layers_to_connect": "layers that this takes",
    }
    for figure, name in names.items():
        for layer_type in LAYER_TYPES:
            values = [measured[f"{layer_type}, {n}"][figure] for n in LENGTHS]
            if figure == "multiply_adds":
                values = [f"{value / 1e6:.1f}" for value in values]
            yield [f"{name}, {layer_type}", *map(str, values)]


def speed_rows():
    measured = results.read("speed")
    for what in ("update", "translation of 1", "translation of 32"):
        for layer_type in LAYER_TYPES:
            times = [measured[f"{what}, {n}"][layer_type] for n in LENGTHS]
            yield [f"{what}, {layer_type}", *(f"{time:,.0f}" for time in times)]


def quality_rows():
    tasks = (results.read("numbers"), "exact_match"), (results.read("multi30k"), "bleu")
    for layer_type in LAYER_TYPES:
        cells = []
        for measured, name in tasks:
            seconds = seeds_of(measured, layer_type, "cpu_seconds")
            cells.append(with_range(measured, layer_type, name))
            cells.append(f"{statistics.mean(seconds):.0f}" if seconds else "-")
        yield [layer_type, *cells]


def heads_and_width(heads):
    return f"{heads} head{'s' * (heads > 1)}, K = {WIDTH // heads}"


def score_rows():
    measured = results.read("scores")
    for score in SCORES:
        cells = (with_range(measured, f"{score}, {n} heads", "exact_match") for n in HEADS)
        yield [score, *cells]


def with_range(measured, prefix, name):
    """Returns the mean over the seeds, and the lowest and the highest."""
    values = seeds_of(measured, prefix, name)
    if not values:
        return "not measured"
    shown = "{:.1%}" if name == "exact_match" else "{:.1f}"
    mean, low, high = (shown.format(f(values)) for f in (statistics.mean, min, max))
    return f"{mean} ({low} to {high})" if len(values) > 1 else f"{mean} (one seed)"


def seeds_of(measured, prefix, name):
    return [result[name] for key, result in measured.items() if key.startswith(f"{prefix}, seed")]


def draw():
    """Writes the pictures."""
    save(draw_layer_types(), "why_attention")
    save(draw_scores(), "why_scores")


def draw_layer_types():
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    update, translation, gradient = figure.subplots(1, 3)
    times, norms = results.read("speed"), results.read("structure")
    for layer_type, (colour, style) in STYLES.items():
        look = {"color": colour, "markersize": 4, "label": layer_type}
        for axes, what in ((update, "update"), (translation, "translation of 1")):
            axes.plot(LENGTHS, [times[f"{what}, {n}"][layer_type] for n in LENGTHS], style, **look)
        values = norms[f"{layer_type}, gradients"]["norms"]
        values = values[: values.index(0.0)] if 0.0 in values else values
        gradient.plot(values, style.lstrip("os^"), color=colour)
    for axes, title in ((update, "ms per update"), (translation, "ms per translated sentence")):
        axes.set(xscale="log", yscale="log", title=title, xlabel="length n")
        axes.set_xticks(LENGTHS, LENGTHS)
        axes.minorticks_off()
    gradient.set(yscale="log", title="gradient, by distance", xlabel="positions")
    for axes in (update, translation, gradient):
        axes.title.set_fontsize(10)
        axes.spines[["top", "right"]].set_visible(False)
    handles = update.get_legend_handles_labels()
    figure.legend(*handles, frameon=False, loc="outside lower center", ncols=3)
    return figure


def draw_scores():
    figure = Figure(figsize=(6, 2.6), layout="constrained")
    measured = results.read("scores")
    for axes, heads in zip(figure.subplots(1, 2, sharey=True), HEADS, strict=True):
        for x, (score, colour) in enumerate(
            zip(SCORES, ("#0072B2", "#D55E00", "#009E73"), strict=True)
        ):
            values = seeds_of(measured, f"{score}, {heads} heads", "exact_match")
            axes.plot([x] * len(values), values, "o", color=colour, alpha=0.7)
        axes.set_xticks(range(len(SCORES)), SCORES)
        axes.set(title=heads_and_width(heads), xlim=(-0.5, 2.5), ylim=(0, 1.03))
        axes.spines[["top", "right"]].set_visible(False)
        axes.title.set_fontsize(10)
        axes.grid(axis="y", color="#ddd")
    figure.supylabel("exact match", fontsize=10)
    return figure


def save(figure, name):
    figure.savefig(IMAGES / f"{name}.png", dpi=100)
