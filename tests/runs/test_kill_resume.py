"""A run that is killed again and again ends as one that never was."""

import re
import subprocess
import sys

import pytest

from tests.builders import ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


def test_killed_runs_end_bit_for_bit_as_the_one_never_killed():
    ran = subprocess.run(
        [sys.executable, "benchmarks/kill_resume.py", "--runs", "3"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 of 3 runs" in ran.stdout
    (kills,) = re.findall(r"(\d+) kills were in the middle of a save", ran.stdout)
    assert int(kills) >= 1
