"""Progress of commands: plain lines with rate and time left, and a clean terminal at the end."""

import re

import pytest

from keras_transformer.cli import progress
from tests.screen import Screen, run_on_terminal

SENTENCES = (
    "import time; from keras_transformer.cli.progress import sentence_progress as show; "
    "s = show(400, 'runs/a [b]'); f = s.__enter__(); "
    "[(f(100), time.sleep(0.2)) for n in range(4)]; s.__exit__(None, None, None); print('done')"
)
CHECKS = (
    "import time; from keras_transformer.cli.progress import check_progress as show; "
    "names = ('devices', 'disk'); s = show(names); f = s.__enter__(); "
    "[(f(n), time.sleep(0.3), print('found', n, 'x' * 90)) for n in names]; "
    "s.__exit__(None, None, None)"
)


def test_log_has_a_line_a_minute_with_rate_and_time_left(monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.sentence_progress(100_000, "runs/a") as advance:
        for _ in range(200):
            now += 6.0
            advance(500)
    lines = capsys.readouterr().err.splitlines()
    # 500 sentences take 6 seconds, so 5,000 of them a minute.
    assert len(lines) == 19, "none at the end"
    for minute, line in enumerate(lines, start=1):
        counts = f"{5000 * minute:,} of 100,000 sentences, 83.3/s"
        assert line == f"runs/a: {counts}, 0:{20 - minute:02}:00 left"


def test_quick_translation_prints_nothing(capsys):
    with progress.sentence_progress(10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "code, shown, lines",
    [
        (SENTENCES, r"runs/a \[b\].*\d+/400.* sentences [\d.,]+/s .*0:00:0\d", ["done"]),
        (CHECKS, r"Checking disk \(2 of 2\)", ["found devices", "x", "found disk", "x"]),
    ],
    ids=["sentences", "checks"],
)
def test_terminal_shows_the_progress_and_keeps_only_the_results(code, shown, lines):
    status, written = run_on_terminal(code)
    assert status == 0, written
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
    assert re.search(shown, plain), plain
    screen = Screen(written)
    assert screen.cursor_is_shown and "Checking" not in "".join(screen.rows)
    for line, expected in zip(screen.lines, lines, strict=True):
        assert line.startswith(expected)


def test_log_says_which_check_runs(capsys):
    with progress.check_progress(("devices", "disk")) as start:
        start("devices")
        start("disk")
    said = "Checking devices (1 of 2)\nChecking disk (2 of 2)\n"
    assert capsys.readouterr().err == said
