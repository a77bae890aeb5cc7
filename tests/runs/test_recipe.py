"""Recipes: errors name the field, and which keys may change on resume."""

import dataclasses
import json

import jsonschema
import pytest
import yaml

from keras_transformer.runs.recipe import (
    DataSettings,
    Recipe,
    packaged_recipes,
    recipe_text,
)
from keras_transformer.runs.recipe_schema import recipe_schema
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.settings import read_yaml

DATA = {
    "train": {"number_names": "train", "size": 100},
    "validation": {"number_names": "held_out", "size": 10},
}
# Another valid value of every key of `training`, and whether a run may resume with it.
OTHER = {
    "batch_tokens": (512, False),
    "shapes": (4, False),
    "epochs": (30, True),
    "optimizer": ("adafactor", False),
    "learning_rate": (1, False),  # an int for a float
    "warmup_steps": (10, False),
    "schedule": ("cosine", False),
    "decay_epochs": (30, False),
    "min_learning_rate": (1e-5, False),
    "beta_1": (0, False),
    "beta_2": (0.999, False),
    "adam_epsilon": (1e-8, False),
    "weight_decay": (0.01, False),
    "label_smoothing": (0, False),
    "r_drop": (5, False),
    "subword_regularization": (0.1, False),
    "word_dropout": (0.1, False),
    "protected_text": (0.1, False),
    "clip_norm": (1, False),
    "monitor": ("loss", False),
    "patience": (3, True),
    "precision": ("mixed_bfloat16", False),
    "seed": (0, False),
    "distribution": ("mirrored", True),
    "devices": (["GPU:0"], True),
    "accumulation_steps": (2, True),
    "micro_batch_tokens": (512, True),
    "checkpoint_updates": (10, True),
    "keep_last": (2, True),
    "keep_best": (0, True),
    "average": (5, False),
    "ema_momentum": (0.9, False),
    "init_from": ("runs/other", False),
    "freeze": (["encoder"], False),
    "lora_rank": (4, False),
    "lora_layers": (["key"], False),
    "translation_sample": (10, False),
    "translation_epochs": (2, False),
}

COSINE = {"schedule": "cosine", "decay_epochs": 20, "learning_rate": 0.001}
OF_A_RUN = {"init_from": "runs/other"}
# What a key needs.
NEEDED = {
    **dict.fromkeys(("schedule", "decay_epochs"), COSINE),
    **dict.fromkeys(("freeze", "lora_rank"), OF_A_RUN),
    "lora_layers": OF_A_RUN | {"lora_rank": 2},
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"data": DATA, "model": {"preset": "tiny"}}))
    return str(path)


def recipe(data=DATA, **sections):
    return Recipe.from_dict({"data": data, **sections})


SEARCH = {"beam_size": 6, "length_penalty": None, "suppressed_tokens": [1, 5], "force_end": True}


def test_run_resumes_with_another_search():
    other = recipe(search=SEARCH)
    assert not other.conflicts(recipe()) and not recipe().conflicts(other)
    assert Recipe.from_dict(read_yaml(other.to_yaml())) == other != recipe()


@pytest.mark.parametrize("name", OTHER)
def test_changed_key_is_as_if_it_stood_in_the_file_and_may_forbid_a_resume(file, name):
    value, may_change = OTHER[name]
    settings = NEEDED.get(name, {}) | {name: value}
    other = recipe(model={"preset": "tiny"}, training=settings)
    changes = [f"training.{key}={json.dumps(value)}" for key, value in settings.items()]
    assert Recipe.load(file, changes) == Recipe.from_dict(read_yaml(other.to_yaml())) == other
    assert other != Recipe.load(file)
    for one, before in ((other, Recipe.load(file)), (Recipe.load(file), other)):
        assert (not one.conflicts(before)) == may_change


@pytest.mark.parametrize(
    "change", ["data.train", "data.validation", "data.test", "vocabulary.files"]
)
def test_one_path_is_a_list_of_one(file, change):
    one, listed = (Recipe.load(file, [f"{change}={path}"]) for path in ("a.tsv", "[a.tsv]"))
    assert one == listed and not one.conflicts(listed)
    section, key = change.split(".")
    assert getattr(getattr(one, section), key) == ["a.tsv"]


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        (["train.en", "train.de"], ["en", "de"]),
        (["train.en.gz", "train.deu.zst"], ["en", "deu"]),
        (["source.txt", "target.txt"], [None, None]),
        (["train.src.gz", "train.tgt.gz"], [None, None]),
        (["en/train.tc", "de/train.tc"], [None, None]),
        (["source.gz", "target.xz"], [None, None]),
    ],
)
def test_languages_are_those_at_the_ends_of_two_files(files, codes):
    assert recipe(data=DATA | {"train": files}).data.languages() == codes


def test_only_the_paths_of_a_recipe_are_globs_not_the_folder_of_the_data(tmp_path):
    for folder, text in (("data [12]", "right"), ("data 1", "wrong")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a [x].tsv").write_text(f"{text}\t{text}\n")
    for name in ("a [x].tsv", "*.tsv"):
        pairs = DataSettings(train=name).pairs("train", tmp_path / "data [12]")
        assert list(pairs) == [("right", "right")]
    (tmp_path / "data 1" / "b.tsv").write_text("wrong\twrong\n")
    with pytest.raises(FileNotFoundError):
        DataSettings(train="b.tsv").pairs("train", tmp_path / "data [12]")
    with pytest.raises(IsADirectoryError):
        DataSettings(train="").pairs("train", tmp_path)


def test_init_from_names_the_same_run_in_every_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = recipe(training={"init_from": "runs/other"}).to_yaml()
    monkeypatch.chdir("/")
    read = Recipe.from_dict(read_yaml(written))
    assert read.training.init_from == str(tmp_path / "runs" / "other")
    assert not read.conflicts(recipe(training={"init_from": f"{tmp_path}/runs/../runs/other/"}))


def test_recipe_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "recipe.yaml").write_text("\ufeff" + recipe().to_yaml(), "utf-8")
    assert Recipe.load(str(tmp_path / "recipe.yaml")) == recipe()


def test_every_training_key_is_tested():
    assert list(OTHER) == [field.name for field in dataclasses.fields(recipe().training)]


def test_recipe_with_other_data_vocabulary_or_model_is_another_run():
    for name in packaged_recipes():
        assert Recipe.load(name).conflicts(recipe())
    assert recipe(model={"preset": "tiny"}).conflicts(recipe())
    assert recipe(vocabulary={"size": 500}).conflicts(recipe())
    assert not recipe().conflicts(recipe())


# Sections 5.1 to 5.4 and 6.1, Table 3: (d_model, d_ff, h, dropout, checkpoints averaged).
PAPER = {"wmt_base": (512, 2048, 8, 0.1, 5), "wmt_big": (1024, 4096, 16, 0.3, 20)}


@pytest.mark.parametrize("name", PAPER)
def test_recipe_of_wmt_has_the_numbers_of_the_paper(name):
    found = Recipe.load(name)
    model, training = found.model_config(found.vocabulary.size), found.training
    sizes = (model.hidden_dim, model.intermediate_dim, model.num_heads, model.dropout)
    assert (*sizes, training.average) == PAPER[name]
    assert model.num_encoder_layers == model.num_decoder_layers == 6
    assert not model.normalize_first
    assert (found.vocabulary.size, found.vocabulary.joint) == (37_000, True)
    assert (training.batch_tokens, training.warmup_steps) == (25_000, 4_000)
    assert training.learning_rate is None  # equation 3
    assert (training.beta_1, training.beta_2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert training.label_smoothing == 0.1


@pytest.mark.parametrize("preset", ["tiny", "base", "big"])
def test_two_vocabularies_share_no_matrix_unless_asked_to(preset):
    values = {"data": {"train": ["a", "b"]}, "vocabulary": {"joint": False}}
    found = Recipe.from_dict({**values, "model": {"preset": preset}}).model_config(500, 400)
    assert (found.tie_embeddings, found.source_vocabulary_size) == ("decoder", 400)
    model = {"preset": preset, "tie_embeddings": "none"}
    assert Recipe.from_dict({**values, "model": model}).model_config(9, 8).tie_embeddings == "none"
    joint = Recipe.from_dict({**values, "vocabulary": {}, "model": {"preset": preset}})
    assert joint.model_config(500).tie_embeddings == "all"


@pytest.mark.parametrize("preset", ["tiny", "base", "big"])
def test_num_layers_takes_the_place_of_the_layers_of_a_preset(preset):
    model = {"preset": preset, "num_layers": 3}
    for changes, layers in (({}, (3, 3)), ({"num_decoder_layers": 1}, (3, 1))):
        made = recipe(model=model | changes).model_config(500)
        assert (made.num_encoder_layers, made.num_decoder_layers) == layers


def of(*corpora, **data):
    return {"data": DATA | {"train": list(corpora)} | data}


A, B = ({"file": f"{name}.tsv", "tag": f"<{name}>"} for name in "ab")
LEARNED = {"preset": "tiny", "positions": "learned", "max_sequence_length": 100}
REFUSED = [
    (of({"file": "a.tsv", "weight": 0.5}), "`train`: `weight` must be a whole number: for half a"),
    (of({"file": "a.tsv", "weight": -1}), "`weight` must be a whole number"),
    (of({"file": "a.tsv", "weights": 2}), "Unknown key of CorpusSettings: 'weights'. Did you mean"),
    (of({"file": "a.tsv", "target": "b"}), "A corpus must have .* Received: file, target"),
    (of({"weight": 2}), "A corpus must have .* Received: none"),
    (of({"number_names": "test", "size": 3}), "`number_names` must be one of train, held_out"),
    (of({"file": "a.csv", "columns": ["en"]}), r"`columns` must be two names"),
    (of({"file": "a.tmx", "languages": [1, 2]}), r"`languages` must be \[source, target\]"),
    (of({"file": "a.po", "accelerator": "@"}), "`accelerator` must be one of &, _, ~"),
    *[(of({"file": "a", "tag": tag}), "`tag` must be a name in angle brackets")
      for tag in ("a", "<a b>", "<s>", "<0x41>", "<unk>", "")],
    (of(A, B), "`tag` must be one of <a>, <b>. Received: tag=None"),
    (of(A, {"file": "b.tsv", "weight": 0}), "`tag` must be one of <a>. Received: tag=None"),
    (of(A, {"file": "b.tsv"}, tag="<b>"), "`tag` must be one of <a>. Received: tag='<b>'"),
    (of({"file": "a.tsv"}, tag="<b>"), "none: no corpus has a tag"),
    (of(A, tag="<a>", test=A), "Only corpora of `train` may have `weight` and `tag`"),
    (of(A, "b.tsv", tag="<a>"), "`train`: CorpusSettings must be a mapping .*'b.tsv'"),
    (of(tag="<a>"), r"`train` must be \[source, target\], \[one.tsv\] or mappings"),
    (of(A, tag="<a>", clean={"identic": True}), "Unknown key of CleaningSettings: 'identic'. Did"),
    (
        {
            "vocabulary": {"source": "words"},
            "data": {"train": [{"file": "a.tsv", "tag": "<a>"}], "tag": "<a>"},
        },
        "`tag` of `data` needs `source: subwords`",
    ),
    ({"vocabulary": {"source": "words", "protected_symbols": 2}}, "of subwords"),
    ({"vocabulary": {"source": "words", "normalization": "nfkc"}}, "nfc, nfd, identity for words"),
    ({"vocabulary": {"source": "words", "symbols": ["<en>"]}}, "if a side has characters"),
    ({"training": COSINE | {"learning_rate": None}}, "`learning_rate` must be given"),
    ({"training": {"schedule": "cosine"}}, "`decay_epochs` must be given with"),
    ({"training": COSINE | {"epochs": 21}}, "`epochs` must be at most `decay_epochs`, 20"),
    (
        {"training": {"learning_rate": 0.001, "min_learning_rate": 0.01}},
        "`min_learning_rate` must be at most `learning_rate`, 0.001",
    ),
    ({"training": {"micro_batch_tokens": 9, "accumulation_steps": 2}}, "`micro_batch_tokens`"),
    ({"data": {"train": DATA["train"]}, "training": {"monitor": "val_loss"}}, "`validation`"),
    ({"data": {"train": DATA["train"]}, "training": {"translation_sample": 9}}, "`validation`"),
    (
        {"vocabulary": {"model_type": "unigram"}, "training": {"subword_regularization": 0.1}},
        "needs `model_type: bpe`.*model_type=unigram",
    ),
    ({"model": LEARNED}, "max_length.*max_sequence_length.*=256.*=100.*Lower"),
    ({"search": {"beam_size": 0}}, "section `search`: `beam_size` must be at least 1. Received: b"),
    ({"search": {"beam": 4}}, "section `search`: Unknown key of SearchSettings: 'beam'. Did you m"),
    ({"search": {"processors": []}}, "section `search`: Give Python objects to `load_run`. Receiv"),
    ({"search": {"sampler": None}}, "section `search`: Give Python objects to `load_run`. Receive"),
    ({"search": None}, "`search` must be of type dict"),
]  # fmt: skip


@pytest.mark.parametrize("sections, named", REFUSED)
def test_fields_that_do_not_go_together_are_named(sections, named):
    with pytest.raises(ValueError, match=named):
        recipe(**sections)


def test_what_decides_elsewhere_is_not_refused():
    unigram = {"model_type": "unigram", "files": ["a.model"]}  # the file decides
    recipe(vocabulary=unigram, training={"subword_regularization": 0.1})
    recipe(data=DATA | {"max_length": 100}, model=LEARNED)
    recipe(model=LEARNED | {"positions": "sinusoidal"})
    ids = {"end_token_id": 9000, "added_tokens": 9000, "output_bias": True}
    for decides in ({"vocabulary": {"files": ["a.model"]}}, {"training": OF_A_RUN}):
        assert recipe(model=ids, **decides).model_config(9001).end_token_id == 9000


def test_values_of_changes_are_yaml_and_later_ones_win(file):
    changes = ["data.train.size=7", "data.test=[a=b.en, 'c: d.de']", "training.clip_norm=1e-3"]
    changes += ["training.epochs=3", " training.epochs =4", "training.patience="]
    loaded = Recipe.load(file, changes)
    assert loaded.data.train == {"number_names": "train", "size": 7}
    assert loaded.data.test == ["a=b.en", "c: d.de"]
    training = loaded.training
    assert (training.clip_norm, training.epochs, training.patience) == (0.001, 4, None)


def test_change_does_not_reach_an_alias_of_the_same_mapping(tmp_path):
    path = tmp_path / "alias.yaml"
    split = "{number_names: train, size: 9}"
    path.write_text(f"data: {{train: &pairs {split}, validation: *pairs}}")
    loaded = Recipe.load(str(path), ["data.train.size=5"])
    assert (loaded.data.train["size"], loaded.data.validation["size"]) == (5, 9)


@pytest.mark.parametrize(
    "change, named",
    [
        ("training.epoch=3", "Unknown key of TrainingSettings: 'epoch'. Did you mean 'epochs'?"),
        ("model.num_head=3", "Unknown key of TransformerConfig: 'num_head'. Did you mean"),
        ("trainin.epochs=3", "Unknown key of Recipe: 'trainin'. Did you mean 'training'?"),
        ("training.epochs=three", "`epochs` must be of type int. Received: epochs='three'"),
        ("training.devices=[a", "not valid YAML: line 1"),
        ("training.epochs.more=3", "`epochs` must be of type int"),
        ("model.preset.x=3", "`model.preset` must be a mapping of keys to values. Received: tiny"),
        ("epochs=3", "must be SECTION.KEY=VALUE"),
        ("training.epochs", "must be SECTION.KEY=VALUE"),
        ("training.=3", "must be SECTION.KEY=VALUE"),
    ],
)
def test_wrong_change_is_named_in_one_line(file, change, named):
    with pytest.raises(ValueError) as caught:
        Recipe.load(file, [change])
    message = str(caught.value)
    assert message.startswith(f"{file} with {change}: ") and named in message
    assert "\n" not in message


def test_keys_that_forbid_a_resume_are_named_with_both_values():
    one = recipe(training={"epochs": 3, "seed": 7}, model={"preset": "tiny"})
    assert one.conflicts(recipe(model={"dropout": 0.2})) == [
        "model.preset is not set there, tiny here",
        "model.dropout is 0.2 there, not set here",
        "training.seed is 1 there, 7 here",
    ]


@pytest.mark.parametrize(
    "batch_tokens, micro_batch_tokens, replicas, expected",
    [(4096, 1024, 1, 4), (4096, 1024, 2, 2), (4096, 1000, 1, 5), (4096, 5000, 1, 1), (9, 2, 4, 2)],
)
@pytest.mark.parametrize("passes, r_drop", [(1, 0.0), (2, 5.0)])
def test_micro_batches_follow_from_the_tokens_a_device_takes(
    batch_tokens, micro_batch_tokens, replicas, expected, passes, r_drop
):
    settings = {"batch_tokens": batch_tokens, "micro_batch_tokens": passes * micro_batch_tokens}
    settings["r_drop"] = r_drop
    assert recipe(training=settings).training.micro_batches(replicas) == expected


@pytest.mark.tensorflow_only
def test_recipe_knows_the_strategies_there_are():
    from keras_transformer.training.distribution import STRATEGIES

    assert TrainingSettings.rule("distribution").choices == STRATEGIES


# === The schema for editors ===


@pytest.fixture(scope="module")
def schema():
    jsonschema.Draft202012Validator.check_schema(recipe_schema())
    return jsonschema.Draft202012Validator(recipe_schema())


@pytest.mark.parametrize("name", packaged_recipes())
def test_schema_accepts_the_packaged_recipes(schema, name):
    schema.validate(read_yaml(recipe_text(name)))


@pytest.mark.parametrize(
    ("values", "is_right"),
    [
        ({"data": {"train": "both.tsv"}}, True),
        ({"data": {"train": ["a.en", "a.de"], "clean": {"duplicates": True}}}, True),
        ({"data": {"train": "a.tsv"}, "vocabulary": {"size": 300, "symbols": None}}, True),
        ({"data": {"train": "a.tsv"}, "model": {"preset": "tiny", "num_layers": 2}}, True),
        ({"data": {"train": "a.tsv"}, "search": {"alpha": -10, "length_penalty": None}}, True),
        ({}, False),
        ({"data": {}}, False),
        ({"data": {"train": "a.tsv"}, "training": {"epoch": 3}}, False),
        ({"data": {"train": "a.tsv"}, "training": {"epochs": 0}}, False),
        ({"data": {"train": "a.tsv"}, "training": {"epochs": "3"}}, False),
        ({"data": {"train": "a.tsv"}, "training": {"label_smoothing": 1}}, False),
        ({"data": {"train": "a.tsv"}, "search": {"alpha": 11}}, False),
        ({"data": {"train": "a.tsv"}, "search": {"stopping": "never"}}, False),
        ({"data": {"train": "a.tsv"}, "model": {"preset": "huge"}}, False),
        ({"data": {"train": "a.tsv"}, "model": {"preset": "tiny", "num_layers": 0}}, False),
    ],
)
def test_schema_and_recipe_accept_the_same(schema, values, is_right):
    assert schema.is_valid(values) is is_right
    if is_right:
        Recipe.from_dict(values)
    else:
        with pytest.raises(ValueError):
            Recipe.from_dict(values)
