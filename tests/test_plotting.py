"""Figures show the given numbers and tokens, in scripts, threads and notebooks."""

import subprocess
import sys
import warnings
from types import SimpleNamespace

import matplotlib
import matplotlib.font_manager
import matplotlib.image
import numpy as np
import pytest

from keras_transformer.plotting import (
    plot_attention,
    plot_history,
    plot_positional_encoding,
)
from tests.paper_reference import positional_encoding

pytestmark = pytest.mark.slow

SOURCE = ["▁two", "▁dogs", "</s>"]
TARGET = ["<s>", "▁zwei", "▁Hunde", "."]
HISTORY = {
    "loss": [5.0, 3.0, 2.0, 1.5],
    "val_loss": [4.5, 3.5, 2.5, 2.75],
    "learning_rate": [1e-4, 2e-4, 3e-4, 2.5e-4],
}


def make_scores(num_layers, num_heads, target_length=4, source_length=3):
    shape = (num_layers, num_heads, target_length, source_length)
    scores = np.random.default_rng(0).random(shape).astype("float32") ** 4
    return scores / scores.sum(axis=-1, keepdims=True)


def draw(figure, path, dpi=100):
    """Writes the figure, warnings being errors; returns its pixels: uint8 (height, width, 3)."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure.savefig(path, dpi=dpi)
    return np.round(255 * matplotlib.image.imread(path)[..., :3]).astype("uint8")


def tick_texts(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def curves(ax):
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


class TorchTensor:
    """A tensor of PyTorch in bfloat16 on a GPU, with a gradient, which NumPy cannot read as is."""

    def __init__(self, values, done=()):
        self.values, self.done = values, done

    def __iter__(self):
        return map(TorchTensor, self.values)

    def detach(self):
        return TorchTensor(self.values, (*self.done, "detach"))

    def cpu(self):
        return TorchTensor(self.values, (*self.done, "cpu"))

    def float(self):
        return TorchTensor(self.values, (*self.done, "float"))

    def __array__(self, dtype=None, copy=None):
        if set(self.done) != {"detach", "cpu", "float"}:
            raise TypeError(f"NumPy cannot read the tensor after {self.done}")
        return np.asarray(self.values, dtype=dtype)


# Attention


@pytest.mark.parametrize("kind", [np.asarray, list, TorchTensor])
def test_attention_images_hold_the_scores_between_their_tokens(kind):
    scores = make_scores(2, 3)
    figure = plot_attention(kind(scores), TARGET, SOURCE, "two dogs", "translation", "a$source$")
    for index, ax in enumerate(figure.axes[:6]):
        layer, head = divmod(index, 3)
        np.testing.assert_array_equal(ax.images[0].get_array(), scores[layer, head])
        assert ax.images[0].get_clim() == (0, 1)
        assert ax.get_title() == f"layer {layer + 1}, head {head + 1}"
        assert tick_texts(ax.yaxis) == (TARGET if head == 0 else [])
        assert tick_texts(ax.xaxis) == (SOURCE if layer == 1 else [])
        # The first query is on top, the first key on the left.
        (left, top), (right, bottom) = ax.transData.transform([(0, 0), (1, 1)])
        assert left < right and bottom < top
    assert len(figure.axes) == 6 + 1, "and the colour bar"
    assert figure.get_suptitle() == "two dogs"
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("translation", "a$source$")


ODD_TOKENS = ["$x_1$", "$", "a_{", "^", "\\alpha", "\\", "%", "&", "#", "~", "", "😀", "שלום"]
LABELS = dict(zip(ODD_TOKENS, ODD_TOKENS, strict=True)) | {
    " the": "␣the",
    "\n": "\\n",
    "\t": "\\t",
    "\u200b": "\\u200b",
    "\ud800": "\\ud800",
    b"caf\xc3\xa9": "café",
    b"\xff": "\ufffd",
    17: "17",
    "x" * 24: "x" * 24,
    "x" * 25: "x" * 23 + "…",
}


def test_attention_labels_are_literal_escape_invisible_characters_and_cut_long_tokens(tmp_path):
    tokens, number = list(LABELS), len(LABELS)
    scores = make_scores(1, 1, number, number)
    figure = plot_attention(scores, tokens, tokens, title="costs $5_0 and $6")
    draw(figure, tmp_path / "labels.png")
    ax, _ = figure.axes
    for axis in (ax.xaxis, ax.yaxis):
        assert tick_texts(axis) == list(LABELS.values())
        for label in axis.get_ticklabels():
            assert not label.get_parse_math() and not label.get_usetex()


# The learning curve


@pytest.mark.parametrize(
    "history", [HISTORY, SimpleNamespace(history=HISTORY)], ids=["dict", "Keras"]
)
def test_history_curves_are_the_columns(history):
    figure = plot_history(history, title="a run")
    loss, rate = figure.axes
    for name, line in (curves(loss) | curves(rate)).items():
        if name in HISTORY:
            np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
            np.testing.assert_array_equal(line.get_ydata(), HISTORY[name])
    assert set(curves(loss)) > {"loss", "val_loss"}
    assert set(curves(rate)) == {"learning_rate"}
    assert figure.get_suptitle() == "a run"


def test_history_panels_follow_the_names_of_the_columns():
    names = "seconds lr val_bleu chrf val_per wer val_perplexity val_token_accuracy exact_match"
    figure = plot_history({name: [1.0, 2.0] for name in names.split()})
    assert {ax.get_ylabel(): set(curves(ax)) for ax in figure.axes} == {
        "accuracy": {"val_token_accuracy", "exact_match"},
        "perplexity": {"val_perplexity"},
        "BLEU, chrF": {"val_bleu", "chrf"},
        "WER, PER, CER": {"val_per", "wer"},
        "learning rate": {"lr"},
    }


@pytest.mark.parametrize("axis", ["epoch", "step"])
def test_history_axis_is_the_column(axis):
    figure = plot_history({**HISTORY, axis: [10, 20, 30, 40]})
    # Files count epochs from 0, the figure from 1 as the progress bar does.
    drawn = np.array([10, 20, 30, 40]) + (axis == "epoch")
    np.testing.assert_array_equal(curves(figure.axes[1])["learning_rate"].get_xdata(), drawn)
    assert figure.axes[-1].get_xlabel() == axis


def test_history_marks_the_epoch_of_the_lowest_validation_loss():
    validation = [np.nan, 3.5, 2.5, 2.75, -np.inf]
    figure = plot_history({"val_loss": validation, "bleu": [1, 2, 3, 4, 5]})
    for ax in figure.axes:
        assert [list(line.get_xdata()) for line in ax.lines if line.get_linestyle() == ":"] == [
            [3, 3]
        ]
    (star,) = (line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (*star.get_xdata(), *star.get_ydata()) == (3, 2.5)
    assert star.get_label() == "lowest val_loss: 2.5 at epoch 3"
    figure = plot_history({"val_loss": [3.5, 2.5], "step": [1_000_000, 1_234_567]})
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert "lowest val_loss: 2.5 at step 1234567" in labels


def test_history_of_a_file_skips_empty_cells(tmp_path):
    path = tmp_path / "history.csv"
    # Keras's `CSVLogger` writes "NA" into the `val_` columns of an epoch without validation.
    path.write_text("epoch,loss,bleu,host\n0,3.5,NA,a\n1,nan,20.5,b\n2,inf,,c\n3,1.5,22\n", "utf-8")
    for file in (path, str(path)):
        loss, bleu = plot_history(file).axes
        np.testing.assert_array_equal(curves(loss)["loss"].get_xydata(), [[1, 3.5], [4, 1.5]])
        np.testing.assert_array_equal(curves(bleu)["bleu"].get_xydata(), [[2, 20.5], [4, 22]])


# The positional encoding


@pytest.mark.parametrize("kind", [np.asarray, TorchTensor])
def test_positional_encoding_panels_hold_table_curves_and_inner_products(kind):
    encoding = positional_encoding(60, 64).astype("float32")
    table, waves, products, _ = plot_positional_encoding(kind(encoding)).axes
    np.testing.assert_array_equal(table.images[0].get_array(), encoding.T)
    assert set(curves(waves)) == {f"dimension {dimension}" for dimension in (0, 8, 16, 32)}
    for name, line in curves(waves).items():
        np.testing.assert_array_equal(line.get_ydata(), encoding[:, int(name.split()[-1])])
    # sin a sin b + cos a cos b = cos (a - b): only the distance is left.
    wavelengths = 10000 ** (np.arange(32) / 32)
    assert set(curves(products)) == {"with position 0", "with position 30"}
    for name, line in curves(products).items():
        distance = np.arange(60) - int(name.split()[-1])
        expected = np.cos(distance[:, None] / wavelengths).sum(axis=1)
        np.testing.assert_allclose(line.get_ydata(), expected, rtol=1e-5)


@pytest.mark.parametrize("length, hidden_dim", [(1, 1), (60, 64)])
def test_positional_encoding_of_any_size_draws_without_warnings(tmp_path, length, hidden_dim):
    figure = plot_positional_encoding(positional_encoding(length, hidden_dim))
    pixels = draw(figure, tmp_path / "positions.png")
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 100


ONE_SCORE = np.ones((1, 1, 1, 1))


@pytest.mark.parametrize(
    "call, received",
    [
        (lambda: plot_attention(np.ones((2, 3, 5, 3)), TARGET, SOURCE), "(3, 5, 3)"),
        (lambda: plot_attention(np.ones((3, 4, 3)), TARGET, SOURCE), "(4, 3)"),
        (lambda: plot_attention([*np.ones((1, 3, 4, 3)), ONE_SCORE], TARGET, SOURCE), "shapes"),
        (lambda: plot_attention(np.ones((2, 0, 4, 3)), TARGET, SOURCE), "(0, 4, 3)"),
        (lambda: plot_attention([], TARGET, SOURCE), "4 query_tokens, 3 key_tokens"),
        (lambda: plot_history({}), "columns []"),
        (lambda: plot_history({"epoch": [1], "seconds": [3]}), "columns ['epoch', 'seconds']"),
        (lambda: plot_history({"loss": []}), "lengths {'loss': 0}"),
        (lambda: plot_history({"loss": [1, 2], "lr": [1]}), "lengths {'loss': 2, 'lr': 1}"),
        (lambda: plot_history({"loss": [1, 2], "val_loss": [1]}), "`keras.callbacks.CSVLogger`"),
        (lambda: plot_history({"loss": ["1.0", "one"]}), "loss='one'"),
        (lambda: plot_positional_encoding(np.zeros((1, 4, 6))), "(1, 4, 6)"),
        (lambda: plot_positional_encoding(np.zeros((0, 6))), "(0, 6)"),
    ],
)
def test_error_names_what_was_received(call, received):
    with pytest.raises(ValueError, match=r"`\w+` must .* Received: .*") as error:
        call()
    assert received in str(error.value)


# Environments


def test_plotting_needs_no_pyplot():
    program = """
import io, sys
import numpy as np
from keras_transformer.plotting import plot_attention, plot_history, plot_positional_encoding
for figure in (
    plot_attention(np.ones((1, 1, 1, 1)), ["a"], ["b"], title="c"),
    plot_history({"loss": [1.0]}),
    plot_positional_encoding(np.eye(4)),
):
    figure.savefig(io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_matplotlib_is_an_error_with_the_install_command():
    program = """
import sys
sys.modules["matplotlib"] = None
import keras_transformer
try:
    keras_transformer.plotting
except ImportError as error:
    print(error)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    line = "`plotting` needs matplotlib, which is not installed: pip install matplotlib"
    assert ran.stdout == f"{line}\n"
