"""A multilingual model that learns two directions, killed and resumed."""

import sys

import pytest

import keras_transformer as kt
from keras_transformer.runs.checkpoint_folder import CheckpointFolder
from tests.importing import multilingual_models, opus_models
from tests.kills import run_killed
from tests.processes import run

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only, pytest.mark.long]

PROGRAM = "from keras_transformer.__main__ import main; main()"
KINDS = {
    "LoRA": {"lora_rank": 4, "lora_layers": ["query", "value", "feed_forward"]},
    "all weights": {"optimizer": "adafactor"},
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    multilingual_models.make_model(folder / "nllb", "nllb")
    language = {"add_language": "tyv_Cyrl", "like": "kir_Cyrl"}
    kt.import_model(folder / "nllb", folder / "run", print_fn=str, **language)
    return folder / "run"


def last_state(folder):
    path = CheckpointFolder(folder / "checkpoints").last(1)[0]
    arrays, metadata = kt.runs.read_checkpoint(path)
    losses = [(row["loss"], row["val_loss"]) for row in metadata["history"]]
    return path.name, {name: array.tobytes() for name, array in arrays.items()}, losses


@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_killed_training_of_two_directions_ends_bit_for_bit(imported, tmp_path, settings):
    changed = kt.runs.RunFolder(imported).recipe().to_dict()
    there = {"number_names": "train", "size": 300, "languages": ["eng_Latn", "deu_Latn"]}
    back = {"number_names": "held_out", "size": 300, "languages": ["deu_Latn", "tyv_Cyrl"]}
    changed["data"] |= {"train": [there, back], "max_length": 100}
    changed["data"]["validation"] = {"number_names": "held_out", "size": 40, "seed": 3}
    changed["search"] |= {"source_language": "eng_Latn", "target_language": "tyv_Cyrl"}
    changed["training"] |= {"epochs": 3, "batch_tokens": 370, "checkpoint_updates": 7, **settings}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(kt.runs.Recipe.from_dict(changed).to_yaml())
    for call in (4, 9):  # before a checkpoint, or another file, is in its place
        run_killed(PROGRAM, ["train", recipe, "--run", tmp_path / "killed"], "os.replace", call)
    for name in ("killed", "intact"):
        words = ["train", str(recipe), "--run", str(tmp_path / name)]
        ran = run([sys.executable, "-c", PROGRAM, *words], capture_output=True)
        assert ran.returncode == 0, ran.stderr
    killed, intact = (last_state(tmp_path / name) for name in ("killed", "intact"))
    assert killed == intact
    assert int(intact[0].removeprefix("checkpoint-").removesuffix(".npz")) >= 60
    tokenizers = (kt.load_run(run).source_tokenizer for run in (imported, tmp_path / "intact"))
    assert len({tokenizer.fingerprint() for tokenizer in tokenizers}) == 1
    # Another spelling of a language is another `search`, but no other batch.
    changed["search"]["source_language"] = "en"
    respelled = kt.runs.Recipe.from_dict(changed)
    kt.runs.Trainer(respelled, ".", tmp_path / "intact", print_fn=str).train()
    assert last_state(tmp_path / "intact") == intact


def test_sample_is_translated_between_the_languages_of_its_corpora(imported, tmp_path):
    """`search` names none; both corpora have the same sources."""
    changed = kt.runs.RunFolder(imported).recipe().to_dict()
    numbers = {"number_names": "held_out", "size": 2}
    corpora = [numbers | {"languages": ["eng_Latn", code]} for code in ("deu_Latn", "tyv_Cyrl")]
    changed["data"] |= {"train": corpora, "validation": corpora}
    changed["training"] |= {"translation_sample": 4, "epochs": 1}
    printed, logs = [], {}
    recipe = kt.runs.Recipe.from_dict(changed)
    trainer = kt.runs.Trainer(recipe, ".", tmp_path / "run", print_fn=printed.append)

    def evaluate(model, stream, validation, callbacks):
        kinds = {type(callback): callback for callback in callbacks}
        kinds[kt.TranslationEvaluator].on_epoch_end(0, logs)

    trainer._fit = evaluate
    trainer.train()
    sources = [source for source, _ in kt.number_names("held_out", 2)] * 2
    codes = ["deu_Latn"] * 2 + ["tyv_Cyrl"] * 2
    settings = trainer.recipe.search | {"beam_size": 1}
    translator = kt.load_run(imported, frozen=False, **settings)
    expected = translator(sources, source_language="eng_Latn", target_language=codes)
    lines = [f"{line} -> {text}" for line, text in zip(sources, expected, strict=True)]
    assert [line for line in printed if line in lines] == lines[:3]
    assert "val_bleu" in logs
