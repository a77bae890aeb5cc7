"""Imports of OPUS-MT models: runs from both forms, what commands make of them, and bad input."""

import gzip
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.data.number_corpus import number_names
from keras_transformer.decoding.long_lines import LineCutter
from keras_transformer.importing.files import read_vocabulary
from keras_transformer.importing.importer import read_model_folder
from keras_transformer.importing.marian_hub import arithmetic_of
from keras_transformer.runs.build import pairs_of, translation_sample
from keras_transformer.runs.folder import RunFolder
from tests.cli.small_run import cli, succeed
from tests.importing import opus_models
from tests.importing.opus_models import assert_same_weights, sentences, weights_of
from tests.importing.test_marian import CONFIGURATIONS
from tests.shared_data import DATA, missing

pytestmark = [opus_models.needs_torch, pytest.mark.tensorflow_only, pytest.mark.slow]

README = "---\nlanguage:\n- en\n- de\nlicense: cc-by-4.0\n---\nBy the University of Helsinki.\n"
TOKENIZER_FILES = [f"{side}.{name}" for side in ("source", "target") for name in ("json", "spm")]


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
    imported = succeed("import", "opus-mt", hub, folder)
    assert "cc-by-4.0" in imported.stderr
    assert "--target-language is one of: deu, fra" in imported.stderr
    return folder


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_both_forms_import_to_equal_weights(name, tmp_path):
    theirs = opus_models.make_marian(**CONFIGURATIONS[name])
    one, other = (
        read_model_folder(write(theirs, tmp_path / form), arithmetic="marian")
        for form, write in (("hub", opus_models.write_hub), ("npz", opus_models.write_npz))
    )
    assert_same_weights(weights_of(one), weights_of(other))
    assert one.config == other.config
    assert opus_models.tokenizer_files(one) == opus_models.tokenizer_files(other)


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
        origin = read_model_folder(folder).origin
        assert origin["license"] == licence
        assert ("University of Helsinki" in origin["attribution"]) == is_helsinki
        assert is_helsinki or origin["attribution"] == "not stated"


NEW = {"transformers_version": "4.22.0.dev0"}


def loaded(name):
    return NEW | {"_name_or_path": name}


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
    ("x", loaded("Helsinki-NLP/x"), {}, HELSINKI_ZIP, "transformers", "loaded from Helsinki-NLP/x"),
    ("x", loaded("/tmp/Helsinki-NLP/x"), {}, "", "marian", "Helsinki converted /tmp/"),
    ("x", NEW, {"name_or_path": "marian-models/opus/fr-en"}, "", "marian", "from marian-models"),
    ("x", NEW, {"name_or_path": "Helsinki-NLP/opus-mt-fr-en"}, "", "transformers", "nothing"),
]


@pytest.mark.parametrize("row", ARITHMETIC)
def test_files_of_the_hub_tell_whose_arithmetic_the_weights_need(row):
    *told, kind, why = row
    found, reason = arithmetic_of(*told)
    assert found == kind and why in reason


@pytest.mark.parametrize("name", ["opus-mt-en-mg", "opus-mt-tc-big-fr-en"])
def test_published_files_need_the_arithmetic_of_marian(name):
    folder = DATA / "opus_mt_tokenizers" / name
    if not folder.is_dir():
        pytest.skip(missing("OPUS-MT files"))
    files = (json.loads((folder / f"{n}.json").read_text()) for n in ("config", "tokenizer_config"))
    assert arithmetic_of(name, *files, "")[0] == "marian"


def test_arithmetic_is_printed_and_can_be_chosen(hub):
    for arithmetic, epsilon, positions, line in (
        (None, 1e-5, "sinusoidal", "Arithmetic of transformers: nothing says"),
        ("marian", 1e-6, "tensor2tensor", "Arithmetic of marian: chosen."),
    ):
        read = read_model_folder(hub, arithmetic=arithmetic)
        config, (note,) = read.config, read.notes
        assert note.startswith(line)
        assert (config.layer_norm_epsilon, config.positions) == (epsilon, positions)
        assert config.predict_padding == (arithmetic is None)
    with pytest.raises(ValueError, match="`arithmetic` must be 'marian' or"):
        read_model_folder(hub, arithmetic="other")


# The fields of `config.json` that are settings of the search; the others stay.
OF_THE_SEARCH = "num_beams max_length bad_words_ids forced_eos_token_id do_sample".split()
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
        "our search does not support do_sample=True, bad_words_ids=[[8, 9]]",
    ),
]


@pytest.mark.parametrize(("config", "generation", "changes", "line"), SEARCHES)
def test_files_of_the_hub_set_the_search(config, generation, changes, line, hub, tmp_path):
    folder = shutil.copytree(hub, tmp_path / "hub")
    old = json.loads((folder / "config.json").read_text("utf-8"))
    kept = {name: value for name, value in old.items() if name not in OF_THE_SEARCH}
    (folder / "config.json").write_text(json.dumps(kept | config), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
    read = read_model_folder(folder)
    usual = {"beam_size": 1, "length_penalty": "mean", "alpha": 1.0, "stopping": "exhaustive"}
    usual |= {"suppressed_tokens": (), "force_end": False}
    assert read.search == usual | changes
    assert " ".join(read.notes).endswith(line)


def test_run_has_the_search_of_the_model_and_wrong_settings_write_none(hub, run, tmp_path):
    kt.import_model(hub, tmp_path / "run", alpha=2.0, print_fn=str)
    search, settings = read_model_folder(hub).search, kt.load_run(tmp_path / "run").settings
    assert {name: getattr(settings, name) for name in search} == search
    assert kt.load_run(run, beam_size=3).settings.beam_size == 3
    with pytest.raises(TypeError, match="beam_sise"):
        kt.import_model(hub, tmp_path / "other", beam_sise=4)
    assert not (tmp_path / "other").exists()


def test_vocabulary_file_of_marian_is_read_as_written(tmp_path):
    pieces = ["</s>", "no", "1.0", "it's", ":", "a: b", "\u2028", "\x85", "~", "? x", "é"]
    quoted = [f"'{piece.replace(chr(39), 2 * chr(39))}'" for piece in pieces]
    rows = [*quoted, r'"\""', r'"\\"', '"\\\\\x96\x01\u00e9"', r'"\x96\u00e9"', "no quotes"]
    text = "---\n" + "".join(f"{piece}: {i}\n" for i, piece in enumerate(rows))
    data = f"{text[:-1]}\r\n? long\n: {len(rows)}\n".encode()
    expected = [*pieces, '"', "\\", "\\\x96\x01\u00e9", "\x96\u00e9", "no quotes", "long"]
    for name, packs in (("vocab.yml", bytes), ("vocab.yml.gz", gzip.compress)):
        (tmp_path / name).write_bytes(packs(data))
        assert list(read_vocabulary(tmp_path / name)) == expected


@pytest.mark.long
def test_attention_of_a_run_without_a_history_is_plotted(run):
    succeed("plot", run, "--text", sentences(6)[0])
    assert (run / "attention.png").is_file()


def test_target_language_is_the_tag_of_each_piece_of_a_line(run):
    translator = kt.load_run(run, max_length=9)
    lines = ["twenty-one", "", "two hundred and four"]
    tagged = [f">>fra<< {line}" if line else "" for line in lines]
    assert translator(lines, target_language="fra") == translator(tagged) != translator(lines)
    encode, ids = translator.source_tokenizer.encode, opus_models.vocabulary()

    def pieces_of(lines, most):
        cut = LineCutter(translator.source_tokenizer).cut
        pieces = [piece for row in encode(lines) for piece in cut(row, most - 1, "split")[0]]
        return [[*piece, ids["</s>"]] for piece in pieces]

    long = " ".join(lines * 9)
    *split, empty, last = pieces_of([f">>fra<< {long}", ">>fra<<", "one"], 20)
    assert len(split) > 3 and max(map(len, split)) <= 20
    assert {row[0] for row in split} == {ids[">>fra<<"]} != {last[0]}
    assert [token for row in split for token in row[1:-1]] == encode(long)
    assert empty == [ids["</s>"]]
    # A tag takes a token of the room; a line without one has all of it.
    most = len(encode(lines[0])) + 1  # and the end token
    assert [len(pieces_of([line], most)) for line in (lines[0], tagged[0])] == [1, 2]
    with pytest.raises(ValueError, match=": deu, fra. Received: target_language=ita"):
        translator(lines, target_language="ita")


def test_export_translates_to_the_language_that_it_is_asked_for(run, tmp_path):
    words = "export", run, tmp_path / "ct2", "--format", "ctranslate2", "--max-length", 9
    ran = cli(*words, "--target-language", "ita")
    assert ran.exit_code == 2 and ": deu, fra. Received: target_language=ita" in ran.stderr
    succeed(*words, "--target-language", "fra")
    exported = kt.load_translator(tmp_path / "ct2")
    without = kt.Translator(exported.engine, **exported.all_settings | {"target_language": None})
    lines = ["twenty-one", "", "two hundred and four"]
    tagged = [f">>fra<< {line}" if line else "" for line in lines]
    found, expected, other = (
        [best.text for (best,) in translate(texts, n_best=1)]
        for translate, texts in ((exported, lines), (without, tagged), (without, lines))
    )
    assert found == expected != other


@pytest.mark.long
def test_card_of_an_export_has_the_origin_and_the_languages(run, tmp_path):
    words = "--format", "ctranslate2", "--max-length", 9
    succeed("export", run, tmp_path / "ct2", *words)
    card = json.loads((tmp_path / "ct2" / "model_card.json").read_text("utf-8"))
    assert card["license"] == "cc-by-4.0"
    assert "University of Helsinki" in card["origin"]["attribution"]
    assert card["origin"]["name"] == "opus-mt-en-de"
    assert (card["source_language"], card["target_language"]) == ("en", "de")
    assert card["target_languages"] == ["deu", "fra"]


def test_ctranslate2_converter_for_marian_gives_the_same_model(tmp_path):
    """CTranslate2 reads Marian's arrays by itself: an oracle for the names and their meaning."""
    import ctranslate2

    npz = opus_models.write_npz(opus_models.make_marian(), tmp_path / "npz")
    vocabulary = str(npz / "opus.vocab.yml")
    converter = ctranslate2.converters.MarianConverter(
        str(npz / "opus.model1.npz"), [vocabulary, vocabulary]
    )
    converter.convert(str(tmp_path / "theirs"))
    # It gives Marian's weights the positions of `transformers`.
    ours = kt.import_model(npz, arithmetic="transformers", suppressed_tokens=())
    kt.export_ctranslate2(ours, tmp_path / "ours")
    tokenizer = ours.source_tokenizer
    pieces = [[tokenizer.vocabulary[i] for i in row] for row in tokenizer.encode(sentences(100))]
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


NAME = "Helsinki-NLP/opus-mt-en-de"


def test_name_on_the_hub_is_downloaded(hub, tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def snapshot_download(name, *, revision, allow_patterns, local_dir):
        calls.append((name, revision))
        if name != NAME:
            raise huggingface_hub.errors.LocalEntryNotFoundError("no network")
        for path in {path for pattern in allow_patterns for path in hub.glob(pattern)}:
            shutil.copy(path, local_dir)

    notes = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    for name in (NAME, f"{NAME}@v1.0"):
        kt.import_model(name, f"run{len(calls)}", print_fn=notes.append)
        origin = RunFolder(f"run{len(calls) - 1}").origin()
        assert origin["name"] == name
        assert [origin["source_language"], origin["target_language"]] == ["en", "de"]
    assert calls == [(NAME, None), (NAME, "v1.0")]
    assert f"Arithmetic of marian: {NAME} was" in notes[0]
    # A path of which the first folder is here is no name.
    (tmp_path / "models").mkdir()
    for folder in ("models/opus-mt-en-de", "./opus-mt-en-de", "../opus-mt-en-de"):
        with pytest.raises(FileNotFoundError, match="must exist. Received: '[^']*opus-mt-en-de'"):
            kt.import_model(folder, "mistyped")
    assert len(calls) == 2
    hub = shutil.copytree(hub, tmp_path / "without_weights")
    (hub / "model.safetensors").unlink()
    with pytest.raises(
        ValueError, match=rf"{NAME} has no .*pretrained\('{NAME}'\).save_pretrained"
    ):
        kt.import_model(NAME, "pickle")
    with pytest.raises(ValueError, match="Hub gave no model of this name: no network"):
        kt.import_model("Helsinki-NLP/opus-mt-en-fr", "other")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["models", "run0", "run1", hub.name]


def test_folder_without_a_model_and_a_run_that_exists_are_refused(hub, run, tmp_path):
    (tmp_path / "empty").mkdir()
    before = (run / "model.keras").read_bytes()
    for folder, output, message in (
        (tmp_path / "empty", tmp_path / "run", "must hold a model"),
        (tmp_path / "missing", tmp_path / "run", "must exist"),
        (hub, run, "new or empty folder"),
    ):
        refused = cli("import", "opus-mt", folder, output)
        assert refused.exit_code == 2, refused.output
        assert message in " ".join(refused.stderr.split()) and refused.stderr.count("Error:") == 1
    assert not (tmp_path / "run").exists()
    assert (run / "model.keras").read_bytes() == before


@pytest.mark.long
def test_imported_run_is_fine_tuned_from_any_working_folder(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kt.import_model(hub, "runs/en_de")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    changes = {
        "data.train": "{number_names: train, size: 500}",
        "data.validation": "{number_names: held_out, size: 50}",
        **{"training.epochs": 2, "training.warmup_steps": 1, "training.learning_rate": 1e-3},
    }
    settings = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    succeed("train", "../runs/en_de/config.yaml", "--run", "mine", *settings)
    imported, tuned = tmp_path / "runs/en_de", Path("mine")
    for name in (*TOKENIZER_FILES, "origin.json"):
        assert (tuned / name).read_bytes() == (imported / name).read_bytes()
    source, target = zip(*number_names("held_out", 50), strict=True)

    def score(run):
        scored = kt.load_run(run).score(list(source), list(target))
        return sum(each.score for each in scored)

    assert score(tuned) > score(imported)


def test_sources_of_a_known_language_are_trained_on_only_with_its_tag(run, tmp_path):
    recipe, tokenizers = RunFolder(run).recipe(), kt.load_run(run).tokenizers
    (tmp_path / "tagged.en").write_text(">>fra<< one\n", "utf-8")
    (tmp_path / "tagged.fr").write_text("un\n", "utf-8")
    tagged = {"source": "tagged.en", "target": "tagged.fr"}
    plain = {"number_names": "train", "size": 5}

    def read(corpus, search):
        changed = {"data": {"train": corpus}, "search": recipe.search | search}
        changed = kt.runs.Recipe.from_dict(recipe.to_dict() | changed)
        return len(list(pairs_of(changed, tmp_path, tokenizers, "train")))

    assert (read(plain, {}), read(tagged, {})) == (5, 1)
    for languages, search in (({"languages": ["en", "fra"]}, {}), ({}, {"target_language": "fra"})):
        assert read(tagged | languages, search) == 1
        with pytest.raises(ValueError, match="`train` must begin with the tag .* as >>deu<<"):
            read(plain | languages, search)
    values = recipe.to_dict() | {"data": {"train": tagged, "validation": tagged}}
    values["training"] |= {"translation_sample": 1}

    def sample(code):
        searched = kt.runs.Recipe.from_dict(values | {"search": {"target_language": code}})
        return translation_sample(searched, tmp_path, tokenizers)[0]

    assert sample("fra") == [(">>fra<< one", "un")]
    with pytest.raises(ValueError, match="`target_language`, >>deu<<.* begins with >>fra<<"):
        sample("deu")


ALPHABET = "abcdefghijklmnopqrstuvwxyz äöüß ,-0123☃😀>< ▁\t\u2028éﬁ"
PREFIXES = (">>fra<<", ">>fra<< ", ">>deu<<", ">>xyz<< ", ">>a b<<", ">>", ">> <")


def random_strings(count):
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
    texts = list(random_strings(3000))
    for ours, expected in (
        (translator.source_tokenizer, theirs(texts, add_special_tokens=False)),
        (translator.target_tokenizer, theirs(text_target=texts, add_special_tokens=False)),
    ):
        assert ours.encode(texts) == expected["input_ids"]
        assert ours.vocabulary[: len(theirs)] == theirs.convert_ids_to_tokens(range(len(theirs)))
    for text in texts[:20]:
        ids = translator.source_tokenizer.encode(text)
        assert ids == theirs(text, add_special_tokens=False)["input_ids"]
    rng = random.Random(1)
    size = len(opus_models.vocabulary())
    rows = [[rng.randrange(size) for _ in range(rng.randrange(1, 20))] for _ in range(2000)]
    expected = theirs.batch_decode(rows, skip_special_tokens=True)
    assert translator.target_tokenizer.decode(rows) == expected
