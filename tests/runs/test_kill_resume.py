"""A run that is killed and resumed ends bit-identical to one that is never killed, on each backend.

`test_kept_fit.py` states it for `fit` with a `RunKeeper`.
"""

import os
import subprocess
import sys

import pytest

from keras_transformer import load_run
from tests import processes
from tests.builders import QUICK_XLA, ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow, pytest.mark.long]


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


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_commands_run_on_another_backend(backend, tmp_path):
    """Also a run that is killed, which TensorFlow loads. Where it is installed, it is hidden."""
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    environment |= {
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": f"{QUICK_XLA} --xla_force_host_platform_device_count=2",
    }
    script = ROOT / "scripts" / "without_tensorflow.py"
    command = [sys.executable, script, tmp_path / "runs", "--quick"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.endswith("All passed.\n"), ran.stdout + ran.stderr
    assert len(load_run(tmp_path / "runs" / "killed")(["twenty-one", "six"])) == 2
