"""The wheel: what it holds, and its use in an environment with the core requirements alone."""

import pathlib
import shutil
import subprocess
import sys
import venv
import zipfile

import pytest

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]
ROOT = pathlib.Path(__file__).resolve().parents[1]

USE = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras_transformer as kt
pairs = kt.number_names("train", 50)
tokenizer = kt.Tokenizer.train((text for pair in pairs for text in pair), 320, "t.model")
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
        if path.suffix in (".py", ".pyi", ".yaml") or path.name == "py.typed"
    }
    assert shipped == package
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.long
def test_wheel_works_in_an_empty_environment(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    install = [binaries / "python", "-m", "pip", "install", "--quiet", wheel]
    ran = subprocess.run(install, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    ran = subprocess.run(
        [binaries / "python", "-c", USE], capture_output=True, text=True, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr
    count, served, file = ran.stdout.split()
    assert (count, served) == ("2", "served")
    assert file.startswith(str(tmp_path / "venv")), "not the source tree"
    recipe = [binaries / "keras-transformer", "recipe", "number_names"]
    assert "number_names: train" in subprocess.run(recipe, capture_output=True, text=True).stdout
