"""Programs that kill themselves at the call of a function, not at a random moment."""

import os
import signal
import sys

from tests.builders import ROOT
from tests.processes import run

KILL_AT = """
import os, pkgutil, signal, sys

owner, _, name = sys.argv[1].rpartition(".")
owner, left = pkgutil.resolve_name(owner), int(sys.argv[2])
del sys.argv[1:3]

def killing(*arguments, function=getattr(owner, name), **options):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)

setattr(owner, name, killing)
"""


def run_killed(program, words, function, call, **options):
    """Runs a program, `python -c PROGRAM WORDS`, which is killed before a call of a function.

    Args:
        function: its name with that of its module, such as "os.replace".
        call: int, the number of the call, from 1.
        options: those of `subprocess.run`.
    """
    command = [sys.executable, "-c", KILL_AT + program, function, str(call), *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = run(command, env=environment, capture_output=True, **options)
    assert ran.returncode == -signal.SIGKILL, (function, call, ran.stderr)
