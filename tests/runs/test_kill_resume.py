"""A run that is killed and resumed ends bit-identical to a run that is never killed."""

import sys

import pytest

from tests import processes
from tests.builders import ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.mark.long
def test_run_killed_at_eight_points_ends_bit_for_bit_as_the_one_never_killed(monkeypatch, capsys):
    """The benchmark's first run; `--runs 20` also kills 20 runs at random moments."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import kill_resume

    monkeypatch.setattr(kill_resume, "subprocess", processes)
    monkeypatch.setattr(sys, "argv", ["kill_resume.py", "--runs", "0"])
    with pytest.raises(SystemExit) as ended:
        kill_resume.main()
    printed = capsys.readouterr().out
    assert not ended.value.code, ended.value.code
    assert "1 of 1 runs are bit-identical" in printed, printed
