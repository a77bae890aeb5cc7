"""A run that is killed and resumed ends bit-identical to a run that is never killed."""

import subprocess
import sys

import pytest

from tests.builders import ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.mark.long
def test_run_killed_at_eight_points_ends_bit_for_bit_as_the_one_never_killed():
    """The benchmark's first run; `--runs 20` also kills 20 runs at random moments."""
    ran = subprocess.run(
        [sys.executable, "benchmarks/kill_resume.py", "--runs", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 of 1 runs are bit-identical" in ran.stdout
