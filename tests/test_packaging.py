"""The wheel, its requirements, and the package with the oldest and with the newest ones."""

import ast
import configparser
import contextlib
import functools
import importlib.metadata
import itertools
import operator
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.test_folders import imported_modules

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
ROOT = pathlib.Path(__file__).resolve().parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def requirements(lines):
    """Returns {name: version specifier}, without the marker of a platform."""
    lines = (line for line in lines.split("\n") if line and not line.startswith("#"))
    return dict(re.fullmatch(r"([\w-]+)(.*?)(?:;.*)?", line).groups() for line in lines)


EXTRAS = SETUP["options.extras_require"]
CORE = requirements(SETUP["options"]["install_requires"])
TENSORFLOW = requirements(EXTRAS["tensorflow"])
# Keras's next release, as long as it is not there: it rebuilt its backends.
KERAS_NIGHTLY = "keras-nightly==3.16.0.dev2026102704"
# Files with quick tests that use much of Keras and TensorFlow and need little beside them.
SUITE = [
    *("tests/layers/test_contract.py", "tests/models/test_saving.py"),
    *("tests/training/test_callbacks.py", "tests/training/test_model_state.py"),
    *("tests/data/test_tokenizer.py", "tests/decoding/test_search.py"),
    "tests/runs/test_keeper.py",
]
# What another backend, and Keras's next release, can change.
NEWEST_SUITE = [
    *("tests/layers/test_contract.py", "tests/models/test_paper.py::test_logits_equal_the_paper"),
    *("tests/training/test_linear_cross_entropy.py", "tests/decoding/test_search_model.py"),
]
# Marked `slow`, but quick enough here: the step on JAX, which uses private names of Keras.
# `test_interrupt.py` passes with Keras 3.15, and fails with nightly builds of 3.16.
NEWEST_STEP = ["tests/training/test_flat_values.py::test_update_of_a_subclass_is_used"]
INSTALL_PAGE = (ROOT / "docs" / "pages" / "install.md").read_text("utf-8")

USE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras_transformer as kt
pairs = kt.number_names("train", 50)
tokenizer = kt.Tokenizer.train_on_lines((text for pair in pairs for text in pair), 320, "t.model")
dataset, report = kt.make_dataset(pairs, tokenizer, batch_tokens=512)
config = kt.TransformerConfig.tiny(
    tokenizer.vocabulary_size, num_encoder_layers=1, num_decoder_layers=1
)
model = kt.Transformer(config)
model.compile(optimizer=kt.paper_optimizer(config), loss=kt.SmoothedCrossEntropy())
model.fit(dataset, verbose=0, shuffle=False)
translator = kt.Translator(model, tokenizer, extra_length=3)
path = kt.export_saved_model(translator, "served")
print(len(translator(["one", "two"])), path, kt.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    # A copy: what an earlier build left in `build/` would be packed too.
    shutil.copytree(ROOT / "keras_transformer", folder / "keras_transformer")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    # The build requirements are installed with the extra `test`; nothing is downloaded.
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder)]
    ran = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name for name in names if ".dist-info/" not in name}
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "keras_transformer").rglob("*")
        if path.suffix in (".py", ".pyi", ".yaml", ".json", ".html") or path.name == "py.typed"
    }
    assert shipped == package
    assert any(name.endswith("licenses/LICENSE") for name in names)


def make_environment(folder, *requirements, python=sys.executable):
    """Makes a virtual environment with some requirements, and returns the path of its Python."""
    subprocess.run([python, "-m", "venv", folder], check=True)
    install(folder / "bin" / "python", *requirements)
    return folder / "bin" / "python"


def install(python, *requirements):
    command = [python, "-m", "pip", "install", "--quiet", "--no-compile", *requirements]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def run(*command, cwd=None, **environment):
    """Runs a command, which finds the package where it is installed, and returns what it prints."""
    environment = {"PYTHONPATH": "", **environment}
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=os.environ | environment
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


# What the package imports only where it is installed.
OPTIONAL = (
    *("tensorflow", "tensorflow_text", "jax", "torch", "matplotlib", "keras_hub", "ctranslate2"),
    *("starlette", "anyio", "uvicorn", "python_multipart", "prometheus_client", "huggingface_hub"),
)


def test_core_requirements_are_what_the_package_imports():
    installed = importlib.metadata.packages_distributions()
    imported = set()
    for path in (ROOT / "keras_transformer").rglob("*.py"):
        for name in imported_modules(ast.parse(path.read_text("utf-8"))):
            imported.update(installed.get(name.partition(".")[0], []))
    imported = {name.lower().replace("-", "_") for name in imported}
    needed = {name.replace("-", "_") for name in CORE}
    imported -= {"keras_seq2seq_transformer", *OPTIONAL}
    assert imported == needed


def test_page_on_installing_has_these_versions():
    table = re.findall(r"^\| `([\w-]+)` \| `([^`]*[0-9][^`]*)`", INSTALL_PAGE, re.MULTILINE)
    backends = (requirements(EXTRAS[name]) for name in ("tensorflow", "jax", "torch"))
    assert dict(table) == functools.reduce(operator.or_, backends, CORE)


def test_page_on_installing_has_every_extra():
    named = re.findall(r"^\| (`[^|]*) \|[^|]*\|$", INSTALL_PAGE, re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(named))) == set(EXTRAS)


def oldest_of(name, versions):
    return f"{name}=={re.search('>=([0-9.]+)', versions)[1]}"


@pytest.fixture(scope="module")
def oldest(wheel, tmp_path_factory):
    """TensorFlow and the wheel, with the oldest version of each requirement."""
    folder = tmp_path_factory.mktemp("oldest")
    constraints = (oldest_of(name, versions) for name, versions in (CORE | TENSORFLOW).items())
    (folder / "constraints.txt").write_text("\n".join(constraints))
    extras = f"{wheel}[tensorflow]"
    return make_environment(folder, extras, "--constraint", folder / "constraints.txt")


@pytest.fixture(scope="module")
def newest(wheel, tmp_path_factory):
    """JAX and the wheel, without TensorFlow, with the newest version of each requirement."""
    folder = tmp_path_factory.mktemp("newest")
    python = make_environment(folder, f"{wheel}[jax]", python=newest_python())
    assert "tensorflow" not in run(python, "-m", "pip", "list")
    run(python, "-m", "pip", "uninstall", "--yes", "keras")
    install(python, "--no-deps", KERAS_NIGHTLY)
    return python


def newest_python():
    """Returns the newest Python of this machine that the package supports; also one of pyenv."""
    for version in ("3.14", "3.13", "3.12"):
        command = [f"python{version}", "-c", "import sys; print(sys.executable)"]
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            environment = os.environ | {"PYENV_VERSION": version}
            return subprocess.check_output(command, text=True, env=environment).strip()
    return sys.executable


@pytest.mark.long
def test_wheel_works_in_an_environment_with_the_oldest_core_requirements(oldest, tmp_path):
    count, served, file = run(oldest, "-c", USE, cwd=tmp_path).split()
    assert (count, served) == ("2", "served")
    assert file.startswith(str(oldest.parents[1])), "not the source tree"
    command = oldest.with_name("keras-transformer")
    assert "number_names: train" in run(command, "recipe", "number_names")
    assert re.match(
        r"(\d+) of \1 translations are equal", run(command, "verify", tmp_path / "served")
    )


@pytest.mark.long
def test_suite_passes_with_the_oldest_core_requirements(oldest):
    """The newest versions are those of the environment of this process."""
    samplers = requirements(EXTRAS["sampling"])
    install(oldest, "pytest", "hypothesis", *itertools.starmap(oldest_of, samplers.items()))
    # Warnings of old packages about newer ones are not ours.
    options = ["-x", "-q", "-m", "not slow", "-W", "ignore::DeprecationWarning"]
    # TensorFlow Text 2.18 and 2.19 know Unicode 13, Python knows a later one.
    options += ["-k", "not 10000_unicode_lines", "-p", "no:cacheprovider"]
    run(oldest, "-m", "pytest", *options, *SUITE, cwd=ROOT, PYTHONPATH=str(ROOT))


@pytest.mark.long
def test_suite_passes_without_tensorflow_with_the_newest_requirements(newest):
    install(newest, "pytest", "hypothesis")
    command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    variables = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax"}
    for tests in (["-m", "not slow", *NEWEST_SUITE], NEWEST_STEP):
        run(newest, *command, *tests, cwd=ROOT, **variables)
