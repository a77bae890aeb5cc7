"""What is slow on this processor is said once, with a measured ratio; of others nothing is said.

`tests/cpuinfo` holds what processors have written into `/proc/cpuinfo`.
"""

import math
import pathlib
import warnings
from types import SimpleNamespace

import keras
import pytest
import yaml

from keras_transformer import SmoothedCrossEntropy, Transformer, Translator, processor
from keras_transformer.runs import Finding, doctor
from keras_transformer.runs.recipe import Recipe
from tests.builders import padded_ids, quantize, token_inputs, transformer
from tests.cli import small_run
from tests.cli.small_run import succeed
from tests.decoding.test_translator import make_translator

pytestmark = pytest.mark.filterwarnings("always:This processor")

RECORDED = pathlib.Path(__file__).with_name("cpuinfo")
# By the manuals of Intel, AMD and Arm.
EMULATED = {
    "zen_3": {"bfloat16", "float16", "int8"},
    "zen_4": {"float16"},
    "skylake": {"bfloat16", "float16", "int8"},
    "cascade_lake": {"bfloat16", "float16"},
    "sapphire_rapids": set(),
    "graviton_3": set(),
    "neoverse_n1": {"bfloat16"},
}
RECIPE = {
    "data": {"train": {"number_names": "train", "size": 200}},
    "vocabulary": small_run.RECIPE["vocabulary"],
    "model": small_run.RECIPE["model"],
    "training": {"epochs": 1, "precision": "mixed_bfloat16"},
}
LINE = (
    "This processor has no instructions that multiply bfloat16: a matrix product takes 2.6 times "
    "as long as in float32, so compute in float32 (`training.precision`, `dtype` or `--dtype`)."
)


def use(patch, name, ratio=2.6):
    """Makes this a recorded processor, in a process that has said nothing yet."""
    patch.setattr(processor, "CPUINFO", RECORDED / f"{name}.txt")
    patch.setattr(processor, "time_ratio", lambda dtype: ratio)
    patch.setattr(processor, "_checked", set())


def said_by(function):
    """The lines about the processor that a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function()
    lines = [str(warning.message) for warning in caught]
    return [line for line in lines if line.startswith("This processor")]


@pytest.mark.parametrize("name", EMULATED)
def test_recorded_processors_emulate_what_their_manuals_lack(name, monkeypatch):
    use(monkeypatch, name)
    dtypes = "float32", "bfloat16", "float16", "int8", "float64"
    assert {dtype for dtype in dtypes if processor.is_emulated(dtype)} == EMULATED[name]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "processor\t: 0\nisa\t\t: rv64imafdc\n",
        "vendor_id       : IBM/S390\nfeatures\t: esan3 zarch stfle vx vxd\n",
    ],
    ids=["no file", "RISC-V", "s390x"],
)
def test_of_an_unknown_processor_nothing_is_said(text, tmp_path, monkeypatch):
    use(monkeypatch, "zen_3")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert not any(map(processor.is_emulated, processor.CURES))
    processor.say_if_emulated("bfloat16", pytest.fail)


@pytest.mark.parametrize("dtype", processor.CURES)
def test_ratio_is_measured_on_the_backend_in_use(dtype):
    with keras.device("cpu"):
        assert 0 < processor.time_ratio(dtype) < math.inf


@pytest.mark.parametrize("device", ["cuda:0", "/job:w/replica:0/task:0/device:GPU:0", "TPU_0"])
def test_nothing_is_measured_on_another_device(device, monkeypatch):
    tensor = SimpleNamespace(device=device)
    monkeypatch.setattr(keras.ops, "cast", lambda x, dtype: tensor)
    monkeypatch.setattr(keras.ops, "matmul", pytest.fail)
    assert processor.time_ratio("bfloat16") is None


def test_product_of_float32_takes_as_long_as_itself(monkeypatch):
    """By a clock that counts its readings, so that it is exact on a busy machine too."""
    readings = iter(range(1000))
    monkeypatch.setattr(processor.time, "perf_counter", lambda: next(readings))
    assert processor.time_ratio("float32") == 1


@pytest.mark.parametrize("ratio", [None, 0.4, 1.1], ids=["on a GPU", "faster", "as fast"])
def test_what_is_not_slower_is_not_said(ratio, monkeypatch):
    use(monkeypatch, "skylake", ratio)
    processor.say_if_emulated("bfloat16", pytest.fail)


def test_nothing_is_measured_where_nothing_is_emulated(monkeypatch):
    use(monkeypatch, "sapphire_rapids")
    monkeypatch.setattr(processor, "time_ratio", pytest.fail)
    for dtype in (*processor.CURES, "float32"):
        processor.say_if_emulated(dtype, pytest.fail)


def train(precision):
    """Trains a model on a batch by `fit`, as a `Trainer` does, and evaluates it."""
    model = transformer(dtype=precision)
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0))
    ids = padded_ids([4, 2], 50)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fit", "evaluate"):
            patch.setattr(keras.Model, name, lambda self, *args, **kwargs: None)
        for _ in range(2):
            model.fit(token_inputs(ids, ids), ids)
        model.evaluate(token_inputs(ids, ids), ids)


def test_training_says_it_once(monkeypatch):
    use(monkeypatch, "zen_3")
    assert said_by(lambda: train("float32")) == []
    assert said_by(lambda: train("mixed_bfloat16")) == [LINE]
    assert said_by(lambda: train("mixed_bfloat16")) == []


@pytest.mark.long
def test_train_says_it_once_before_the_first_update(tmp_path, monkeypatch):
    use(monkeypatch, "zen_3")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(RECIPE), "utf-8")
    said = succeed("train", tmp_path / "recipe.yaml", "--run", tmp_path / "run").stderr
    assert said.count(LINE) == said.count("This processor") == 1
    assert said.index(LINE) < said.index("epoch 1")


def test_doctor_says_it_as_a_warning_of_the_devices(tmp_path, monkeypatch):
    use(monkeypatch, "zen_3")
    recipe = Recipe.from_dict(RECIPE)
    checks = doctor._Checks(recipe, tmp_path, tmp_path / "run", tmp_path / "scratch", 60)
    passed, detail, *said = checks.devices()
    assert passed and said == [LINE]
    shown = str(Finding("devices", passed, detail, 0.1, tuple(said)))
    assert shown.count("\n  ! This processor") == 1


@pytest.mark.slow
def test_translator_says_it_once(monkeypatch):
    """Also that of `load_run`, which makes one."""
    use(monkeypatch, "zen_3")
    made = make_translator()
    half = Transformer(made.model.config, dtype="mixed_bfloat16")

    def said_of(model, **options):
        return said_by(lambda: Translator(model, made.source_tokenizer, **options))

    assert said_of(made.model, dtype="float32") == []
    assert said_of([half, made.model], dtype="bfloat16") == [LINE]
    assert said_of(half) == [], "the model's own precision, once more"
    use(monkeypatch, "zen_3")
    assert said_of(half) == [LINE]
    use(monkeypatch, "skylake")
    quantize(made.model)
    (line,) = said_of(made.model)
    assert "int8" in line and "2.6 times" in line and "before `quantize`" in line
