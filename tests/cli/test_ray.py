"""The program of the page "A hundred million lines": two workers, one of them killed."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.cli.small_run import succeed

pytest.importorskip("ray", reason="needs the extra `ray`")
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.long]
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "pages" / "hundred_million_lines.md"
LINES = 500


def make_text(path):
    """A byte order mark, number names, blank lines, and what ends a line elsewhere."""
    names = [line.split("\t")[0] for line in path.read_text("utf-8").splitlines()]
    odd = ["", f"{names[0]}\u2028{names[1]}", f"{names[2]}\x0c\x85{names[3]}", "", f"{names[4]}\r"]
    odd += [f"\ufeff{name}" for name in names[5:]]  # no byte order mark: text of a later part
    words = [*names, *odd]
    lines = [" ".join(words[(7 * n + k) % len(words)] for k in range(n % 3)) for n in range(LINES)]
    return "\ufeff" + "\n".join([words[0], *odd, *lines])  # the last line has no line feed


def processes_of(folder):
    """The processes that have a folder in their command."""
    commands = pathlib.Path("/proc").glob("[0-9]*/cmdline")
    return [path for path in commands if str(folder).encode() in read(path)]


def read(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def test_no_line_is_lost_or_repeated_if_a_worker_is_killed(folder, tmp_path):
    succeed("export", "run", tmp_path / "ct2", "--format", "ctranslate2")
    source, whole = tmp_path / "source.txt", tmp_path / "whole.txt"
    text = make_text(folder / "small.tsv")
    source.write_text(text, "utf-8", newline="\n")
    succeed("translate", tmp_path / "ct2", "--input", source, "--output", whole)

    program, parts, done = (tmp_path / name for name in ("translate_parts.py", "parts", "done"))
    program.write_text(re.search(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.S)[1])
    parts.mkdir()
    done.mkdir()
    cut = "split --line-bytes=512 --suffix-length=6 --numeric-suffixes".split()
    subprocess.run([*cut, source, f"{parts}/"], check=True)
    killed = None
    # Short, because Ray has sockets there.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as session:
        environment = os.environ | {"RAY_TMPDIR": session, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, program, tmp_path / "ct2", parts, done, "2"]
        with (
            open(tmp_path / "log", "w") as log,
            subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.PIPE, stderr=log
            ) as process,
        ):
            for line in process.stdout:
                if killed is None and (found := re.match(r"(\d+) /", line)):
                    killed = int(found[1])
                    left = len(list(parts.iterdir())) - len(list(done.iterdir()))
                    os.kill(killed, signal.SIGKILL)
        assert process.returncode == 0, (tmp_path / "log").read_text()
        assert killed is not None and left > 0
        assert not processes_of(session), "Ray still runs"
    found = b"".join(path.read_bytes() for path in sorted(done.iterdir()))
    assert found == whole.read_bytes()
    assert found.count(b"\n") == len(text.split("\n")) > LINES and b"\n\n" in found
