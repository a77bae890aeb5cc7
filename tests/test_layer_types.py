"""Other layers in place of self-attention: the package's model, training and search use them."""

import functools

import numpy as np
import pytest
from layer_types import report
from layer_types.models import LAYER_TYPES, SCORES, make_model

from tests.builders import ROOT, assert_close, padded_ids, randomize, to_numpy, token_inputs
from tests.models.test_decode_step import check_beam_steps, decode

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.long]

V, T = 50, 6
source, target = padded_ids([5, 3, 7], V, seed=1), padded_ids([T] * 3, V, seed=2)
SIZES = {"hidden_dim": 32, "num_layers": 2, "num_heads": 4, "dropout": 0.0}
every_model = pytest.mark.parametrize("name", ["recurrent", "convolutional", *list(SCORES)[1:]])


@functools.cache
def built(name):
    if name in LAYER_TYPES:
        return make_model(name, V, **SIZES)
    return SCORES[name](vocabulary_size=V, intermediate_dim=64, **SIZES)


def model_of(name):
    return randomize(built(name))


def test_layer_types_have_the_same_number_of_parameters():
    models = [make_model(name, 320, 64, num_layers=1, num_heads=4) for name in LAYER_TYPES]
    counts = [model.count_params() for model in models]
    assert max(counts) <= 1.02 * min(counts)


@every_model
def test_no_output_depends_on_later_tokens_and_each_depends_on_earlier_ones(name):
    model = model_of(name)
    changed = np.where(np.arange(T) == 3, 9, target)
    before, after = (to_numpy(model(token_inputs(source, ids))) for ids in (target, changed))
    change = np.abs(before - after).max(axis=(0, 2))
    assert not change[:3].any() and change[3:].all()


@every_model
@pytest.mark.parametrize("max_length", [None, T], ids=["growing", "fixed"])
def test_steps_equal_the_full_pass(name, max_length):
    model = model_of(name)
    expected = to_numpy(model(token_inputs(source, target)))
    for lengths in ([1] * T, [3, 1, 2]):
        cache = model.init_cache(source, max_length=max_length)
        assert_close(decode(model, cache, lengths, target)[0], expected, 1e-5)


@every_model
@pytest.mark.parametrize("max_length", [None, 4], ids=["growing", "fixed"])
def test_beam_hypotheses_equal_the_full_pass_over_each_prefix(name, max_length, monkeypatch):
    model = model_of(name)
    scores = lambda inputs: {"encoder_decoder": encoder_decoder(model, inputs)}  # noqa: E731
    monkeypatch.setattr(model, "attention_scores", scores)
    check_beam_steps(model, 4, 3, 1e-5, max_length)


def encoder_decoder(model, inputs):
    """The scores that one step over all tokens returns; the full pass has no other scores."""
    cache = model.init_cache(inputs["encoder_token_ids"])
    ids = inputs["decoder_token_ids"]
    return model.decode_step(ids, cache, 0, return_attention_scores=True)[2]


def test_page_has_the_tables_of_what_was_measured():
    page = (ROOT / "docs" / "pages" / "why_attention.md").read_text("utf-8")
    for name, table in report.tables().items():
        assert table in page, f"{name}: python benchmarks/why_attention.py --table"
