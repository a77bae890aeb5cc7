"""Optimizer, model and batches have the training settings of a recipe."""

import dataclasses
import math
import warnings

import numpy as np
import pytest

from keras_transformer import number_names
from keras_transformer.runs.build import (
    build_model,
    build_stream,
    find_tokenizers,
    load_tokenizers,
    make_tokenizers,
)
from keras_transformer.runs.folder import RunFolder
from keras_transformer.runs.recipe import Recipe
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.runs.vocabulary_settings import VocabularySettings
from keras_transformer.training.distribution import get_strategy
from tests.builders import learned_tokenizer
from tests.runs.tiny_run import recipe


@pytest.fixture(scope="module")
def tokenizers():
    return (learned_tokenizer(number_names("train", 500), 330),) * 2


def model_of(settings, tokenizers):
    return build_model(settings, tokenizers, get_strategy("single"), batches_per_epoch=11)


def optimizer_of(tokenizers, **training):
    return model_of(recipe(**training), tokenizers).optimizer


COSINE = {"schedule": "cosine", "learning_rate": 0.01, "warmup_steps": 10, "decay_epochs": 10}


@pytest.mark.parametrize(
    "training, rates",
    [
        (
            COSINE | {"min_learning_rate": 0.001},
            {
                0: 0.001,  # a tenth of the peak; the warm-up is linear
                5: 0.001 + 0.5 * 0.009,
                10: 0.01,
                35: 0.001 + 0.009 * (1 + math.cos(math.pi / 4)) / 2,
                60: 0.0055,
                110: 0.001,
                500: 0.001,
            },
        ),
        ({"min_learning_rate": 0.019}, {9: 0.02, 10: 0.02 * (10 / 11) ** 0.5, 500: 0.019}),
    ],
    ids=["cosine", "floor of the inverse square root"],
)
def test_schedule_follows_the_recipe(training, rates, tokenizers):
    optimizer = optimizer_of(tokenizers, **training)
    for update, expected in rates.items():
        optimizer.iterations.assign(update)
        np.testing.assert_allclose(float(optimizer.learning_rate), expected, rtol=1e-5)


def test_cosine_that_ends_before_its_warm_up_is_refused(tokenizers):
    with pytest.raises(ValueError, match="`warmup_steps` must be less than .* `decay_epochs`, 22"):
        optimizer_of(tokenizers, **COSINE | {"warmup_steps": 22, "decay_epochs": 2})


def test_floor_above_the_rate_of_the_paper_is_refused(tokenizers):
    with pytest.raises(ValueError, match="^`min_learning_rate` must be at most the rate"):
        optimizer_of(tokenizers, learning_rate=None, min_learning_rate=0.9)


def test_adam_has_the_settings_of_the_recipe_or_the_paper(tokenizers):
    names = "beta_1", "beta_2", "epsilon", "weight_decay", "global_clipnorm", "use_ema"
    default = dataclasses.replace(recipe(), training=TrainingSettings())
    paper = model_of(default, tokenizers).optimizer
    assert [getattr(paper, name) for name in names] == [0.9, 0.98, 1e-9, None, None, False]
    changes = {"beta_1": 0.8, "beta_2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 0.1}
    other = optimizer_of(tokenizers, clip_norm=25.0, **changes)
    assert [getattr(other, name) for name in names] == [0.8, 0.999, 1e-8, 0.1, 25.0, False]


@pytest.mark.parametrize(("optimizer", "numbers"), [("adam", 2), ("adafactor", 1)])
def test_optimizer_has_as_many_numbers_for_each_weight_as_its_setting_says(
    optimizer, numbers, tokenizers
):
    model = model_of(recipe(optimizer=optimizer), tokenizers)
    states, weights = (
        sum(math.prod(variable.shape) for variable in variables)
        for variables in (model.optimizer.variables, model.trainable_variables)
    )
    assert numbers <= states / weights < numbers + 0.2, "about"


def test_weight_decay_spares_biases_and_layer_norms(tokenizers):
    model = model_of(recipe(weight_decay=0.5), tokenizers)
    before = {v.path: np.array(v) for v in model.trainable_variables}
    for variable in model.trainable_variables:  # biases begin as zeros
        variable.assign(variable + 1.0)
    zeros = [np.zeros(v.shape, "float32") for v in model.trainable_variables]
    model.optimizer.iterations.assign(9)  # the peak of the rate, 0.02
    model.optimizer.apply(zeros, model.trainable_variables)
    for variable in model.trainable_variables:
        is_spared = variable.path.endswith(("bias", "gamma", "beta"))
        factor = 1.0 if is_spared else 1 - 0.5 * 0.02
        expected = (before[variable.path] + 1) * factor
        np.testing.assert_allclose(np.array(variable), expected, rtol=1e-5, err_msg=variable.path)


def test_only_training_batches_have_noise(tokenizers):
    def inputs_of(split, **training):
        stream = build_stream(recipe(**training), ".", tokenizers, split, RunFolder("none"))
        return stream.arrays(stream.batches(0)[0])[0]

    for split, is_noisy in (("train", True), ("validation", False)):
        usual = inputs_of(split)
        for setting in ("word_dropout", "subword_regularization"):
            for side, token_ids in inputs_of(split, **{setting: 0.3}).items():
                assert np.array_equal(usual[side], token_ids) != is_noisy, (setting, side)


def test_tokenizers_of_a_run_are_taken_unless_it_is_of_another_recipe(tokenizers, tmp_path):
    run = RunFolder(tmp_path / "run")
    tokenizers[0].save(run.tokenizer_files(joint=True)[0])
    run.recipe_file.write_text(recipe().to_yaml(), "utf-8")
    scratch = tmp_path / "scratch"
    assert find_tokenizers(recipe(epochs=9), ".", run, scratch)[0].vocabulary_size == 330
    assert not scratch.exists()
    larger = dataclasses.replace(recipe(), vocabulary=VocabularySettings(size=340))
    assert find_tokenizers(larger, ".", run, scratch)[0].vocabulary_size == 340


@pytest.mark.parametrize(
    ("kind", "symbols"), [("words", ["AE", "B", "K"]), ("graphemes", list(" ABEK"))]
)
def test_each_side_has_its_kind_of_tokens_and_its_own_text(kind, symbols, tmp_path):
    (tmp_path / "g2p.tsv").write_text("bac  a\tK AE\ncab\tB\n", "utf-8")
    files = RunFolder(tmp_path / "run").tokenizer_files(joint=False)
    of_kinds = {"source": "characters", "target": kind, "normalization": ["nfd", "identity"]}
    for vocabulary in (of_kinds, {"joint": False, "size": 270}):
        values = {"data": {"train": ["g2p.tsv"]}, "vocabulary": vocabulary}
        made = Recipe.from_dict(values)
        assert not made.vocabulary.joint
        with warnings.catch_warnings(action="ignore"):  # there is little text
            make_tokenizers(made, tmp_path, files)
        source, target = load_tokenizers(files)
        assert "c" in source.vocabulary and "c" not in target.vocabulary
        if "target" in vocabulary:
            assert sorted(source.vocabulary[4:]) == list(" abc")
            assert sorted(target.vocabulary[4:]) == symbols
            assert source.decode(source.encode(["bac  a "])) == ["bac  a "]
