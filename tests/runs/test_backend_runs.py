"""Runs on JAX or PyTorch: killed and resumed, translated with TensorFlow; all commands."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import load_run
from tests.builders import QUICK_XLA, ROOT
from tests.runs import tiny_run

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

RUN = """
import os, sys
import keras
from tests.runs.test_kept_fit import At
from tests.runs.tiny_run import WatchedTrainer, recipe

# Three batches per epoch, of one shape: JAX compiles each.
training = {"batch_tokens": 4096, "accumulation_steps": 2, "shapes": 1, "translation_sample": 2}
settings = recipe(epochs=2, checkpoint_updates=2, **training)
killed, *others = sys.argv[1:]
kill = At(5, lambda: os.kill(os.getpid(), 9))
WatchedTrainer(settings, killed, behind=[] if others else [kill]).train()
for folder in others:
    WatchedTrainer(settings, folder).train()
assert keras.backend.backend() == os.environ["KERAS_BACKEND"]
"""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_killed_run_on_another_backend_resumes_exactly_and_translates(backend, tmp_path):
    whole, killed = str(tmp_path / "whole"), str(tmp_path / "killed")
    environment = os.environ | {
        **{"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        "XLA_FLAGS": f"{QUICK_XLA} --xla_force_host_platform_device_count=2",
    }

    def train(*folders):
        return subprocess.run([sys.executable, "-c", RUN, *folders], env=environment).returncode

    assert train(killed) == -signal.SIGKILL
    assert max(tiny_run.checkpoints(killed)) == 4, "in the second epoch, an update before the kill"
    assert train(killed, whole) == 0

    assert tiny_run.losses(killed) == tiny_run.losses(whole)
    (one, _), (other, _) = (
        tiny_run.checkpoints(run)[max(tiny_run.checkpoints(run))] for run in (killed, whole)
    )
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert len(load_run(killed)(["twenty-one", "six"])) == 2


@pytest.mark.long
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_all_commands_run_on_another_backend(backend, tmp_path):
    """And a run that is killed goes on bit by bit. Where TensorFlow is installed, it is hidden."""
    environment = os.environ | {"KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)}
    script = ROOT / "scripts" / "without_tensorflow.py"
    command = [sys.executable, script, tmp_path / "runs", "--quick"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and ran.stdout.endswith("All passed.\n"), ran.stdout + ran.stderr
