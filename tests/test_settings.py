"""Settings in YAML: how values are read, and errors that name field and file."""

import dataclasses
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.batch_settings import BatchSettings
from keras_transformer.data.cleaning import CleaningSettings
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.decoding.text_settings import TextSettings
from keras_transformer.models.config import TransformerConfig
from keras_transformer.runs.recipe import (
    DataSettings,
    Recipe,
    VocabularySettings,
    recipe_text,
)
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.serving.limits import Limits
from keras_transformer.settings import Settings, read_yaml, setting, setting_of
from tests.examples import examples

REQUIRED = {
    TransformerConfig: {"vocabulary_size": 100},
    DataSettings: {"train": ["a", "b"]},
    BatchSettings: {"batch_tokens": 512},
}
NONE = 0, 0.5, "1"  # of what must be a number of things
NO_SHARE = 1, -0.1, "0.1"
# Class -> field -> values that it refuses by itself.
MISTAKES = {
    TransformerConfig: {
        **dict.fromkeys(("vocabulary_size", "source_vocabulary_size", "hidden_dim"), NONE),
        **dict.fromkeys(("num_encoder_layers", "num_decoder_layers", "intermediate_dim"), NONE),
        **dict.fromkeys(("num_heads", "key_dim", "value_dim", "max_relative_position"), NONE),
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), NO_SHARE),
        **dict.fromkeys(("layer_norm_epsilon", "attention_gain"), (0.0, -1.0)),
        **dict.fromkeys(("normalize_first", "use_bias", "output_bias"), ("yes", 1)),
        **dict.fromkeys(("predict_padding", "source_end_token"), (0, None)),
        **dict.fromkeys(("pad_token_id", "start_token_id", "end_token_id"), (-1, 100)),
        "unk_token_id": (-1, 100),
        "activation": (3,),
        "positions": ("rotary", None),
        "first_position": (-1,),
        "added_tokens": (-1, 100),
        "max_sequence_length": NONE,
        "tie_embeddings": ("encoder", None),
    },
    TrainingSettings: {
        **dict.fromkeys(("batch_tokens", "epochs", "warmup_steps", "patience"), (*NONE, True)),
        **dict.fromkeys(("accumulation_steps", "micro_batch_tokens"), NONE),
        **dict.fromkeys(("checkpoint_updates", "keep_last", "translation_sample"), NONE),
        **dict.fromkeys(("learning_rate", "adam_epsilon", "clip_norm"), (0, "1", True)),
        **dict.fromkeys(("beta_1", "beta_2", "label_smoothing", "word_dropout"), NO_SHARE),
        **dict.fromkeys(("min_learning_rate", "weight_decay", "r_drop"), (-1, "1")),
        "shapes": (0, "few", True),
        "schedule": ("linear",),
        "decay_epochs": (0, 5),  # `schedule` is inverse_sqrt
        "protected_text": NO_SHARE,
        "subword_regularization": (0, 1.1),
        "monitor": ("val_blue", 3, "val_bleu"),  # there is no `translation_sample`
        "precision": ("float16",),
        "seed": (-1, 2**32),
        "distribution": ("parameter_server",),
        "devices": ("GPU:0", [], [0]),
        "keep_best": (-1,),
        "average": (*NONE, 6),  # `keep_last` is 5
        "ema_momentum": (0, 1, "0.9"),
        "init_from": (3,),
        "optimizer": ("sgd",),
        "freeze": ("encoder", [], ["biases"], ["encoder"]),  # there is no `init_from`
        "lora_rank": (0, 4),
        "lora_layers": ("query", [], ["biases"], ["query"]),  # there is no `lora_rank`
        "translation_epochs": (0, 21),  # `epochs` is 20
    },
    VocabularySettings: {
        **dict.fromkeys(("source", "target"), ("letters",)),
        "size": (7, "8000"),
        "joint": (1,),
        "symbols": ("a", ["<en>"]),  # of subwords
        "model_type": ("char",),
        "normalization": ("nfd", ["nfc", "nfc"]),
        "character_coverage": (0.97, 1.1),
        "protected_symbols": (1, -2),
        "files": ([], [3], ["a", "b"]),
    },
    DataSettings: {
        **dict.fromkeys(("validation", "test"), (3,)),
        "train": (3, None),
        "max_length": (1, 2.5),
        "max_length_ratio": (0.5,),
        "store": (3,),
        "clean": ("all",),
        "tag": ("<a>",),
    },
    SearchSettings: {
        "beam_size": NONE,
        "length_penalty": ("wu",),
        "alpha": (-10.1, 40.0, "1"),
        "stopping": ("never",),
        "length_ratio": (-1, 1e12),
        "extra_length": (-1, 2**40),
        "max_length": (0, 2**31),
        "processors": (["min_length"], len),
        "suppressed_tokens": ([-1], ["a"], [True]),
        "force_end": (1,),
        "sampler": ("top_k",),
    },
    TextSettings: {
        "max_source_tokens": (1, 9.5),
        "on_too_long": ("cut",),
        "split": ("words",),
        "protect": (3,),
        **dict.fromkeys(("source_language", "target_language"), (3,)),
        "distinct_texts": (1,),
    },
    BatchSettings: {
        "seed": (-1,),
        "subword_regularization": (0, 1.1),
        "word_dropout": NO_SHARE,
        "shapes": (0, "few", 2.5, True),
        **dict.fromkeys(("source_language", "target_language"), (3,)),
    },
    CleaningSettings: {
        **dict.fromkeys(("duplicates", "identical"), (1,)),
        "max_word_length": NONE,
        "max_character_ratio": (0.5,),
        "max_other_script": (-0.1, 2),
    },
    Limits: {field.name: NONE for field in dataclasses.fields(Limits)},
}
NUMBERS = [
    (kind, field.name)
    for kind in MISTAKES
    for field in dataclasses.fields(kind)
    if field.type in (int, float, int | None, float | None)
]


@dataclasses.dataclass(frozen=True)
class Anything(Settings):
    """Accepts any value."""

    value: object = None
    other: object = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Described(Settings):
    """Some settings.

    Raises:
        ValueError: if one is wrong.
    """

    size: int = setting(4, "How many. It must be even.", at_least=1, at_most=8)
    rate: float | None = setting(None, "How fast.", above=0, below=1, default_text="no rate")
    kind: str | None = setting("a", "Which one.", choices=("a", "b", None))
    other: str = "not described"


@pytest.mark.parametrize(
    ("values", "must"),
    [
        ({"size": 0}, "from 1 to 8"),
        ({"size": 9}, "from 1 to 8"),
        ({"rate": 0}, "more than 0 and less than 1"),
        ({"rate": 1.0}, "more than 0 and less than 1"),
        ({"kind": "c"}, "one of a, b, None"),
        *(({"size": size}, None) for size in (1, 8)),
        *(({"rate": rate}, None) for rate in (None, 1e-9, 0.999)),
        *(({"kind": kind}, None) for kind in ("a", "b", None)),
    ],
)
def test_field_says_which_values_are_allowed(values, must):
    if must is None:
        Described(**values)
        return
    ((name, value),) = values.items()
    with pytest.raises(ValueError) as caught:
        Described(**values)
    assert str(caught.value) == f"`{name}` must be {must}. Received: {name}={value!r}"


def test_fields_are_described_in_the_docstring_of_their_class():
    assert inspect.getdoc(Described) == inspect.cleandoc(
        """Some settings.

        Args:
            size: int, from 1 to 8. How many. It must be even. Defaults to `4`.
            rate: float, more than 0 and less than 1. How fast. Defaults to no rate.
            kind: `"a"` or `"b"` or `None`. Which one. Defaults to `"a"`.

        Raises:
            ValueError: if one is wrong.
        """
    )


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, names in MISTAKES.items() for name in names]
)
def test_wrong_value_is_named_in_one_line(kind, name):
    for value in MISTAKES[kind][name]:
        with pytest.raises(ValueError) as caught:
            kind(**REQUIRED.get(kind, {}) | {name: value})
        message = str(caught.value)
        assert f"`{name}` must be" in message and message.count("\n") == 0
        assert f"Received: {name}={value!r}" in message


@pytest.mark.parametrize("kind", MISTAKES)
def test_no_setting_lacks_a_mistake(kind):
    described = {f.name for f in dataclasses.fields(kind) if setting_of(f).text}
    assert described <= MISTAKES[kind].keys()


def read(text):
    (value,) = Anything.from_dict(read_yaml(f"value: [{text}]")).value
    return value


def refused(kind, text):
    with pytest.raises(ValueError) as caught:
        kind.from_dict(read_yaml(text))
    assert "\n" not in str(caught.value) and "<unicode string>" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("make", [np.float64, np.array, tf.constant, tf.Variable, keras.Variable])
def test_number_of_an_array_library_is_taken_as_pythons(make):
    training = TrainingSettings(word_dropout=make(0.5))
    assert type(training.word_dropout) is float and training.word_dropout == 0.5
    with pytest.raises(ValueError, match="`word_dropout` must be of type float. Received: word"):
        TrainingSettings(word_dropout=make([0.5, 0.25]))
    # Also inside the mappings of a recipe, which YAML must be able to write.
    corpus = {"file": "a.tsv", "seed": np.int64(2)}
    data = DataSettings(train=[corpus], clean={"max_character_ratio": make(1.5)})
    stored = read_yaml(data.to_yaml())
    assert stored["train"] == [{"file": "a.tsv", "seed": 2}]
    assert stored["clean"] == {"max_character_ratio": 1.5}


# === Floats ===

MANTISSAS = st.from_regex(r"[-+]?([0-9]{1,4}\.?[0-9]{0,4}|\.[0-9]{1,4})", fullmatch=True)
EXPONENTS = st.from_regex(r"[eE][-+]?[0-9]{1,2}", fullmatch=True)


@examples(short=20, long=500)
@given(MANTISSAS, EXPONENTS)
def test_float_with_an_exponent_is_read_as_python_reads_it(mantissa, exponent):
    value = read(mantissa + exponent)
    assert isinstance(value, float) and value == float(mantissa + exponent)


@pytest.mark.parametrize(
    "text",
    [
        *("1", "-1", "1_000", "0x1F", "1.5", ".5", "1:30", "true", "null", "~", "2026-11-22"),
        *("e5", "1e", "1e5e5", "-e3", "1.2.3e4", "GPU:0", "1e-3x", "'1e-3'", '"1e-3"', "val_loss"),
    ],
)
def test_other_values_are_read_as_yaml_reads_them(text):
    assert read(text) == yaml.safe_load(text) and type(read(text)) is type(yaml.safe_load(text))


# Without control characters, of which YAML forbids some and folds others.
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]))


@examples(short=25, long=500, derandomize=True)
@given(TEXT | st.from_regex(r"[-+]?[0-9.]{0,5}[eE][-+]?[0-9]{1,3}", fullmatch=True))
def test_text_is_restored_even_if_it_looks_like_a_float(text):
    """Such as a folder named 1e-3 in `init_from`."""
    training = TrainingSettings(init_from=text)
    assert TrainingSettings.from_dict(read_yaml(training.to_yaml())) == training
    assert yaml.safe_load(training.to_yaml())["init_from"] == text, "other readers of YAML"


@pytest.mark.parametrize("kind, name", NUMBERS)
def test_non_finite_number_is_refused_by_name(kind, name):
    others = [f"{key}: {value}" for key, value in REQUIRED.get(kind, {}).items() if key != name]
    for text in (".inf", "-.inf", ".nan", ".NaN", "1e999"):
        assert f"`{name}` must be" in refused(kind, "\n".join([*others, f"{name}: {text}"]))


# === Keys ===


@pytest.mark.parametrize(
    "text, named",
    [
        ("value: 1\nother: 2\nvalue: 3", ["'value'", "line 3", "first in line 1"]),
        ("{value: 1, value: 1}", ["'value'", "line 1, column 12"]),
        ("value:\n  a: {b: 1,\n      'b': 2}", ["'b'", "line 3", "first in line 2"]),
    ],
)
def test_duplicate_key_is_refused_with_its_lines(text, named):
    message = refused(Anything, text)
    for word in named:
        assert word in message


@pytest.mark.parametrize("text", ["value: &a [*a]", "value: &a {x: [1, *a]}"])
def test_value_that_holds_itself_is_refused(text):
    assert "not valid YAML: line 1, " in refused(Anything, text)


def test_keys_of_merged_mappings_may_be_overridden():
    """A merge with `<<` is not a duplicate key."""
    text = "value: &a {x: 1, y: 2}\nother: &b {<<: *a, y: 3}"
    assert Anything.from_dict(read_yaml(text)) == Anything({"x": 1, "y": 2}, {"x": 1, "y": 3})
    assert Anything.from_dict(read_yaml(f"{text}\n")).to_yaml().count("x: 1") == 2


def test_unknown_key_is_answered_by_a_similar_one():
    message = refused(TrainingSettings, "batch_token: 5")
    assert "Did you mean 'batch_tokens'?" in message and "label_smoothing" not in message
    for word in ("'zzz'", "label_smoothing", "batch_tokens"):
        assert word in refused(TrainingSettings, "zzz: 5"), "all keys, if none is similar"
    assert "'epochs'" in refused(Recipe, "data: {train: [a.tsv]}\ntraining: {epoch: 3}")


# === Files ===

DATA = "data: {train: [a.tsv]}\n"


@pytest.mark.parametrize(
    "text, named",
    [
        ("", ["a YAML mapping", "`data`", "nothing"]),
        ("Zwei Männer schlafen.\nEin Hund.\n", ["a YAML mapping", "`data`", "text"]),
        ("- one\n- two\n", ["a YAML mapping", "list"]),
        (DATA + "training: [", ["not valid YAML", "line 2"]),
        (DATA + "training: {epochs: \0}", ["not valid YAML"]),
        (DATA + "training: {epochs: 0}", ["`epochs`"]),
        (DATA + "model: {num_heads: 3}", ["num_heads=3"]),
        (DATA + "training: {epochs: 1, epochs: 2}", ["duplicate key 'epochs'"]),
        ("training: {epochs: 1}", ["'data'"]),
    ],
)
def test_error_in_a_recipe_names_its_file(tmp_path, text, named):
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError) as caught:
        Recipe.load(str(path))
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and "<unicode string>" not in message
    for word in named:
        assert word in message
    assert "Männer" not in message, "the text is not repeated"


def test_recipe_that_is_not_text_is_named(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"PK\x03\x04\xff\xfe")
    for reader in (Recipe.load, recipe_text):
        with pytest.raises(ValueError, match="model.keras: a recipe must be UTF-8 text"):
            reader(str(path))


@pytest.mark.parametrize("section", ["train", "validation", "test"])
@pytest.mark.parametrize("lines", ["", "\n \n", "one\t\n\teins\n"], ids=["empty", "blank", "half"])
def test_split_without_text_is_named_with_its_files(tmp_path, section, lines):
    (tmp_path / "full.tsv").write_text("one\teins\n")
    (tmp_path / "void.tsv").write_text(lines if "\t" in lines else lines.replace("\n", "\t\n"))
    data = DataSettings(**{"train": ["full.tsv"], section: ["void.tsv"]})
    void = f"{tmp_path}/void.tsv"
    said = (
        f"`{section}` must hold a pair.*{void}"
        if lines
        else f"^`{section}`: {void} must hold a pair"
    )
    with pytest.raises(ValueError, match=said):
        data.pairs(section, tmp_path)
    (tmp_path / "void.tsv").write_text("\t\n" * 3 + "one\teins\n")
    assert len(list(data.pairs(section, tmp_path))) == 4, "each line is a pair"
