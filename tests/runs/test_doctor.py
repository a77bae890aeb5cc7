"""`run_checks`: a healthy recipe passes; each defect fails its own check and no other."""

import json
import shutil
import subprocess
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import Tokenizer, Transformer
from keras_transformer.data.number_corpus import number_names
from keras_transformer.data.sentencepiece_proto import ModelProto
from keras_transformer.runs import RunFolder, device_check, doctor, workers
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.trainer import Trainer
from tests.builders import learned_tokenizer
from tests.cli.small_run import cli, write_lines
from tests.importing import opus_models
from tests.processes import run
from tests.runs.test_checkpoint_file import names

MEMORY, LEARNING = doctor._Checks.memory, doctor._Checks.learning
pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

CHECKS = ["devices", "data", "vocabulary", "memory", "learning", "disk"]
RECIPE = {
    "data": {"train": ["train.tsv"]},
    "vocabulary": {"size": 330},
    "model": {
        "preset": "tiny",
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
        "hidden_dim": 64,
        "intermediate_dim": 64,
    },
    "training": {"batch_tokens": 512, "keep_last": 3, "keep_best": 2, "warmup_steps": 50},
}


def recipe(**changes):
    """The healthy recipe with some sections changed."""
    return Recipe.from_dict(
        {**RECIPE, **{k: RECIPE.get(k, {}) | change for k, change in changes.items()}}
    )


def healthy_pairs():
    """Number names, and one pair that is far longer but does not make the largest batch."""
    pairs = number_names("train", 300)
    long = pairs[:6]
    return [*pairs, tuple(" ".join(side) for side in zip(*long, strict=True))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    write_lines(folder / "train.tsv", map("\t".join, healthy_pairs()))
    return folder


@pytest.fixture
def untrained(monkeypatch):
    """Skips the checks that train, to save time."""
    for name in ("memory", "learning"):
        monkeypatch.setattr(doctor._Checks, name, lambda self: (True, ""))


def verdicts(recipe, folder, **options):
    events = []

    def told(line):
        events.append(line.split()[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "console", SimpleNamespace(print=told))
        findings = doctor.run_checks(recipe, folder, print_fn=told, **options)
    assert [finding.name for finding in findings] == CHECKS
    assert events == [name for name in CHECKS for _ in range(2)], "told before and after a check"
    return {finding.name: finding.passed for finding in findings}, {
        finding.name: finding.detail for finding in findings
    }


def only_fails(name, not_run=()):
    return {check: None if check in not_run else check != name for check in CHECKS}


@pytest.mark.long
def test_healthy_recipe_passes_every_check(folder, tmp_path, monkeypatch):
    """Memory is tried on the largest batch, and on that with the longest sentence."""
    said, tried, fit = [], [], Transformer.fit

    def recording_fit(model, dataset, **options):
        inputs, _, _ = next(iter(dataset))
        tried.append([side.shape for side in inputs.values()])
        return fit(model, dataset, **options)

    monkeypatch.setattr(Transformer, "fit", recording_fit)
    started = time.perf_counter()
    options = {"print_fn": said.append, "started": started}
    findings = doctor.run_checks(recipe(), folder, folder / "run", timeout=1e-9, **options)
    elapsed = time.perf_counter() - started
    assert elapsed / 2 < sum(finding.seconds for finding in findings) <= elapsed
    assert "timeout" not in findings[0].detail, "one device is checked without a time limit"
    assert [(f.name, f.passed) for f in findings] == [(name, True) for name in CHECKS], said
    for line, finding in zip(said, findings, strict=True):
        assert line.startswith(f"✓ {finding.name} ") and finding.detail in line
        assert "\n" not in line
    assert names(folder) == ["train.tsv"], "nothing is written into the run folder"

    trainer = Trainer(recipe(), folder, tmp_path, print_fn=lambda line: None)
    tokenizers = trainer.tokenizers()
    shapes = [
        [side.shape for side in inputs.values()]
        for inputs, _, _ in trainer.stream(tokenizers).dataset()
    ]
    sides = zip(tokenizers, zip(*healthy_pairs(), strict=True), strict=True)
    longest = max(len(tokenizer.encode(line)) + 1 for tokenizer, side in sides for line in side)
    assert slots(tried[0]) == max(map(slots, shapes))
    assert max(width for _, width in tried[1]) == longest
    assert slots(tried[1]) < slots(tried[0]), "two batches, or this shows nothing"


def slots(batch):
    return sum(np.prod(side) for side in batch)


@pytest.mark.parametrize("lines", ["", "\t\n \t \neins\t\n"], ids=["no line", "no text"])
def test_data_without_text_fails_data(tmp_path, lines):
    (tmp_path / "train.tsv").write_text(lines)
    passed, _ = verdicts(recipe(), tmp_path)
    assert passed == only_fails("data", not_run=CHECKS[2:])


NUMBERS = number_names("train", 300)
# {name: (training pairs, changed sections of the recipe, words of the warning)}
WARNINGS = {
    "empty": ([*NUMBERS, *[("one", "")] * 150], {}, ["33.3%", "'one' | ''", "mend"]),
    "warm-up": (
        NUMBERS,
        {"training": {"warmup_steps": 1000, "epochs": 40}},
        ["1,000 of the", "updates (40 epochs of", "lower `warmup_steps` to about 100"],
    ),
    "one update": (
        NUMBERS[:30],
        {"training": {"warmup_steps": 1, "epochs": 1, "batch_tokens": 9000}},
        ["takes 1 of the 1 updates (1 epochs of 1): raise `epochs`"],
    ),
    "decay": (
        NUMBERS,
        {"training": {"epochs": 9, "schedule": "cosine", "decay_epochs": 92, "learning_rate": 0.1}},
        ["decays over 92 epochs", "has 9", "set `decay_epochs` to 9"],
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_data_that_train_but_lose_or_lack_something_are_a_warning(untrained, tmp_path, name):
    pairs, changes, words = WARNINGS[name]
    write_lines(tmp_path / "train.tsv", map("\t".join, pairs))
    findings = doctor.run_checks(recipe(**changes), tmp_path, print_fn=lambda line: None)
    assert [finding.name for finding in findings if finding.warnings] == ["data"]
    (warning,) = findings[1].warnings
    assert all(word in warning for word in words), warning
    line, second = str(findings[1]).splitlines()
    assert line.startswith("! data") and second == f"  ! {warning}"
    assert all(finding.passed for finding in findings), "a warning is no failure"


@pytest.mark.parametrize(
    "name, words",
    [("a.model", ["Tokenizer.train", "a.model"]), ("train.tsv", ["train.tsv"])],
    ids=["other special ids", "no vocabulary"],
)
def test_file_without_a_vocabulary_of_ours_fails_vocabulary(name, words, folder, tmp_path):
    proto = ModelProto.FromString(learned_tokenizer(healthy_pairs(), 330).model_bytes)
    proto.trainer_spec.bos_id = 5000
    (tmp_path / "a.model").write_bytes(proto.SerializeToString())
    shutil.copy(folder / "train.tsv", tmp_path)
    passed, details = verdicts(recipe(vocabulary={"files": [name]}), str(tmp_path))
    assert passed == only_fails("vocabulary", not_run=["data", "memory", "learning", "disk"])
    assert all(word in details["vocabulary"] for word in words)


def test_run_that_starts_from_an_imported_model_passes(untrained, folder, tmp_path):
    """Its tokenizers are of another class; `untrained` reads no weights."""
    base = RunFolder(tmp_path / "imported")
    base.path.mkdir()
    base.model_file.touch()
    pieces = opus_models.vocabulary()
    for model, file in zip(
        opus_models.sentencepiece_models(), base.new_tokenizer_files(joint=False), strict=True
    ):
        Tokenizer.from_marian(model, pieces).save(file)
    ids = {"pad": "<pad>", "start": "<pad>", "end": "</s>", "unk": "<unk>"}
    special = {f"{name}_token_id": pieces[piece] for name, piece in ids.items()}
    changed = recipe(
        vocabulary={"joint": False, "size": 8000},
        model=special,
        training={"init_from": str(base.path)},
    )
    passed, details = verdicts(changed, folder)
    assert passed == only_fails(None), details
    assert "lines are changed" in details["vocabulary"]


def test_vocabulary_of_another_script_fails_vocabulary(untrained, folder, tmp_path):
    """The vocabulary is that of the run folder, which stays unchanged."""
    greek = ["ένα δύο τρία τέσσερα πέντε", "έξι επτά οκτώ εννέα δέκα", "είκοσι τριάντα σαράντα"]
    Tokenizer.train_on_lines(greek, 280, tmp_path / "tokenizer.json")
    (tmp_path / "config.yaml").write_text(recipe().to_yaml())
    RunFolder(tmp_path).add_owned_files("config.yaml", "tokenizer.json", "tokenizer.spm")
    before = names(tmp_path)
    passed, details = verdicts(recipe(), folder, run_folder=tmp_path)
    assert passed == only_fails("vocabulary")
    assert "280 source tokens" in details["vocabulary"]
    assert names(tmp_path) == before


@pytest.mark.long
def test_missing_worker_fails_devices_within_the_timeout(folder, monkeypatch):
    """A real check of the devices, which gives up after its timeout."""
    mine, dead = workers._free_ports(2)
    cluster = {"worker": [f"127.0.0.1:{mine}", f"127.0.0.1:{dead}"]}
    task = {"type": "worker", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    findings = doctor.run_checks(recipe(), folder, timeout=5.0, print_fn=lambda line: None)
    passed = {finding.name: finding.passed for finding in findings}
    assert passed == only_fails("devices", not_run=["memory", "learning"])
    assert f"127.0.0.1:{dead}" in findings[0].detail
    assert "within 5 s" in findings[0].detail


@pytest.mark.long
def test_several_devices_are_checked_in_a_process(monkeypatch):
    """A cluster of one worker answers; two devices of a CPU need no advice on GPUs."""
    (port,) = workers._free_ports(1)
    task = {"type": "worker", "index": 0}
    config = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": task}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    starts_fast = SimpleNamespace(**vars(subprocess) | {"run": run})
    monkeypatch.setattr(device_check, "subprocess", starts_fast)
    passed, detail = device_check.check_devices("multi_worker", None, 200.0)
    assert passed and detail.startswith("replicas: 1, workers: 1, here")
    monkeypatch.delenv("TF_CONFIG")
    passed, detail = device_check.check_devices("mirrored", ["CPU:0", "CPU:1"], 0.01)
    assert (passed, detail) == (False, "no result within 0.01 s: give a longer `--timeout`")


def test_device_that_does_not_exist_fails_devices(folder):
    passed, details = verdicts(recipe(training={"devices": ["GPU:77"]}), folder)
    assert passed == only_fails("devices", not_run=["memory", "learning"])
    assert "GPU:77" in details["devices"]


def test_batch_that_does_not_fit_fails_memory(untrained, folder, monkeypatch):
    def fit(*args, **options):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

    monkeypatch.setattr(doctor._Checks, "memory", MEMORY)
    monkeypatch.setattr(Transformer, "fit", fit)
    passed, details = verdicts(recipe(), folder)
    assert passed == only_fails("memory")
    assert "micro_batch_tokens" in details["memory"]


@pytest.mark.long
def test_recipe_that_cannot_learn_fails_learning(untrained, folder, monkeypatch):
    """Smoothing of 0.999: the minimum of the cross-entropy is almost ln V."""
    monkeypatch.setattr(doctor._Checks, "learning", LEARNING)
    passed, details = verdicts(recipe(training={"label_smoothing": 0.999}), folder)
    assert passed == only_fails("learning"), details


def test_disk_too_full_for_the_checkpoints_fails_disk(untrained, folder, monkeypatch):
    """Needs 6 checkpoints of weights, Adam's two moments in float32 and its count, to the byte."""
    width, inner, vocabulary = 64, 64, 330
    attention = 4 * (width + 1) * width
    feed_forward = 2 * width * inner + width + inner
    encoder, decoder = (
        attention + feed_forward + 4 * width,
        2 * attention + feed_forward + 6 * width,
    )
    needed = 6 * (3 * 4 * (encoder + decoder + vocabulary * width) + 8)
    for free, enough in ((needed - 1, False), (needed, True)):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, usage=usage: usage)
        passed, _ = verdicts(recipe(), folder)
        assert passed == only_fails(None if enough else "disk")


@pytest.mark.parametrize(
    ("passed", "exit_code"), [([True, True], 0), ([True, False], 1), ([False, None], 1)]
)
def test_exit_code_says_whether_all_checks_passed(monkeypatch, passed, exit_code):
    findings = [doctor.Finding("data", value, "", 0.0) for value in passed]
    monkeypatch.setattr(doctor, "run_checks", lambda *args, **options: findings)
    assert cli("doctor", "number_names").exit_code == exit_code


def test_symbols_that_training_lacks_or_nothing_separates_are_named():
    unseen = [("acc", "x y")]
    found = doctor._Checks._symbols(
        SimpleNamespace(
            sample=SimpleNamespace(items=[("ab", "xyz"), ("b", "xx"), ("a", "x")]),
            tokenizers=(Tokenizer.characters(["a", "b"]), Tokenizer.words(["x", "xx"])),
            recipe=SimpleNamespace(data=SimpleNamespace(validation=[], pairs=lambda *_: unseen)),
            folders=["."],
        )
    )
    assert [line[:38] for line in found] == [
        "most targets are one word: separate sy",
        "2 symbols of the source of `validation",
        "1 symbols of the target of `validation",
    ]
