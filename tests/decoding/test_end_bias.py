"""A bias of the end token against logits and a greedy search that are computed without it."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import softmax

import keras_transformer as kt
from keras_transformer.decoding import Ensemble
from keras_transformer.decoding.end_bias import set_end_bias
from tests.builders import (
    assert_close,
    new_transformer,
    padded_ids,
    quantize,
    randomize,
    to_numpy,
    token_inputs,
    tokenizer_fixture,
)

SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
INPUTS = token_inputs(padded_ids([5, 3], 50), padded_ids([4, 6], 50, seed=1))
END, BIAS = 2, -0.375  # exact in bfloat16 too
MODELS = {
    "tied": {},
    "untied": {"tie_embeddings": "none"},
    "tied, with a bias": {"output_bias": True},
    "untied, with a bias": {"tie_embeddings": "none", "output_bias": True},
    "Marian's padding": {"output_bias": True, "predict_padding": False},
    "bfloat16": {"dtype": "mixed_bfloat16"},
}


def by_hand(model):
    """NumPy's logits: the decoder's output times the matrix, the bias before, and that of END."""
    product = to_numpy(model(INPUTS, return_hidden=True)) @ to_numpy(model.output_kernel).T
    before = to_numpy(model.output_bias) if model.config.output_bias else 0
    return product + before + BIAS * (np.arange(50) == END)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(fields, id=name, marks=[pytest.mark.slow_on_jax] * (name != "tied"))
        for name, fields in MODELS.items()
    ],
)
def test_logits_are_those_of_numpy_with_the_bias_at_the_end_token(fields):
    model = new_transformer(**SMALL | fields)
    before, weights = to_numpy(model(INPUTS)), list(map(to_numpy, model.weights))
    biased = kt.with_end_bias(model, BIAS)
    assert biased.config.output_bias and biased.dtype_policy == model.dtype_policy
    logits, expected = to_numpy(biased(INPUTS)), by_hand(model)
    padding = np.arange(50) == (0 if "predict_padding" in fields else -1)
    tolerance = 1e-2 if "dtype" in fields else 1e-5
    assert_close(logits[..., ~padding], expected[..., ~padding], tolerance)
    change = logits - before
    assert_close(change[..., END], np.full(change.shape[:2], BIAS), 1e-5)
    assert (np.delete(change, END, axis=-1) == 0).all()
    for one, other in zip(weights, model.weights, strict=True):
        np.testing.assert_array_equal(to_numpy(other), one)
    randomize(biased, seed=9)
    np.testing.assert_array_equal(to_numpy(model(INPUTS)), before)


def lora(model):
    model.decoder.blocks[0].enable_lora(2)


def frozen(model):
    model.trainable = False


def last_rows(model):
    embedding = model.decoder.embedding
    embedding.train_last_rows(3)
    embedding.last_rows.assign(embedding.last_rows + 1)


@pytest.mark.parametrize("adapt", [quantize, lora, frozen, last_rows])
@pytest.mark.parametrize("tie", ["all", pytest.param("none", marks=pytest.mark.long)])
def test_what_was_done_to_the_model_is_kept(adapt, tie):
    model = new_transformer(**SMALL | {"tie_embeddings": tie})
    adapt(model)
    before, biased = to_numpy(model(INPUTS)), kt.with_end_bias(model, BIAS)
    change = to_numpy(biased(INPUTS)) - before
    assert_close(change, np.full(change.shape, BIAS) * (np.arange(50) == END), 1e-5)
    kept = [weight for weight in biased.weights if weight is not biased.logits_layer.bias]
    for ours, theirs in zip(kept, model.weights, strict=True):
        assert (ours.path, ours.dtype) == (theirs.path, theirs.dtype)
    assert [w.path for w in biased.trainable_weights if w is not biased.logits_layer.bias] == [
        w.path for w in model.trainable_weights
    ]


tokenizer = tokenizer_fixture([["a house", "ein Haus"]], 270)
LINES = ["a house", "house a a", "use"]


def greedy_by_hand(models, source, bias, length=8):
    """The most probable token of each step, by the mean probabilities of full passes."""
    source, target = np.int32([source + [0] * (16 - len(source))]), np.zeros((1, 9), "int32")
    target[0, 0] = 1
    for step in range(length):
        logits = [to_numpy(model(token_inputs(source, target)))[0, step] for model in models]
        logits = np.float64(logits) + bias * (np.arange(270) == END)
        target[0, step + 1] = softmax(logits, axis=1).mean(axis=0).argmax()
        if target[0, step + 1] == END:
            break
    return target[0, 1 : step + 2].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, pytest.param(2, marks=pytest.mark.long)])
def test_greedy_search_is_that_of_a_plain_loop_over_biased_logits(number, tokenizer):
    """Also after the bias has changed: a compiled search must not keep the old one."""
    models = [randomize(new_transformer(270, **SMALL), seed) for seed in range(number)]
    whole = models[0] if number == 1 else Ensemble(models)
    sources = [[*tokenizer.encode(line), END] for line in LINES]
    biased = kt.with_end_bias(whole, 3.0)
    translator, found = kt.Translator(biased, tokenizer, beam_size=1, max_length=8), []
    for bias in (3.0, -3.0):
        set_end_bias(biased, whole, bias, [END])
        answers = translator(LINES, n_best=1)
        found.append([list(map(tokenizer.vocabulary.index, best.tokens)) for (best,) in answers])
        assert found[-1] == [greedy_by_hand(models, source, bias) for source in sources]
    assert found[0] != found[1], "the bias must matter"


def test_with_a_tokenizer_marks_that_end_sentences_have_the_bias_too():
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "▁", "▁a.", ".", "▁?!", "▁.", "a", ",", "。"]
    model = new_transformer(len(tokens), **SMALL | {"output_bias": True})
    biased = kt.with_end_bias(model, BIAS, SimpleNamespace(vocabulary=tokens))
    change = to_numpy(biased.output_bias) - to_numpy(model.output_bias)
    expected = [BIAS * (token in ("</s>", ".", "▁?!", "▁.", "。")) for token in tokens]
    np.testing.assert_allclose(change, expected, atol=1e-6)


def test_what_has_no_end_bias_is_refused(tokenizer):
    model = new_transformer(270, **SMALL)
    for bias in (float("nan"), float("-inf"), 1e39):
        with pytest.raises(ValueError, match="`bias` must be a finite number of float32. Received"):
            kt.with_end_bias(model, bias)
    with pytest.raises(TypeError, match="give `translator.model`. Received: Translator"):
        kt.with_end_bias(kt.Translator(model, tokenizer), 1.0)


def test_ctranslate2_has_the_bias_on_every_backend(tokenizer, tmp_path):
    pytest.importorskip("ctranslate2")
    model = kt.with_end_bias(new_transformer(270, **SMALL), 1.5)
    settings = {"beam_size": 1, "max_length": 8, "suppressed_tokens": [7]}
    translator = kt.Translator(model, tokenizer, **settings)
    folder = kt.export_ctranslate2(translator, tmp_path / "ct2")
    assert kt.load_translator(folder, workers=1)(LINES) == translator(LINES)
