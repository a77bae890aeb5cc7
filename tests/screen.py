"""A terminal, as a person sees it: of programs that write over their own lines."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios

TOKEN = re.compile(r"\x1b\[\??([\d;]*)([A-Za-z])|[^\x1b]")
# The terminal becomes the one that sends SIGINT to the program on Ctrl-C.
PROGRAM = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); {}"


class Screen:
    """What stands on the screen after some text. An escape code it does not know is an error.

    Attributes:
        rows: list of str, all lines since the start.
        wrapped: list of the rows that were too wide and went on in the next one.
        cursor_is_shown: bool.
    """

    def __init__(self, text, columns=80):
        self.rows, self.wrapped, self.cursor_is_shown = [""], [], True
        self._columns, self._row, self._column = columns, 0, 0
        assert TOKEN.sub("", text) == "", "an escape code that is not known"
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
            self._down(0)
        elif code is None:
            if self._column == self._columns:
                self.wrapped.append(self.rows[self._row])
                self._down(0)
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
            assert code == "m", f"an escape code that is not known: {text!r}"

    def _down(self, column):
        self._row, self._column = self._row + 1, column
        self.rows += [""] * (self._row + 1 - len(self.rows))


def run_on_terminal(code, *words, columns=80, answer=None, **environment):
    """Runs Python code in a process of its own on a pseudo-terminal.

    Args:
        code: str, of one line.
        words: the command line that `sys.argv` holds.
        columns: int. How wide the terminal is.
        answer: pair of a regular expression and the bytes that are typed when it matches what the
            process has written. Optional.
        environment: variables of the process.

    Returns:
        exit status, and what it wrote as a string.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code), *map(str, words)],
        **{"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True},
        env=os.environ | {"TERM": "xterm"} | environment,
    )
    os.close(slave)
    written = b""
    with open(master, "r+b", buffering=0) as terminal:
        while True:
            try:
                written += terminal.read(1 << 16)
            except OSError:  # on Linux: nobody has the terminal open any more
                break
            if answer is not None and re.search(answer[0], written.decode(errors="ignore")):
                terminal.write(answer[1])
                answer = None
    return process.wait(timeout=60), written.decode()
