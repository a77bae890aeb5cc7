"""The progress of a training: on a terminal, in a file, after a resume."""

import io
import re

import pytest
from rich.console import Console

import keras_transformer.console
import keras_transformer.runs.progress
from keras_transformer.runs.progress import TrainingProgress
from tests.screen import Screen

LOGS = {
    "gradient_norm": 0.61912,
    "learning_rate": 3.4869e-4,
    "loss": 4.12719,
    "padding_efficiency": 0.9576,
    "tokens_per_second": 11100.7657,
}
EPOCH = LOGS | {"val_loss": 3.22922, "val_bleu": 31.2, "val_chrf": 52.34567}


class File(io.StringIO):
    """A standard error that is a terminal, or is not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.isatty = lambda: is_terminal


@pytest.fixture
def standard_error(monkeypatch):
    """Makes a console and what it writes to."""

    def make(is_terminal, columns=80, clock=lambda: 0.0, **environment):
        file = File(is_terminal)
        console = Console(
            **{"file": file, "width": columns, "soft_wrap": True, "highlight": False},
            **{"get_time": clock, "_environ": {"TERM": "xterm"} | environment},
        )
        for module in (keras_transformer.console, keras_transformer.runs.progress):
            monkeypatch.setattr(module, "console", console)
        return file

    return make


def progress(batches, epochs=20):
    progress = TrainingProgress(batches)
    progress.set_params({"epochs": epochs})
    progress.on_train_begin()
    return progress


def print_fn(line):
    keras_transformer.console.console.print(line)


def refresh(progress):
    """Refreshes the bar, as its thread does four times a second."""
    progress._bar.refresh()


def epoch(progress, number, batches, logs=LOGS, end=EPOCH, said="."):
    """Runs an epoch of some batches. After each batch the trainer may print a line."""
    progress.on_epoch_begin(number)
    for batch in batches:
        progress.on_train_batch_end(batch, dict(logs))
        refresh(progress)
        if said:
            print_fn(said)
    if end is not None:
        progress.on_epoch_end(number, dict(end))


def bars(text, columns=80):
    """The progress line at each moment, and the screen at the end."""
    moments = [m.end() for m in re.finditer(r"epoch \d+/\d+ \S*━[^\r\n]*", text)]
    shown = [Screen(text[:end], columns).lines[-1] for end in moments]
    return shown, Screen(text, columns)


@pytest.mark.parametrize(
    "columns, batches, rate",
    [(40, 249, 11100.7657), (60, 45678, 1234567.8), (80, 9, 7.0), (80, 45678, 1234567.8),
     (81, 249, 11100.7657), (250, 45678, 1234567.8)],
)  # fmt: skip
def test_line_on_a_terminal_stays_one_line(standard_error, columns, batches, rate):
    written = standard_error(True, columns)
    logs = LOGS | {"tokens_per_second": rate, "loss": 12.34567}
    shown = progress(batches, 20)
    for number in (0, 18):
        epoch(shown, number, (0, 1, batches - 2, batches - 1), logs, {"loss": 1, "val_loss": 2})
    shown.close()
    lines, screen = bars(written.getvalue(), columns)
    assert max(map(len, lines)) <= columns
    assert screen.wrapped == [] and screen.cursor_is_shown
    said = [".", ".", ".", "."]
    ends = ["epoch 1/20 loss 1.000 val_loss 2.000", "epoch 19/20 loss 1.000 val_loss 2.000"]
    assert screen.lines == [*said, ends[0], *said, ends[1]], "the line itself is gone"
    if columns >= 80:
        assert len(lines) >= 8
        assert all(len(line) <= columns - len("^C") for line in lines), "nor may Ctrl-C wrap it"
        assert all("loss 12.346" in line and "tok/s" in line for line in lines if "loss" in line)


def test_line_on_80_columns_has_loss_first_and_all_that_people_want(standard_error):
    written = standard_error(True)
    shown = progress(249)
    epoch(shown, 10, range(20), said="")
    epoch(shown, 11, range(20), end=None)
    last = bars(written.getvalue())[0][-1]
    figures = r"loss 4\.127 val 3\.229 lr 3\.5e-4 11,101 tok/s"
    assert re.fullmatch(rf"epoch 12/20 ━\S+ +20/249 {figures} +\S+", last), last
    shown.close()
    assert Screen(written.getvalue()).cursor_is_shown


def test_resumed_bar_starts_at_the_batch_and_its_rate_excludes_earlier_batches(standard_error):
    now = 0.0
    written = standard_error(True, clock=lambda: now)
    shown = progress(100)
    epoch(shown, 0, [89], logs={}, end=None, said="")
    refresh(shown)
    line = bars(written.getvalue())[0][-1]
    assert re.fullmatch(r"epoch 1/20 ━\S* +90/100 +--:--", line), "no rate without an update"
    for batch in range(90, 95):
        now += 10.0
        shown.on_train_batch_end(batch, dict(LOGS))
    refresh(shown)
    line = bars(written.getvalue())[0][-1]
    assert " 95/100 loss" in line and line.endswith(" 00:50"), "five updates of ten seconds"
    shown.close()


def test_file_gets_plain_lines_for_the_first_update_every_hundredth_and_each_epoch(standard_error):
    written = standard_error(False)
    shown = progress(150, epochs=2)
    epoch(shown, 0, range(150), said="")
    epoch(shown, 1, range(150), said="")
    shown.close()
    assert_plain(written.getvalue())
    figures = "lr 3.5e-4 11,101 tok/s norm 0.62"
    end = "loss 4.127 val_loss 3.229 val_bleu 31.20 val_chrf 52.35 11,101 tok/s"
    assert written.getvalue().splitlines() == [
        f"epoch 1/2 batch 1/150 loss 4.127 {figures}",
        f"epoch 1/2 batch 100/150 loss 4.127 {figures}",
        f"epoch 1/2 {end}",
        f"epoch 2/2 batch 50/150 loss 4.127 val 3.229 {figures}",
        f"epoch 2/2 batch 150/150 loss 4.127 val 3.229 {figures}",
        f"epoch 2/2 {end}",
    ]


def test_file_of_a_resumed_run_has_no_line_for_earlier_batches(standard_error):
    written = standard_error(False)
    shown = progress(500)
    epoch(shown, 3, range(320), logs={}, end=None, said="")
    assert written.getvalue() == ""
    for batch in range(320, 402):
        shown.on_train_batch_end(batch, dict(LOGS))
    places = re.findall(r"batch (\d+)/500", written.getvalue())
    assert places == ["321", "400"], "the first, and the 1,900th of all"


@pytest.mark.parametrize(
    "is_terminal, environment",
    [(True, {"NO_COLOR": "1"}), (True, {"TERM": "dumb"}), (False, {"FORCE_COLOR": "1"})],
)
def test_plain_lines_also_where_rich_would_write_codes(standard_error, is_terminal, environment):
    written = standard_error(is_terminal, **environment)
    shown = progress(3)
    epoch(shown, 0, range(3))
    shown.close()
    assert_plain(written.getvalue())
    assert "batch 1/3 loss" in written.getvalue()


def assert_plain(text):
    assert text.endswith("\n") and not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
