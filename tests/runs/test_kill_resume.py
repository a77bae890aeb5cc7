"""Killed and resumed runs end bit-identical to a run that is never killed."""

import re
import subprocess
import sys

import pytest

from tests.builders import ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.mark.long
def test_killed_runs_end_bit_for_bit_as_the_one_never_killed():
    runs = 20
    ran = subprocess.run(
        [sys.executable, "benchmarks/kill_resume.py", "--runs", str(runs)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{runs} of {runs} runs" in ran.stdout
    (kills,) = re.findall(r"(\d+) kills were in the middle of a save", ran.stdout)
    assert int(kills) >= 1
