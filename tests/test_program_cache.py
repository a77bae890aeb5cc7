"""On JAX, compiled programs are kept for the next process."""

import os
import subprocess
import sys

import pytest

from tests.builders import ROOT

pytestmark = [pytest.mark.backends("jax"), pytest.mark.slow]

# Keras imports them where they are installed, in seconds.
HIDE = "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'matplotlib', 'pandas']))"
# A program that was compiled before does not keep the others from being kept.
BEFORE = "import jax; jax.jit(lambda x: x + 1)(1.0)"
NO_HOME = "import os, pwd; del os.environ['HOME']; pwd.getpwuid = {}.__getitem__"
COMPILE = "import keras_transformer, jax; keras_transformer.Transformer; "
COMPILE += "print(jax.jit(lambda x: x * 2)(jax.numpy.ones(2)))"


def kept(folder, *code, cwd=ROOT, **variables):
    """Runs code in a new process, and returns the programs that are in a folder afterwards."""
    variables = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", **variables}
    inherited = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-c", "\n".join([HIDE, *code])]
    environment = inherited | {"PYTHONPATH": str(ROOT)} | variables
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert (ran.stdout, "compilation cache" in ran.stderr) == ("[2. 2.]\n", False), ran.stderr
    return {path.name for path in folder.rglob("*-cache")}


def test_programs_are_kept_in_the_cache_of_the_user(tmp_path):
    folder = tmp_path / "keras_transformer" / "jax"
    programs = kept(folder, BEFORE, COMPILE, XDG_CACHE_HOME=str(tmp_path))
    assert programs
    assert kept(folder, COMPILE, XDG_CACHE_HOME=str(tmp_path)) == programs


@pytest.mark.parametrize("name", ["JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_written_causes_no_warning(tmp_path, name):
    variables = {"XDG_CACHE_HOME": str(tmp_path), name: "/proc/self/fdinfo"}  # nobody can write
    assert not kept(tmp_path, COMPILE, **variables)


def test_without_a_home_no_program_is_kept(tmp_path):
    variables = {"XDG_CACHE_HOME": "", "KERAS_HOME": str(tmp_path), "HOME": str(tmp_path)}
    # `~` would be a folder there.
    assert not kept(tmp_path, NO_HOME, COMPILE, cwd=tmp_path, **variables)
