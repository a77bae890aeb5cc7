"""Commands run on JAX or PyTorch; a run is killed and resumed there, and translates here."""

import os
import subprocess
import sys

import pytest

from keras_transformer import load_run
from tests.builders import QUICK_XLA, ROOT

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_commands_run_on_another_backend(backend, tmp_path):
    """And a run that is killed goes on bit by bit. Where TensorFlow is installed, it is hidden."""
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
