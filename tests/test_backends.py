"""The package without TensorFlow, or another requirement: one line says what to install."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import keras
import pytest

import keras_transformer
from keras_transformer.runs import doctor
from keras_transformer.training.workers import LocalDevices
from tests.builders import QUICK_XLA, ROOT, run_fresh

NAMES_WITHOUT_TENSORFLOW = """
import keras_transformer as kt
from keras_transformer import runs
for module, name in [
    *((kt, name) for name in ("Tokenizer", "make_dataset", "Translator", "load_run", "RunKeeper")),
    *((runs, "Trainer"), (kt, "export_ctranslate2"), (kt, "import_model"), (kt, "beam_search")),
]:
    getattr(module, name)
for name in ("export_saved_model", "get_strategy"):
    try:
        getattr(kt, name)
    except ImportError as error:
        line = f"`{name}` needs tensorflow, which is not installed: pip install tensorflow"
        assert str(error) == line, error
    else:
        raise AssertionError(name)
assert "export_saved_model" in dir(kt)
tokenizer = kt.Tokenizer.words(["a b", "c d"])
inputs, *_ = next(iter(kt.make_dataset([("a b", "c d")], tokenizer, batch_sentences=1)[0]))
assert inputs["encoder_token_ids"].shape == (1, 3)
"""
WITHOUT_TENSORFLOW = """
import importlib.machinery, sys, tempfile

class EmptyFolder:  # what is left of a package that was removed badly
    def find_spec(self, name, path=None, target=None):
        if name in ("tensorflow", "tensorflow_text"):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [tempfile.mkdtemp()]
            return spec

sys.meta_path.insert(0, EmptyFolder())
if sys.argv[1] == "names":
    exec(sys.argv[2])
else:
    from keras_transformer.__main__ import main
    main()
"""


@pytest.mark.long
@pytest.mark.tensorflow_only  # it starts a process with a backend of its own
def test_without_tensorflow_one_line_says_what_to_install(tmp_path):
    def run_command(*words):
        command = [sys.executable, "-c", WITHOUT_TENSORFLOW, *words]
        environment = os.environ | {"KERAS_BACKEND": "jax"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    ran = run_command("names", NAMES_WITHOUT_TENSORFLOW)
    assert ran.returncode == 0, ran.stderr
    ran = run_command("--help")
    assert ran.returncode == 0 and "Usage: " in ran.stdout, ran.stderr
    (tmp_path / "saved_model.pb").touch()
    for words in (["serve", str(tmp_path)], ["export", "run", "served"]):
        ran = run_command(*words)
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1), ran.stderr
        assert ran.stderr.startswith("Error: A SavedModel needs TensorFlow and ")


@pytest.mark.tensorflow_only  # it starts a process with a backend of its own
@pytest.mark.parametrize(
    ("name", "status", "line"),
    [
        ("typer", 1, "The command line needs typer, which is not installed: pip install typer"),
        (
            "tensorflow",
            2,
            "This command needs tensorflow, which is not installed: .*Or install jax or torch.*",
        ),
    ],
)
def test_command_without_a_requirement_says_what_to_install(name, status, line):
    code = f"import sys; sys.modules[{name!r}] = None; import keras_transformer.__main__ as p\n"
    command = [sys.executable, "-c", f"{code}p.main()", "doctor", "number_names"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == status and re.fullmatch(f"Error: {line}\n", ran.stderr), ran.stderr


TRAIN_A_TOKENIZER = """
import keras_transformer as kt
lines = [text for pair in kt.number_names("train", 50) for text in pair]
print(kt.Tokenizer.train_on_lines(lines, 320, "numbers.json").vocabulary_size)
"""


@pytest.mark.tensorflow_only
@pytest.mark.long
@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that nobody can write")
def test_home_may_be_missing_and_temporary_folder_read_only(tmp_path):
    """As the page on installing says; nothing is left outside of the working folder."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    unusable = {"HOME": "/proc/home", "TMPDIR": "/proc/tmp"}
    ran = subprocess.run(
        [sys.executable, "-c", TRAIN_A_TOKENIZER],
        capture_output=True, text=True, env=environment | unusable, cwd=tmp_path,
    )  # fmt: skip
    assert ran.stdout == "320\n", ran.stderr
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["numbers.json", "numbers.spm"]


@pytest.mark.tensorflow_only  # what another backend changes is in `NAMES_WITHOUT_TENSORFLOW`
def test_every_public_name_resolves_in_a_fresh_process():
    run_fresh("import keras_transformer as k; [getattr(k, name) for name in k.__all__]")
    with pytest.raises(AttributeError, match="Nothing"):
        keras_transformer.Nothing  # noqa: B018


@pytest.mark.backends("jax", "torch")
def test_saved_model_on_another_backend_raises(tmp_path):
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        keras_transformer.export_saved_model(None, tmp_path / "served")


@pytest.mark.backends("jax")  # only it has several devices here
def test_doctor_trains_on_the_devices_that_train_uses():
    seen = []

    def fit(dataset, **options):
        seen.append(keras.distribution.distribution())
        return SimpleNamespace(history={"loss": [1.0]})

    model = SimpleNamespace(fit=fit)
    checks = SimpleNamespace(
        recipe=SimpleNamespace(training=SimpleNamespace(seed=1)),
        trainer=SimpleNamespace(strategy=LocalDevices(4), model=lambda *_: model),
        tokenizers=None,
        stream=SimpleNamespace(seek=lambda *_: None, dataset=lambda: None),
    )
    assert doctor._Checks._train(checks, [0]) == (model, [1.0])
    assert isinstance(seen[0], keras.distribution.DataParallel)


@pytest.mark.tensorflow_only  # it starts processes with backends of their own
@pytest.mark.long
def test_benchmark_for_gpus_runs_all_its_parts_on_a_cpu():
    pytest.importorskip("torch")
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", "--smallest"]
    # `torch.compile` does nothing: inductor's C++ takes a minute.
    quick = {"XLA_FLAGS": QUICK_XLA, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | quick)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "failed" not in ran.stdout and "OTHER" not in ran.stdout, ran.stdout
