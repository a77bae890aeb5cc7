"""Figures: attention heat-maps, learning curves, the positional encoding.

Each function returns a `matplotlib.figure.Figure`. pyplot is not used, so figures need no display,
can be drawn in threads and render in notebooks; `figure.savefig("name.png", dpi=150)` writes a
figure to a file. The extra `viz` installs matplotlib.
"""

import csv
import functools
import io
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.types import Path, Tensor

if TYPE_CHECKING:
    from keras.callbacks import History

# Okabe and Ito's colours: colour-blind readers tell them apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_GREY = "#8a8a8a"
_MAX_LABEL_LENGTH = 24
_LITERAL = {"parse_math": False, "usetex": False}  # a token may be "$"

# Panels of the learning curves, top to bottom: label, suffixes of column names, height in inches.
_HISTORY_PANELS = (
    ("loss (nats per token)", ("_loss",), 2.6),
    ("accuracy", ("_accuracy", "_exact_match"), 1.6),
    ("perplexity", ("_perplexity",), 1.6),
    ("BLEU, chrF", ("_bleu", "_chrf"), 1.6),
    ("WER, PER, CER", ("_wer", "_per", "_cer"), 1.6),
    ("learning rate", ("_learning_rate", "_lr"), 1.6),
)


def plot_attention(
    scores: Tensor | Sequence[Tensor],
    query_tokens: Sequence[str | bytes],
    key_tokens: Sequence[str | bytes],
    title: str | None = None,
    query_label: str = "query tokens",
    key_label: str = "key tokens",
) -> Figure:
    """Draws the attention scores of one sentence: a row of heat-maps per layer, a column per head.

    In a heat-map each row is a query token, and its scores over the key tokens sum to 1. All
    heat-maps share one colour scale from 0 to 1. For characters that matplotlib's own font lacks,
    name fonts that have them: `matplotlib.rcParams["font.family"] += ["Noto Sans CJK JP"]`.

    Args:
        scores: float (L, N, T, S), or a list of L arrays (N, T, S), one per block. No batch
            axis: `[block[0] for block in model.attention_scores(inputs)["encoder_decoder"]]`.
        query_tokens: T strings, top to bottom (encoder-decoder attention: the target tokens).
        key_tokens: S strings, left to right (encoder-decoder attention: the source tokens).
        title: string above the grid.
        query_label: name of the vertical axes, such as `"translation"`. Defaults to
            `"query tokens"`.
        key_label: name of the horizontal axes, such as `"source"`. Defaults to `"key tokens"`.

    Returns:
        `matplotlib.figure.Figure`. Its first L * N axes are the heat-maps, layer by layer.

    Raises:
        ValueError: the rank of the scores is wrong, or their shape does not match the tokens.

    >>> import numpy as np
    >>> from keras_transformer.plotting import plot_attention
    >>> scores = np.full((2, 4, 3, 2), 0.5)  # 2 layers, 4 heads, 3 target and 2 source tokens
    >>> figure = plot_attention(scores, ["die", "Katze", "</s>"], ["the", "cat"])
    >>> figure.axes[5].get_title()
    'layer 2, head 2'

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 3.2.
    """
    scores = _stack_scores(scores, len(query_tokens), len(key_tokens))
    query_labels, key_labels = _token_labels(query_tokens), _token_labels(key_tokens)
    (width, height), font_size, rotation = _lay_out(scores.shape, query_labels, key_labels)
    figure = _make_figure(width, height + (0.3 if title else 0), title)
    axes = figure.subplots(*scores.shape[:2], squeeze=False)
    for (layer, head), ax in np.ndenumerate(axes):
        image = _draw_table(ax, scores[layer, head], "magma_r", 0, 1)
        ax.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, pad=3)
        ax.tick_params(length=0, pad=3)
        ax.set(xticks=[], yticks=[])

    style = {"fontsize": font_size, **_LITERAL}
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(query_labels)), query_labels, **style)
    for ax in axes[-1]:
        ax.set_xticks(range(len(key_labels)), key_labels, rotation=rotation, **style)
    _draw_colour_bar(axes, image, "attention score")
    figure.supxlabel(key_label, fontsize=9, **_LITERAL)
    figure.supylabel(query_label, fontsize=9, **_LITERAL)
    return figure


def plot_history(
    history: "Mapping[str, Sequence[Any]] | History | Path", title: str | None = None
) -> Figure:
    """Draws the learning curves: loss, quality and learning rate over the epochs, one panel each.

    The suffix of a column's name selects its panel: `loss`; `accuracy` or `exact_match`;
    `perplexity`; `bleu` or `chrf`; `wer`, `per` or `cer`; `learning_rate` or `lr`. So
    `val_token_accuracy` is drawn in the accuracy panel. Other columns are not drawn. Empty, NaN and
    infinite cells are skipped. The epoch of the lowest `val_loss` is marked.

    Args:
        history: dict of equally long lists, or what `model.fit` returned, or the path of a
            `history.csv` with a header. The horizontal axis is the column "epoch", else "step",
            else the row number from 1. Keras counts the epochs in this column from 0; the figure
            counts them from 1. With `validation_freq`, `model.fit` returns columns of different
            length: give the path of the file that `keras.callbacks.CSVLogger` writes, or of the
            `history.csv` of `RunKeeper`. They have empty cells instead.
        title: string above the panels.

    Returns:
        `matplotlib.figure.Figure` with one axes per panel that has a column; the label of each
        curve is the name of its column.

    Raises:
        ValueError: no column to draw, columns of different length, or a cell that is not a number.

    >>> from keras_transformer.plotting import plot_history
    >>> history = {"loss": [4.0, 2.5], "val_loss": [3.5, 2.5], "learning_rate": [1e-4, 2e-4]}
    >>> [ax.get_ylabel() for ax in plot_history(history).axes]
    ['loss (nats per token)', 'learning rate']

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 5.3.
    """
    unit, axis, columns = _read_history(history)
    panels = []
    for label, suffixes, height in _HISTORY_PANELS:
        if curves := {name: columns[name] for name in columns if _ends_with(name, suffixes)}:
            panels.append((label, curves, height))
    heights = [height for _, _, height in panels]
    figure = _make_figure(7.0, sum(heights) + 0.6, title)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (label, curves, _) in zip(axes, panels, strict=True):
        _draw_curves(ax, axis, curves, label)
        if label == "perplexity":  # it falls from thousands to a few
            ax.set_yscale("log", subs=[])
            ax.yaxis.get_major_locator().set_params(subs=(1, 3))
            ax.yaxis.set_major_formatter("{x:g}")
        if label == "learning rate":
            ax.set_ylim(bottom=0)
            ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    if np.isfinite(columns.get("val_loss", np.nan)).any():
        _mark_lowest(axes, axis, columns["val_loss"], unit)
    for ax in axes:
        ax.legend(frameon=False, fontsize=8)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel(unit)
    return figure


def plot_positional_encoding(encoding: Tensor, title: str | None = None) -> Figure:
    """Draws a positional encoding: the table, some of its dimensions as curves, its inner products.

    In the paper's encoding each dimension is a wave, and the inner product of two positions depends
    on their distance alone: the curves of the bottom panel are shifted copies of each other. So the
    model can attend by relative position. Draw a learned encoding to compare it with the paper's.

    Args:
        encoding: float (length, hidden_dim).
        title: string above the panels.

    Returns:
        `matplotlib.figure.Figure`. Its first axes are the table (dimensions down, positions
        across), the curves and the inner products, all over the same positions.

    Raises:
        ValueError: the encoding is empty or its rank is not 2.

    >>> import numpy as np
    >>> from keras_transformer.plotting import plot_positional_encoding
    >>> encoding = np.sin(np.outer(np.arange(50), 0.5 ** np.arange(16)))
    >>> [ax.get_ylabel() for ax in plot_positional_encoding(encoding).axes]
    ['dimension', 'encoding', 'inner product', 'value']

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 3.5.
    """
    encoding = _to_array(encoding)
    if encoding.ndim != 2 or encoding.size == 0:
        raise ValueError(
            "`encoding` must be of shape (length, hidden_dim). "
            f"Received: encoding of shape {encoding.shape}"
        )
    length, hidden_dim = encoding.shape
    figure = _make_figure(8.0, 8.0, title)
    table, curves, products = figure.subplots(3, sharex=True, height_ratios=[2.2, 1, 1])
    bound = np.abs(encoding).max() or 1.0
    image = _draw_table(table, encoding.T, "RdBu_r", -bound, bound)
    _draw_colour_bar(table, image, "value")
    table.set_ylabel("dimension")

    positions = np.arange(length)
    # Even dimensions are sines. Waves of the upper half span over 600 positions, too long to see.
    dimensions = sorted({hidden_dim // part // 2 * 2 for part in (2, 4, 8)} | {0})
    waves = {f"dimension {n}": encoding[:, n] for n in dimensions}
    _draw_curves(curves, positions, waves, "encoding")
    with_position = {f"with position {n}": encoding @ encoding[n] for n in (0, length // 2)}
    _draw_curves(products, positions, with_position, "inner product")
    for ax in (curves, products):
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    products.set_xlabel("position")
    table.yaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return figure


def _to_array(tensor):
    """Returns the float32 values of an array, or of a tensor of any backend."""
    if hasattr(tensor, "detach"):  # NumPy cannot read PyTorch's gradients, GPU memory or bfloat16
        tensor = tensor.detach().cpu().float()
    return np.asarray(tensor, dtype="float32")


def _stack_scores(scores, target_length, source_length):
    """Returns float32 (L, N, T, S), or raises with the shapes received."""
    blocks = [_to_array(block) for block in scores]
    shapes = [block.shape for block in blocks]
    lengths = target_length, source_length
    if len(set(shapes)) != 1 or shapes[0][1:] != lengths or blocks[0].size == 0:
        raise ValueError(
            "`scores` must hold one array (num_heads, query tokens, key tokens) per layer, without "
            f"a batch axis. Received: scores of shapes {shapes}, {target_length} query_tokens, "
            f"{source_length} key_tokens"
        )
    return np.stack(blocks)


def _lay_out(shape, query_labels, key_labels):
    """Returns the size of the figure in inches, and font size and rotation of the labels.

    Longer sentences and larger grids get smaller cells, down to the size that a label needs.
    """
    num_layers, num_heads, target_length, source_length = shape
    side = max(1.8, 5.0 / max(num_layers, num_heads))
    cell = float(np.clip(side / max(target_length, source_length), 0.115, 0.36))
    panel_width, panel_height = max(1.2, source_length * cell), max(0.7, target_length * cell)
    font_size = min(9.0, 0.74 * 72 * cell)
    letter_width = 0.62 * font_size / 72
    query_label_width = letter_width * max(map(len, query_labels))
    key_label_width = letter_width * max(map(len, key_labels))
    is_upright = key_label_width > 0.9 * panel_width / source_length
    key_label_height = key_label_width if is_upright else letter_width
    width = num_heads * (panel_width + 0.1) + query_label_width + 0.9
    height = num_layers * (panel_height + 0.3) + key_label_height + 0.5
    return (width, height), font_size, 90 if is_upright else 0


def _mark_lowest(axes, axis, val_loss, unit):
    """Marks the lowest `val_loss`: a star in the first panel, a vertical line in all."""
    best = np.nanargmin(np.where(np.isfinite(val_loss), val_loss, np.nan))
    label = f"lowest val_loss: {val_loss[best]:.4g} at {unit} {axis[best]:.15g}"
    for ax in axes:
        ax.axvline(axis[best], color=_GREY, linestyle=":", linewidth=1.2)
    axes[0].plot(axis[best], val_loss[best], "*", color=_COLOURS[2], markersize=11, label=label)


def _read_history(history):
    """Returns the horizontal axis, as name and values, and the columns that have a panel."""
    history = getattr(history, "history", history)  # keras.callbacks.History
    if isinstance(history, str | os.PathLike):
        with open(history, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        history = {name: [row[name] for row in rows] for name in reader.fieldnames or ()}

    unit = next((name for name in ("epoch", "step") if name in history), None)
    columns = {
        name: np.array([_to_number(name, cell) for cell in cells])
        for name, cells in history.items()
        if name == unit or any(_ends_with(name, suffixes) for _, suffixes, _ in _HISTORY_PANELS)
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if set(lengths) <= {unit} or 0 in lengths.values() or len(set(lengths.values())) > 1:
        raise ValueError(
            "`history` must hold equally long columns, among them a loss, accuracy, perplexity, "
            f"BLEU or learning rate. Received: columns {list(history)}, lengths {lengths}. After a "
            "`fit` with `validation_freq`, give the path of the file that "
            "`keras.callbacks.CSVLogger` writes, or of the `history.csv` of `RunKeeper`"
        )
    axis = columns.pop(unit) if unit else np.arange(1.0, 1.0 + max(lengths.values()))
    if unit == "epoch":
        axis = axis + 1.0  # Keras's files count epochs from 0, its progress bar from 1
    return unit or "epoch", axis, columns


def _ends_with(name, suffixes):
    """Whether `"loss"`, or a longer name such as `"val_loss"`, ends with the suffix `"_loss"`."""
    return f"_{name}".endswith(suffixes)


def _to_number(name, cell):
    try:
        # Keras's CSVLogger writes "NA" where nothing was measured.
        return np.nan if cell in ("", "NA", None) else float(cell)
    except ValueError as error:
        raise ValueError(f"`history` must hold numbers. Received: {name}={cell!r}") from error


def _make_figure(width, height, title=None):
    """Returns an empty figure (size in inches) that Jupyter renders without pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = functools.partial(_to_png, figure)
    if title:
        figure.suptitle(title, fontsize=11, **_LITERAL)
    return figure


def _to_png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_table(ax, values, colour_map, low, high):
    """Draws a matrix as an image and returns the image."""
    ax.spines[:].set(color=_GREY, linewidth=0.5)
    # "antialiased" averages cells smaller than a pixel, and keeps the edges of larger ones.
    style = {"cmap": colour_map, "aspect": "auto", "interpolation": "antialiased"}
    return ax.imshow(values, vmin=low, vmax=high, **style)


def _draw_colour_bar(axes, image, label):
    """Draws a colour bar right of the axes."""
    low, high = image.get_clim()
    ticks = [low, (low + high) / 2, high]
    bar = image.figure.colorbar(image, ax=axes, ticks=ticks, format="{x:.3g}", aspect=40)
    bar.set_label(label, fontsize=8)
    bar.outline.set(edgecolor=_GREY, linewidth=0.5)
    bar.ax.tick_params(length=2, labelsize=8)


def _draw_curves(ax, x, curves, label):
    """Draws the finite values of each curve of a dict (name: values) over the integers `x`."""
    ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    ax.set_ylabel(label)
    ax.grid(color=_GREY, alpha=0.2, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_GREY)
    ax.set_prop_cycle(color=_COLOURS)
    for name, y in curves.items():
        is_finite = np.isfinite(y)
        dots = {"marker": "o", "markersize": 3} if is_finite.sum() <= 40 else {}
        ax.plot(x[is_finite], y[is_finite], linewidth=1.4, label=name, **dots)


def _token_labels(tokens):
    """Returns short labels; a space is "␣", other white space its escape, such as `\\n`."""
    labels = []
    for token in np.asarray(tokens, dtype=object).tolist():
        token = token.decode("utf-8", "replace") if isinstance(token, bytes) else str(token)
        # The repr of a character is its escape, in quotes.
        label = "".join(c if c.isprintable() else repr(c)[1:-1] for c in token.replace(" ", "␣"))
        is_short = len(label) <= _MAX_LABEL_LENGTH
        labels.append(label if is_short else label[: _MAX_LABEL_LENGTH - 1] + "…")
    return labels
