"""Pictures: attention heat-maps, learning curves, the positional encoding.

Arrays and tokens in, `matplotlib.figure.Figure` out. The global state of pyplot is left alone: the
figures need no display, can be drawn in threads, show themselves in a notebook, and are written by
`figure.savefig("name.png", dpi=150)`. matplotlib is the extra `viz`, imported on first use.
"""

import csv
import functools
import io
import itertools

import numpy as np

# Okabe and Ito's colours: colour-blind readers tell them apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
_GREY = "#8a8a8a"
_MAX_LABEL_LENGTH = 24
# What the extra `viz` installs; the extra's own name works in a clone only.
_MATPLOTLIB = "matplotlib>=3.9,<4"

# The learning curve's panels from top to bottom: label, last words of its columns' names, height.
_HISTORY_PANELS = (
    ("loss (nats per token)", ("loss",), 2.6),
    ("accuracy", ("accuracy", "exact_match"), 1.6),
    ("perplexity", ("perplexity",), 1.6),
    ("BLEU, chrF", ("bleu", "chrf"), 1.6),
    ("learning rate", ("learning_rate", "lr"), 1.6),
)


def require_matplotlib():
    """Checks that figures can be drawn, before the work whose result they show.

    Raises:
        ImportError: matplotlib is not installed; the message has the command that installs it.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError(f"Pictures need matplotlib: pip install '{_MATPLOTLIB}'") from error


def plot_attention(scores, query_tokens, key_tokens, title=None):
    """Draws the attention scores of one sentence: a row of heat-maps per layer, a column per head.

    In a heat-map each row is a query token, whose scores over the key tokens sum to 1. All share
    one colour scale from 0 to 1. A character that no installed font can draw appears as "□";
    installing a font (Noto Sans CJK, print_fn) cures that.

    Args:
        scores: float (L, N, T, S), or a list of L arrays (N, T, S), one per block. One sentence, no
            batch axis: `[block[0] for block in model.attention_scores(inputs)["encoder_decoder"]]`.
        query_tokens: T strings, top to bottom (encoder-decoder attention: the target tokens).
        key_tokens: S strings, left to right (encoder-decoder attention: the source tokens).
        title: string above the grid.

    Returns:
        `matplotlib.figure.Figure`. Its L * N axes are the heat-maps, layer by layer.

    Raises:
        ValueError: the scores are of another rank, or of other lengths than the tokens.
        ImportError: matplotlib is not installed.

    >>> import numpy as np
    >>> from keras_transformer.plotting import plot_attention
    >>> scores = np.full((2, 4, 3, 2), 0.5)  # 2 layers, 4 heads, 3 target and 2 source tokens
    >>> figure = plot_attention(scores, ["die", "Katze", "</s>"], ["the", "cat"])
    >>> figure.axes[5].get_title()
    'layer 2, head 2'

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 3.2.
    """
    scores = _stack_scores(scores, len(query_tokens), len(key_tokens))
    num_layers, num_heads, target_length, source_length = scores.shape
    rows, columns = _to_labels(query_tokens), _to_labels(key_tokens)

    # In inches: cells shrink as the sentence and the grid grow, down to what a tick label needs.
    side = max(1.8, 5.0 / max(num_layers, num_heads))
    cell = float(np.clip(side / max(target_length, source_length), 0.115, 0.36))
    panel_width, panel_height = max(1.2, source_length * cell), max(0.7, target_length * cell)
    font_size = min(9.0, 0.74 * 72 * cell)
    letter = 0.62 * font_size / 72
    row_label, column_label = (letter * max(map(len, labels)) for labels in (rows, columns))
    upright = column_label > 0.9 * panel_width / source_length
    width = num_heads * (panel_width + 0.1) + row_label + 0.9
    height = num_layers * (panel_height + 0.3) + (column_label if upright else letter) + 0.5
    figure = _make_figure(width, height + 0.3 * bool(title))

    labels, text = _literal(rows + columns)
    text["fontsize"] = font_size
    axes = figure.subplots(num_layers, num_heads, squeeze=False)
    for (layer, head), ax in np.ndenumerate(axes):
        image = _draw_table(ax, scores[layer, head], "magma_r", 0, 1)
        ax.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8, pad=3)
        ax.tick_params(length=0, pad=3)
        ax.set(xticks=[], yticks=[])
        if layer == num_layers - 1:
            ax.set_xticks(
                range(source_length), labels[target_length:], rotation=90 * upright, **text
            )
        if head == 0:
            ax.set_yticks(range(target_length), labels[:target_length], **text)

    _draw_colour_bar(axes[0, -1], image, panel_width, "attention score")
    figure.supxlabel("key tokens", fontsize=9)
    figure.supylabel("query tokens", fontsize=9)
    return _add_title(figure, title)


def plot_history(history, title=None):
    """Draws the learning curve: loss, quality and learning rate over the epochs, panel under panel.

    The end of a column's name says its panel ("val_token_accuracy": accuracy): loss; accuracy or
    exact_match; perplexity; bleu or chrf; learning_rate or lr. Other columns are not drawn. A curve
    passes over empty, NaN and infinite cells. The epoch of the lowest `val_loss` is marked.

    Args:
        history: dict of equally long lists, or what `model.fit` returned, or the path of a
            `history.csv` with a header. Its column "epoch" (which Keras counts from 0 and we draw
            from 1), or else "step", is the horizontal axis; without them epochs count from 1.
        title: string above the panels.

    Returns:
        `matplotlib.figure.Figure` with one axes per panel that has a column; the label of each
        curve is the name of its column.

    Raises:
        ValueError: no column to draw, columns of different length, or a cell that is no number.
        ImportError: matplotlib is not installed.

    >>> from keras_transformer.plotting import plot_history
    >>> history = {"loss": [4.0, 2.5], "val_loss": [3.5, 2.5], "learning_rate": [1e-4, 2e-4]}
    >>> [ax.get_ylabel() for ax in plot_history(history).axes]
    ['loss (nats per token)', 'learning rate']

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 5.3.
    """
    unit, axis, columns = _read_history(history)
    panels = []
    for label, endings, height in _HISTORY_PANELS:
        if names := [name for name in columns if _belongs(name, endings)]:
            panels.append((label, names, height))
    heights = [height for _, _, height in panels]
    figure = _make_figure(7.0, sum(heights) + 0.6)
    axes = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (label, names, _) in zip(axes, panels, strict=True):
        for name, colour in zip(names, itertools.cycle(_COLOURS), strict=False):
            known = np.isfinite(columns[name])
            _draw_curve(ax, axis[known], columns[name][known], name, colour)
        ax.set_ylabel(label)
        if label == "perplexity":  # falls from the vocabulary size to a few tokens
            ax.set_yscale("log", subs=[])
            ax.yaxis.get_major_locator().set_params(subs=(1, 3))
            ax.yaxis.set_major_formatter("{x:g}")
        if label == "learning rate":
            ax.set_ylim(bottom=0)
            ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)

    validation = columns.get("val_loss", np.empty(0))
    if np.isfinite(validation).any():
        best = np.nanargmin(np.where(np.isfinite(validation), validation, np.nan))
        label = f"lowest val_loss: {validation[best]:.4g} at {unit} {axis[best]:g}"
        for ax in axes:
            ax.axvline(axis[best], color=_GREY, linestyle=":", linewidth=1.2)
        axes[0].plot(
            axis[best], validation[best], "*", color=_COLOURS[2], markersize=11, label=label
        )
    for ax in axes:
        ax.legend(frameon=False, fontsize=8)
    figure.align_ylabels(axes)
    axes[-1].set_xlabel(unit)
    _count_in_integers(axes[-1].xaxis)
    return _add_title(figure, title)


def plot_positional_encoding(encoding, title=None):
    """Draws a positional encoding: the table, some of its dimensions as curves, its inner products.

    In the paper's encoding each dimension is a wave, and the inner product of two positions depends
    on their distance alone: the lowest curves have one shape, moved. So the model can attend by
    relative position. A learned encoding can be drawn as well, and compared.

    Args:
        encoding: float (length, hidden_dim).
        title: string above the panels.

    Returns:
        `matplotlib.figure.Figure`. Its axes are the table (dimensions down, positions across), the
        curves and the inner products, all over the same positions.

    Raises:
        ValueError: the encoding is empty or of another rank.
        ImportError: matplotlib is not installed.

    >>> import numpy as np
    >>> from keras_transformer.plotting import plot_positional_encoding
    >>> encoding = np.sin(np.outer(np.arange(50), 0.5 ** np.arange(16)))
    >>> [ax.get_ylabel() for ax in plot_positional_encoding(encoding).axes]
    ['dimension', 'encoding', 'inner product']

    Reference: Vaswani et al., 2017, "Attention Is All You Need", section 3.5.
    """
    encoding = np.asarray(encoding, dtype="float32")
    if encoding.ndim != 2 or encoding.size == 0:
        raise ValueError(
            "`encoding` must be of shape (length, hidden_dim). "
            f"Received: encoding of shape {encoding.shape}"
        )
    length, hidden_dim = encoding.shape
    figure = _make_figure(8.0, 8.0)
    table, curves, products = figure.subplots(3, sharex=True, height_ratios=[2.2, 1, 1])
    bound = np.abs(encoding).max() or 1.0
    image = _draw_table(table, encoding.T, "RdBu_r", -bound, bound)
    _draw_colour_bar(table, image, 6.2, "value")

    # Even dimensions are sines; the waves beyond the middle are longer than sentences.
    dimensions = sorted({hidden_dim // part // 2 * 2 for part in (2, 4, 8)} | {0})
    for dimension, colour in zip(dimensions, _COLOURS, strict=False):
        name = f"dimension {dimension}"
        _draw_curve(curves, np.arange(length), encoding[:, dimension], name, colour)
    for position, colour in zip(sorted({0, length // 2}), _COLOURS, strict=False):
        name = f"with position {position}"
        _draw_curve(products, np.arange(length), encoding @ encoding[position], name, colour)
    for ax, label in ((table, "dimension"), (curves, "encoding"), (products, "inner product")):
        ax.set_ylabel(label)
    for ax in (curves, products):
        ax.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.align_ylabels()
    products.set_xlabel("position")
    _count_in_integers(products.xaxis)
    _count_in_integers(table.yaxis)
    return _add_title(figure, title)


def _stack_scores(scores, target_length, source_length):
    """Returns float32 (L, N, T, S), or raises with the shapes received."""
    blocks = [np.asarray(block, dtype="float32") for block in scores]
    shapes = [block.shape for block in blocks]
    expected = (*shapes[0][:1], target_length, source_length) if shapes else None
    if not blocks or any(shape != expected for shape in shapes) or blocks[0].size == 0:
        raise ValueError(
            "`scores` must hold one array (num_heads, query tokens, key tokens) per layer, without "
            f"a batch axis. Received: scores of shapes {shapes}, {target_length} query_tokens, "
            f"{source_length} key_tokens"
        )
    return np.stack(blocks)


def _read_history(history):
    """Returns the horizontal axis, as name and values, and the columns that have a panel."""
    history = getattr(history, "history", history)  # keras.callbacks.History
    if not hasattr(history, "items"):
        with open(history, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        history = {name: [row[name] for row in rows] for name in reader.fieldnames or ()}

    unit = next((name for name in ("epoch", "step") if name in history), None)
    columns = {
        name: np.array([_to_number(name, cell) for cell in cells])
        for name, cells in history.items()
        if name == unit or any(_belongs(name, endings) for _, endings, _ in _HISTORY_PANELS)
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if set(lengths) <= {unit} or 0 in lengths.values() or len(set(lengths.values())) > 1:
        raise ValueError(
            "`history` must hold equally long columns, among them a loss, accuracy, perplexity, "
            f"BLEU or learning rate. Received: columns {list(history)}, lengths {lengths}"
        )
    axis = columns.pop(unit) if unit else np.arange(1.0, 1.0 + max(lengths.values()))
    if unit == "epoch":
        axis = axis + 1.0  # Keras's files count epochs from 0, its progress bar from 1
    return unit or "epoch", axis, columns


def _belongs(name, endings):
    return f"_{name}".endswith(tuple(f"_{ending}" for ending in endings))


def _to_number(name, cell):
    try:
        # "NA" is what Keras's CSVLogger writes where nothing was measured.
        return np.nan if cell in ("", "NA", None) else float(cell)
    except ValueError as error:
        raise ValueError(f"`history` must hold numbers. Received: {name}={cell!r}") from error


def _make_figure(width, height):
    """Returns an empty figure of a size in inches that Jupyter shows without pyplot."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure._repr_png_ = functools.partial(_to_png, figure)
    return figure


def _to_png(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _draw_table(ax, values, colour_map, low, high):
    ax.spines[:].set(color=_GREY, linewidth=0.5)
    # "antialiased": cells smaller than a dot are averaged, larger ones keep their edges.
    style = {"cmap": colour_map, "aspect": "auto", "interpolation": "antialiased"}
    return ax.imshow(values, vmin=low, vmax=high, **style)


def _draw_colour_bar(ax, image, width, label):
    """Draws the bar to the right of axes that are so many inches wide, as high as they are."""
    low, high = image.get_clim()
    ticks = [low, (low + high) / 2, high]
    bar = ax.figure.colorbar(image, cax=ax.inset_axes([1 + 0.1 / width, 0, 0.12 / width, 1]))
    bar.set_ticks(
        ticks, labels=[f"{tick:.3g}".replace("-", "\N{MINUS SIGN}") for tick in ticks], fontsize=8
    )
    bar.set_label(label, fontsize=8)
    bar.outline.set(edgecolor=_GREY, linewidth=0.5)
    bar.ax.tick_params(length=2)
    # The outer labels stay inside the bar's height, so that the rows of a grid keep one distance.
    bottom, _, top = bar.ax.get_yticklabels()
    bottom.set_verticalalignment("bottom")
    top.set_verticalalignment("top")


def _draw_curve(ax, x, y, label, colour):
    dots = {"marker": "o", "markersize": 3} if len(x) <= 40 else {}
    ax.plot(x, y, color=colour, linewidth=1.4, label=label, **dots)
    ax.grid(color=_GREY, alpha=0.2, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_GREY)


def _count_in_integers(axis):
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def _add_title(figure, title):
    if title:
        (title,), text = _literal([title])
        figure.suptitle(title, fontsize=11, **text)
    return figure


def _to_labels(tokens):
    """Returns short strings in which all is visible: a space is "␣", a new line is its escape."""
    labels = []
    for token in np.asarray(tokens, dtype=object).tolist():
        token = token.decode("utf-8", "replace") if isinstance(token, bytes) else str(token)
        label = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode()
            for character in token.replace(" ", "␣")
        )
        too_long = len(label) > _MAX_LABEL_LENGTH
        labels.append(label[: _MAX_LABEL_LENGTH - 1] + "…" if too_long else label)
    return labels


def _literal(strings):
    """Returns drawable strings, and the text properties that draw them character by character."""
    from matplotlib import font_manager, ft2font, rcParams

    families = list(rcParams["font.family"])
    default = font_manager.findfont(font_manager.FontProperties(family=families))
    regular = [
        (font.weight, font.name, font.fname)
        for font in font_manager.fontManager.ttflist
        if font.style == "normal" and font.weight in (400, 500) and "Last Resort" not in font.name
    ]
    missing = {*"".join(strings), "□"} - {"\n"}
    for _, family, path in [(0, None, default), *sorted(regular)]:
        if not missing:
            break
        try:
            font = ft2font.FT2Font(path)
        except (OSError, RuntimeError):  # a font that matplotlib cannot draw either
            continue
        drawn = {c for c in missing if font.scalable and font.get_char_index(ord(c))}
        missing -= drawn
        families += [family] if drawn and family else []
    strings = [string.translate({ord(c): "□" for c in missing}) for string in strings]
    return strings, {"fontfamily": families, "parse_math": False, "usetex": False}
