"""A run for the commands, trained once, and models that are loaded once."""

import shutil

import pytest

from tests.cli.small_run import fill
from tests.session import equal_files_are_one_model, made_once  # noqa: F401


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return made_once(tmp_path_factory, "cli", fill)


@pytest.fixture(scope="module")
def engine(trained, tmp_path_factory):
    """The folder of CTranslate2 of the run."""
    from keras_transformer import export_ctranslate2, load_run

    return export_ctranslate2(load_run(trained / "run"), tmp_path_factory.mktemp("engine") / "ct2")


@pytest.fixture
def folder(trained, monkeypatch):
    """Data, a recipe and the run trained by it; the working folder."""
    monkeypatch.chdir(trained)
    return trained


@pytest.fixture
def own_run(folder, tmp_path):
    """A copy of the run, which the test may change."""
    return shutil.copytree(folder / "run", tmp_path / "run")
