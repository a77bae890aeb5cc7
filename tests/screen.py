"""A pseudo-terminal for programs that redraw lines, and the screen that they leave."""

import fcntl
import os
import re
import struct
import sys
import termios

from tests.processes import Popen

TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|[^\x1b]")
# Opens the terminal as the controlling one of the process, so that Ctrl-C sends SIGINT to it.
PROGRAM = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); {}"


class Screen:
    """The screen of a terminal after some output. Raises on an unknown escape code.

    Attributes:
        rows: list of str, all lines since the start.
        wrapped: list of the rows that were too wide and wrapped into the next one.
        cursor_is_shown: bool.
    """

    def __init__(self, text, columns=80):
        self.rows, self.wrapped, self.cursor_is_shown = [""], [], True
        self._columns, self._row, self._column = columns, 0, 0
        assert TOKEN.sub("", text) == "", "unknown escape code"
        for token in TOKEN.finditer(text):
            self._take(token.group(), *token.groups())

    @property
    def lines(self):
        """The rows that are not empty."""
        return [row.rstrip() for row in self.rows if row.strip()]

    def _take(self, text, number, code):
        if text == "\r":
            self._column = 0
        elif text == "\n":
            self._next_row()
        elif code is None:
            if self._column == self._columns:
                self.wrapped.append(self.rows[self._row])
                self._next_row()
            row = self.rows[self._row].ljust(self._column)
            self.rows[self._row] = row[: self._column] + text + row[self._column + 1 :]
            self._column += 1
        elif code == "A":
            self._row = max(self._row - int(number or 1), 0)
        elif code == "K" and number == "2":
            self.rows[self._row] = ""
        elif code in "hl" and number == "25":
            self.cursor_is_shown = code == "h"
        else:
            assert code == "m", f"unknown escape code: {text!r}"

    def _next_row(self):
        self._row, self._column = self._row + 1, 0
        self.rows += [""] * (self._row + 1 - len(self.rows))


def run_on_terminal(code, *words, answer=None):
    """Runs Python code in a separate process on a pseudo-terminal of 80 columns.

    Args:
        code: str, one line.
        words: arguments of the command, `sys.argv[1:]`.
        answer: pair (regular expression, bytes): the bytes are typed once the output matches.
            Optional.

    Returns:
        exit status and output of the process.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = Popen(
        [sys.executable, "-c", PROGRAM.format(code), *map(str, words)],
        **{"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True},
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(slave)
    written = b""
    with open(master, "r+b", buffering=0) as terminal:
        while True:
            try:
                written += terminal.read(1 << 16)
            except OSError:  # on Linux: no process has the terminal open
                break
            if answer is not None and re.search(answer[0], written.decode(errors="ignore")):
                terminal.write(answer[1])
                answer = None
    return process.wait(timeout=60), written.decode()
