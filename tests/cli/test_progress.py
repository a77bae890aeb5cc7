"""Progress of commands: plain lines with rate and time left, and a clean terminal at the end."""

import re

from keras_transformer.cli import progress
from tests.screen import Screen, run_on_terminal

SENTENCES = (
    "import time; from keras_transformer.cli.progress import sentence_progress as show; "
    "s = show(400); f = s.__enter__(); "
    "[(f(100), time.sleep(0.2)) for n in range(4)]; s.__exit__(None, None, None); print('done')"
)


def test_log_has_a_line_a_minute_with_rate_and_time_left(monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.sentence_progress(100_000) as advance:
        for _ in range(200):
            now += 6.0
            advance(500)
    lines = capsys.readouterr().err.splitlines()
    # 500 sentences take 6 seconds, so 5,000 of them a minute.
    assert len(lines) == 19, "none at the end"
    for minute, line in enumerate(lines, start=1):
        counts = f"{5000 * minute:,} of 100,000 sentences, 83.3/s"
        assert line == f"{counts}, 0:{20 - minute:02}:00 left"


def test_log_stands_nothing_done_yet_and_more_than_was_expected(monkeypatch, capsys):
    seconds = iter(range(0, 1000, 100))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(seconds))
    with progress.sentence_progress(100) as advance:
        advance(0)
        advance(130)
    assert capsys.readouterr().err == "130 of 100 sentences, 0.7/s, 0:00:00 left\n"


def test_quick_translation_prints_nothing(capsys):
    with progress.sentence_progress(10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


def test_terminal_shows_the_progress_and_keeps_only_the_results():
    status, written = run_on_terminal(SENTENCES)
    assert status == 0, written
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
    assert re.search(r"\d+/400.* sentences [\d.,]+/s .*0:00:0\d", plain), plain
    screen = Screen(written)
    assert screen.cursor_is_shown and screen.lines == ["done"]
