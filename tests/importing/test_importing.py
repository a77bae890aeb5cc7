"""`import opus-mt`: run folders from both forms, what commands make of them, and bad input."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from typer.testing import CliRunner

import keras_transformer as kt
from keras_transformer.cli import app
from keras_transformer.data.number_corpus import number_names
from keras_transformer.importing.files import read_vocabulary
from keras_transformer.importing.importer import read_marian
from keras_transformer.importing.marian import weights_of
from keras_transformer.importing.marian_hub import arithmetic_of
from keras_transformer.models.transformer import load_model
from keras_transformer.runs.build import make_tokenizers
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from tests.builders import ROOT
from tests.importing import opus_models
from tests.importing.test_marian import CONFIGURATIONS, sentences

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only, pytest.mark.slow]

README = "---\nlanguage:\n- en\n- de\nlicense: cc-by-4.0\n---\nBy the University of Helsinki.\n"


DATA = Path(os.environ.get("KERAS_TRANSFORMER_DATA", ROOT.parent / "shared" / "data"))
# The fields of `config.json` that are no settings of the search.
ARCHITECTURE = (
    "model_type d_model encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim dropout "
    "encoder_attention_heads decoder_attention_heads scale_embedding activation_function "
    "pad_token_id decoder_start_token_id eos_token_id vocab_size decoder_vocab_size "
    "share_encoder_decoder_embeddings tie_word_embeddings transformers_version"
).split()
TOKENIZER_FILES = [
    f"{side}.{name}" for side in ("source", "target") for name in ("model", "vocabulary.json")
]


def cli(*words, stdin=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A folder as on the Hub, of a model with two target languages."""
    folder = tmp_path_factory.mktemp("hub") / "opus-mt-en-de"
    opus_models.write_hub(opus_models.make_marian(), folder)
    (folder / "README.md").write_text(README, "utf-8")
    return folder


@pytest.fixture(scope="module")
def run(hub, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "en_de"
    imported = cli("import", "opus-mt", hub, folder)
    assert imported.exit_code == 0, imported.output
    assert "cc-by-4.0" in imported.stderr
    assert "--target-language is one of: deu, fra" in imported.stderr
    return folder


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_forms_import_to_equal_weights(name, tmp_path):
    theirs = opus_models.make_marian(**CONFIGURATIONS[name])
    forms = [
        read_marian(write(theirs, tmp_path / form), arithmetic="marian")
        for form, write in (("hub", opus_models.write_hub), ("npz", opus_models.write_npz))
    ]
    weights = [weights_of(form) for form in forms]
    assert weights[0].keys() == weights[1].keys()
    for path, array in weights[0].items():
        np.testing.assert_array_equal(array, weights[1][path], err_msg=path)
    for field in ("config", "vocabularies", "sentencepiece_models"):
        assert getattr(forms[0], field) == getattr(forms[1], field)


def get_weights(model):
    return {weight.path: np.array(weight) for weight in model.weights}


def test_zip_file_of_helsinki_imports_to_the_run_of_the_hub(run, tmp_path):
    folder = opus_models.write_npz(opus_models.make_marian(), tmp_path / "unpacked")
    archive = tmp_path / "opus.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.iterdir():
            file.write(path, path.name)
    imported = cli("import", "opus-mt", archive, tmp_path / "run")
    assert imported.exit_code == 0, imported.output
    ours, theirs = (load_model(folder / "model.keras") for folder in (tmp_path / "run", run))
    for path, weight in get_weights(ours).items():
        np.testing.assert_array_equal(weight, get_weights(theirs)[path], err_msg=path)
    for name in TOKENIZER_FILES:
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes()


def test_zip_file_that_is_damaged_or_holds_two_models_is_refused(npz, tmp_path):
    with zipfile.ZipFile(tmp_path / "opus.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for path in npz.iterdir():
            file.write(path, path.name)
    content = bytearray((tmp_path / "opus.zip").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 50] = bytes(50)
    (tmp_path / "flipped.zip").write_bytes(content)
    assert_refused(tmp_path / "flipped.zip", "flipped.zip is damaged", tmp_path)
    (tmp_path / "cut.zip").write_bytes(content[:-100])
    assert_refused(tmp_path / "cut.zip", "cut.zip is damaged", tmp_path)
    with zipfile.ZipFile(tmp_path / "opus.zip", "a") as file:
        file.write(npz / "source.spm", "other/source.spm")
    assert_refused(tmp_path / "opus.zip", "must hold one model", tmp_path)


HELSINKI_ZIP = "https://object.pouta.csc.fi/OPUS-MT-models/en-de/opus-2020-02-26.zip"


def test_licence_and_attribution_are_what_the_files_state(hub, tmp_path):
    folder = shutil.copytree(hub, tmp_path / "hub")
    rows = [
        (README.encode(), "", "cc-by-4.0", True),
        (b"---\nlicense: apache-2.0\n---\nOurs.", "", "apache-2.0", False),
        (b"\xff no head", "", "not stated", False),
        (b"\xff no head", "Attribution 4.0 International\n", "cc-by-4.0", False),
        (HELSINKI_ZIP.encode(), "", "not stated", True),
        (b"base_model: Helsinki-NLP/opus-mt-en-de", "", "not stated", True),
    ]
    for readme, text, licence, is_helsinki in rows:
        (folder / "README.md").write_bytes(readme)
        (folder / "LICENSE").write_text(text, "utf-8")
        origin = read_marian(folder).origin
        assert origin["license"] == licence
        assert ("University of Helsinki" in origin["attribution"]) == is_helsinki
        assert is_helsinki or origin["attribution"] == "not stated"


NEW = {"transformers_version": "4.22.0.dev0"}
ARITHMETIC = [
    # Name, config.json, tokenizer_config.json, README.md, what is decided and why.
    ("Helsinki-NLP/opus-mt-en-de", NEW, {}, "", "marian", "was converted by Helsinki"),
    ("Helsinki-NLP/opus-mt-en-de@v1", NEW, {}, "base_model: x", "marian", "converted by Helsinki"),
    ("me/opus-mt-en-de", NEW, {}, "", "transformers", "nothing says"),
    ("opus-mt-en-de", NEW, {}, "", "transformers", "nothing says"),
    ("x", {}, {}, "base_model: Helsinki-NLP/opus-mt-en-de", "transformers", "`base_model`"),
    ("x", {}, {}, f"* download original weights: {HELSINKI_ZIP}", "marian", "README.md links"),
    ("x", {}, {}, "", "marian", "first conversions"),
    # Saved by `transformers`: as it was, or fine-tuned.
    (
        "x",
        NEW | {"_name_or_path": "Helsinki-NLP/opus-mt-en-de"},
        {},
        HELSINKI_ZIP,
        "transformers",
        "saved what it had loaded from Helsinki-NLP/opus-mt-en-de",
    ),
    (
        "x",
        NEW | {"_name_or_path": "/tmp/Helsinki-NLP/opus-mt-tc-big-fr-en"},
        {},
        "",
        "marian",
        "Helsinki converted /tmp/",
    ),
    ("x", NEW, {"name_or_path": "marian-models/opus/fr-en"}, "", "marian", "from marian-models"),
    ("x", NEW, {"name_or_path": "Helsinki-NLP/opus-mt-fr-en"}, "", "transformers", "nothing"),
]


@pytest.mark.parametrize("row", ARITHMETIC)
def test_files_of_the_hub_tell_whose_arithmetic_the_weights_need(row):
    *told, kind, why = row
    found = arithmetic_of(*told)
    assert found[0] == kind
    assert why in found[1]


@pytest.mark.parametrize("name", ["opus-mt-en-mg", "opus-mt-tc-big-fr-en"])
def test_published_files_need_the_arithmetic_of_marian(name):
    folder = DATA / "opus_mt_tokenizers" / name
    if not folder.is_dir():
        pytest.skip(f"no OPUS-MT files in {DATA}; set KERAS_TRANSFORMER_DATA")
    files = (json.loads((folder / f"{n}.json").read_text()) for n in ("config", "tokenizer_config"))
    assert arithmetic_of(name, *files, "")[0] == "marian"


def test_arithmetic_is_printed_and_can_be_chosen(hub, tmp_path):
    for options, epsilon, line in (
        ((), 1e-5, "Arithmetic of transformers: nothing says"),
        (("--arithmetic", "marian"), 1e-6, "Arithmetic of marian: chosen."),
    ):
        imported = cli("import", "marian", hub, tmp_path / str(epsilon), *options)
        assert imported.exit_code == 0, imported.output
        assert line in imported.stderr
        config = load_model(tmp_path / str(epsilon) / "model.keras").config
        assert config.layer_norm_epsilon == epsilon
        assert (config.positions, config.predict_padding) == (
            ("sinusoidal", True) if epsilon == 1e-5 else ("tensor2tensor", False)
        )
    assert_refused(hub, "`arithmetic` must be 'marian' or", tmp_path, "--arithmetic", "other")


SEARCHES = [
    # config.json, generation_config.json, settings that differ, end of a printed line.
    ({}, {}, {}, ""),
    (
        {"num_beams": 4, "max_length": 512, "bad_words_ids": [[125]], "forced_eos_token_id": 0},
        {"num_beams": 6, "length_penalty": 0.6, "early_stopping": True, "max_length": None},
        {
            **{"beam_size": 6, "alpha": 0.6, "stopping": "first_beams", "force_end": True},
            **{"extra_length": 511, "max_length": 511},
        },
        "",
    ),
    (
        {"bad_words_ids": [[125], [7], [8, 9]], "max_length": 20, "do_sample": True},
        {"max_new_tokens": 30},
        {"suppressed_tokens": (7,), "extra_length": 30, "max_length": 30},
        "our search has no equal of do_sample=True, bad_words_ids=[[8, 9]]",
    ),
]


@pytest.mark.parametrize("row", SEARCHES)
def test_files_of_the_hub_set_the_search(row, hub, tmp_path):
    config, generation, changes, line = row
    folder = shutil.copytree(hub, tmp_path / "hub")
    old = json.loads((folder / "config.json").read_text("utf-8"))
    kept = {name: value for name, value in old.items() if name in ARCHITECTURE}
    (folder / "config.json").write_text(json.dumps(kept | config), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    read = read_marian(folder)
    usual = {"beam_size": 1, "length_penalty": "mean", "alpha": 1.0, "stopping": "exhaustive"}
    usual |= {"suppressed_tokens": (), "force_end": False}
    assert read.search == usual | changes
    assert " ".join(read.notes).endswith(line)
    kt.import_marian(folder, tmp_path / "run", alpha=2.0, print_fn=str)
    settings = kt.load_run(tmp_path / "run").settings
    assert {name: getattr(settings, name) for name in read.search} == read.search
    assert kt.load_run(tmp_path / "run", beam_size=3).settings.beam_size == 3


def test_settings_that_are_wrong_write_no_run(hub, tmp_path):
    with pytest.raises(TypeError, match="beam_sise"):
        kt.import_marian(hub, tmp_path / "run", beam_sise=4)
    assert not (tmp_path / "run").exists()


def test_vocabulary_file_of_marian_is_read_as_written(tmp_path):
    path = tmp_path / "vocab.yml"
    pieces = [
        "</s>",
        "no",
        "1.0",
        "it's",
        '"',
        "\\",
        ":",
        "a: b",
        "\u2028",
        "\x85",
        "~",
        "? x",
        "é",
    ]
    quoted = [f"'{p.replace(chr(39), 2 * chr(39))}'" for p in pieces]
    quoted[4:6] = ['"\\""', '"\\\\"']
    text = "---\n" + "".join(f"{piece}: {i}\n" for i, piece in enumerate(quoted))
    path.write_bytes((text + f"no quotes: {len(pieces)}\r\n? long\n: {len(pieces) + 1}\n").encode())
    assert list(read_vocabulary(path)) == [*pieces, "no quotes", "long"]


def test_run_translates_scores_evaluates_and_plots(run, tmp_path):
    pairs = list(number_names("held_out", 6, 0))
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in pairs), "utf-8")
    files = tmp_path / "a.en", tmp_path / "a.de"
    translated = cli("translate", run, "--input", files[0], "--max-length", 9)
    assert translated.exit_code == 0, translated.output
    lines = translated.stdout.splitlines()
    assert lines == kt.load_run(run, max_length=9)([source for source, _ in pairs])
    scored = cli("score", run, *files)
    assert (scored.exit_code, len(scored.stdout.splitlines())) == (0, 6)
    evaluated = cli("evaluate", run, "--source", files[0], "--reference", files[1])
    assert evaluated.exit_code == 0, evaluated.output
    assert "chrF2" in evaluated.stdout
    plotted = cli("plot", run, "--text", pairs[0][0])
    assert plotted.exit_code == 0, plotted.output
    assert (run / "attention.png").is_file()


def test_target_language_is_the_tag_of_each_piece_of_a_line(run):
    translator = kt.load_run(run, max_length=9)
    lines = ["twenty-one", "", "two hundred and four"]
    tagged = [f">>fra<< {line}" if line else "" for line in lines]
    assert translator(lines, target_language="fra") == translator(tagged)
    assert translator(lines, target_language="fra") != translator(lines)
    vocabulary = opus_models.vocabulary()
    pieces = translator._pieces(
        tf.constant([f">>fra<< {' '.join(lines * 9)}", ">>fra<<", "one"]),
        translator._bounded(kt.SearchSettings(max_source_tokens=20)),
        False,
    )
    rows = pieces.token_ids.to_list()
    *split, empty, last = rows
    assert len(split) > 3
    assert {row[0] for row in split} == {vocabulary[">>fra<<"]}
    assert max(map(len, split)) <= 20
    whole = translator.source_tokenizer.tokenize(" ".join(lines * 9)).numpy().tolist()
    assert [token for row in split for token in row[1:-1]] == whole
    assert empty == [vocabulary["</s>"]]
    assert last[0] != vocabulary[">>fra<<"]
    # A tag takes a token of the room; a line without one has all of it.
    token_ids = translator.source_tokenizer.tokenize([lines[0], f">>fra<< {lines[0]}"])
    most = int(token_ids[0].shape[0]) + 1  # and the end token
    for line, count in ((lines[0], 1), (f">>fra<< {lines[0]}", 2)):
        settings = translator._bounded(kt.SearchSettings(max_source_tokens=most))
        assert translator._pieces(tf.constant([line]), settings, False).token_ids.nrows() == count
    with pytest.raises(ValueError, match=": deu, fra. Received: target_language=ita"):
        translator(lines, target_language="ita")


USE = """
import json, sys
sys.modules["keras_transformer"] = None  # importing it would fail
import tensorflow as tf
import tensorflow_text

folder, lines = json.loads(sys.stdin.read())
served = tf.saved_model.load(folder)
found = served.serve(tf.constant(lines))["translation"].numpy()
tagged = served.translate_n_best(tf.constant(lines[:-1]), target_language=tf.constant(["fra"]))
print(json.dumps([
    [text.decode() for text in texts]
    for texts in (found, tagged["translations"][:, 0].numpy())
]))
"""


def test_saved_model_gives_the_same_strings_without_the_package(run, tmp_path):
    exported = cli("export", run, tmp_path / "served", "--max-length", 9)
    assert exported.exit_code == 0, exported.output
    lines = [*sentences(6), "", ">>deu<< one"]
    command = [sys.executable, "-P", "-c", USE]
    request = json.dumps([str(tmp_path / "served"), lines])
    ran = subprocess.run(command, input=request, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    translator = kt.load_run(run, max_length=9)
    expected = [translator(lines), translator(lines[:-1], target_language="fra")]
    assert json.loads(ran.stdout) == expected
    card = json.loads((tmp_path / "served" / "model_card.json").read_text("utf-8"))
    assert card["license"] == "cc-by-4.0"
    assert "University of Helsinki" in card["origin"]["attribution"]
    assert card["origin"]["name"] == "opus-mt-en-de"
    assert (card["source_language"], card["target_language"]) == ("en", "de")
    assert card["target_languages"] == ["deu", "fra"]


def test_ctranslate2_finds_the_greedy_translations(run, tmp_path):
    import ctranslate2

    exported = cli("export", run, tmp_path / "ct2", "--format", "ctranslate2")
    assert exported.exit_code == 0, exported.output
    translator = kt.load_run(run, beam_size=1, max_length=12, force_end=False)
    lines = sentences(100)
    tokenizer = translator.source_tokenizer
    pieces = [
        [t.decode() for t in tokenizer.tokens(row).numpy()] for row in tokenizer.tokenize(lines)
    ]
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), intra_threads=1)
    found = engine.translate_batch(
        pieces, beam_size=1, max_decoding_length=12, min_decoding_length=0, max_input_length=0
    )
    ours = translator(lines, n_best=1)
    tokens = [[t for t in best.tokens if t != "</s>"] for (best,) in ours]
    assert tokens == [one.hypotheses[0] for one in found]


def test_ctranslate2_converter_for_marian_gives_the_same_model(run, tmp_path):
    """CTranslate2 reads Marian's arrays by itself: an oracle for the names and their meaning."""
    import ctranslate2

    folder = opus_models.write_npz(opus_models.make_marian(), tmp_path / "npz")
    vocabulary = str(folder / "opus.vocab.yml")
    converter = ctranslate2.converters.MarianConverter(
        str(folder / "opus.model1.npz"), [vocabulary, vocabulary]
    )
    converter.convert(str(tmp_path / "theirs"))
    # It gives Marian's weights the positions of `transformers`.
    ours = kt.import_marian(folder, arithmetic="transformers", suppressed_tokens=())
    kt.export_ctranslate2(ours, tmp_path / "ours")
    tokenizer = kt.load_run(run).source_tokenizer
    lines = tokenizer.tokenize(sentences(100))
    pieces = [[t.decode() for t in tokenizer.tokens(row).numpy()] for row in lines]
    found = [
        ctranslate2.Translator(str(tmp_path / side), intra_threads=1).translate_batch(
            pieces, beam_size=4, max_decoding_length=12, max_input_length=0, return_scores=True
        )
        for side in ("ours", "theirs")
    ]
    ours, theirs = ([one.hypotheses for one in side] for side in found)
    assert ours == theirs
    scores = np.array([[one.scores[0] for one in side] for side in found])
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-4)


def test_name_on_the_hub_is_downloaded(hub, tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def snapshot_download(name, *, revision, allow_patterns, local_dir):
        calls.append((name, revision))
        for path in {path for pattern in allow_patterns for path in hub.glob(pattern)}:
            shutil.copy(path, local_dir)
        return str(local_dir)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    imported = cli("import", "opus-mt", "Helsinki-NLP/opus-mt-en-de", "run")
    assert imported.exit_code == 0, imported.output
    assert calls == [("Helsinki-NLP/opus-mt-en-de", None)]
    origin = RunFolder("run").origin()
    assert origin["name"] == "Helsinki-NLP/opus-mt-en-de"
    assert "Arithmetic of marian: Helsinki-NLP/opus-mt-en-de was" in imported.stderr
    assert [origin["source_language"], origin["target_language"]] == ["en", "de"]

    kt.import_marian("Helsinki-NLP/opus-mt-en-de@v1.0", "pinned")
    assert calls[1:] == [("Helsinki-NLP/opus-mt-en-de", "v1.0")]
    assert RunFolder("pinned").origin()["name"] == "Helsinki-NLP/opus-mt-en-de@v1.0"
    assert RunFolder("pinned").origin()["target_language"] == "de"

    # A path of which the first folder is here is no name.
    (tmp_path / "models").mkdir()
    for folder in ("models/opus-mt-en-de", "./opus-mt-en-de", "../opus-mt-en-de"):
        with pytest.raises(FileNotFoundError, match="must exist. Received: '[^']*opus-mt-en-de'"):
            kt.import_marian(folder, "mistyped")
    assert len(calls) == 2

    hub = shutil.copytree(hub, tmp_path / "without_weights")
    (hub / "model.safetensors").unlink()
    refused = cli("import", "opus-mt", "Helsinki-NLP/opus-mt-en-de", "pickle")
    assert refused.exit_code == 2
    message = " ".join(refused.stderr.split())
    assert "Helsinki-NLP/opus-mt-en-de has no `model.safetensors`" in message
    assert "from_pretrained('Helsinki-NLP/opus-mt-en-de').save_pretrained('copy')" in message

    def fails(name, **_):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    refused = cli("import", "opus-mt", "Helsinki-NLP/opus-mt-en-fr", "other")
    assert refused.exit_code == 2
    assert "Hub gave no model of this name: no network" in " ".join(refused.stderr.split())
    assert not (tmp_path / "other").exists()


def assert_refused(folder, message, tmp_path, *options):
    refused = cli("import", "opus-mt", folder, tmp_path / "run", *options)
    assert refused.exit_code == 2, refused.output
    text = " ".join(refused.stderr.split())
    assert refused.stderr.count("Error:") == 1
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        raise ValueError(text)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def npz(tmp_path_factory):
    return opus_models.write_npz(opus_models.make_marian(), tmp_path_factory.mktemp("npz"))


def test_imported_run_is_fine_tuned_from_any_working_folder(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kt.import_marian(hub, "runs/en_de")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    recipe = Recipe.load("../runs/en_de/config.yaml")
    files = RunFolder("mine").tokenizer_files(joint=False)
    make_tokenizers(recipe, ".", files)
    for name in (*TOKENIZER_FILES, "origin.json"):
        assert Path("mine", name).read_bytes() == Path("../runs/en_de", name).read_bytes()


def test_folder_without_a_model_and_a_run_that_exists_are_refused(hub, run, tmp_path):
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "must hold a model", tmp_path)
    assert_refused(tmp_path / "missing", "must exist", tmp_path)
    before = (run / "model.keras").read_bytes()
    refused = cli("import", "opus-mt", hub, run)
    assert (refused.exit_code, "new or empty folder" in refused.stderr) == (2, True)
    assert (run / "model.keras").read_bytes() == before


@pytest.mark.long
def test_imported_model_is_fine_tuned_after_a_kill(tmp_path):
    """Number names: 98% exact, by the commands, killed once on the way."""
    sizes = {"d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "init_std": 0.1}
    theirs = opus_models.make_marian(is_random=False, **sizes, **layers)
    opus_models.write_hub(theirs, tmp_path / "hub")
    assert cli("import", "opus-mt", tmp_path / "hub", tmp_path / "imported").exit_code == 0
    changes = {
        "data.train": "{number_names: train, size: 8000}",
        "data.test": "{number_names: held_out, size: 300}",
        **{"training.epochs": 24, "training.learning_rate": 0.004, "training.warmup_steps": 150},
        **{"training.checkpoint_updates": 100, "training.average": 5, "model.dropout": 0.0},
    }
    words = ["train", tmp_path / "imported" / "config.yaml", "--run", tmp_path / "tuned"]
    words += [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", "from keras_transformer.cli import app; app()"]
    command += [str(word) for word in words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not list((tmp_path / "tuned").glob("checkpoints/checkpoint-*.npz")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    resumed = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert resumed.returncode == 0, resumed.stderr
    assert RunFolder(tmp_path / "tuned").origin() == RunFolder(tmp_path / "imported").origin()
    evaluated = cli("evaluate", tmp_path / "tuned", "--samples", 0)
    assert evaluated.exit_code == 0, evaluated.output
    assert RunFolder(tmp_path / "tuned").report()["exact_match"] >= 0.98


ALPHABET = "abcdefghijklmnopqrstuvwxyz äöüß ,-0123☃😀>< ▁\t\u2028éﬁ"
PREFIXES = (">>fra<<", ">>fra<< ", ">>deu<<", ">>xyz<< ", ">>a b<<", ">>", ">> <")


def hypothesis_strings(count):
    rng = random.Random(0)
    words = [word for pair in number_names("train", 300, 0) for word in " ".join(pair).split()]
    for number in range(count):
        text = "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(30)))
        if number % 2:
            text = " ".join(rng.choices(words, k=rng.randrange(1, 8)))
        yield rng.choice(PREFIXES) + text if number % 3 == 0 else text


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_tokenizer_is_that_of_transformers(hub, run):
    from transformers import MarianTokenizer

    names = "source.spm", "target.spm", "vocab.json"
    theirs = MarianTokenizer(*(str(hub / name) for name in names))
    translator = kt.load_run(run)
    texts = list(hypothesis_strings(5000))
    for ours, expected in (
        (translator.source_tokenizer, theirs(texts, add_special_tokens=False)),
        (translator.target_tokenizer, theirs(text_target=texts, add_special_tokens=False)),
    ):
        assert ours.tokenize(texts).to_list() == expected["input_ids"]
        tokens = [token.decode() for token in ours.tokens(range(len(theirs))).numpy()]
        assert tokens == theirs.convert_ids_to_tokens(range(len(theirs)))
    for text in texts[:20]:
        ids = translator.source_tokenizer.tokenize(text).numpy().tolist()
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    rng = random.Random(1)
    size = len(opus_models.vocabulary())
    rows = [[rng.randrange(size) for _ in range(rng.randrange(1, 20))] for _ in range(2000)]
    expected = theirs.batch_decode(rows, skip_special_tokens=True)
    found = translator.target_tokenizer.detokenize(rows).numpy()
    assert [text.decode() for text in found] == expected
