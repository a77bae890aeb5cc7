"""On PyTorch, the traced step of a search gives the bits of the step as it is, for all shapes."""

import gc
import weakref

import numpy as np
import pytest
from keras import ops, tree

import keras_transformer as kt
from keras_transformer.decoding import loop_eager
from keras_transformer.decoding.ensemble import Ensemble
from keras_transformer.decoding.frozen import copy_model
from keras_transformer.decoding.model_search import make_model_search
from keras_transformer.decoding.processors import no_repeat_ngram_size
from keras_transformer.decoding.scores import penalties_up_to
from keras_transformer.decoding.search import trim
from tests.builders import assert_same_arrays, new_transformer, padded_ids, to_numpy

pytestmark = pytest.mark.backends("torch")

V, PAD = 60, 0
# Rows, tokens of the source, most tokens of a translation. The first search traces the step; the
# others have one row, or more of everything.
SHAPES = (2, 5, 7), (1, 2, 6), (7, 11, 9)
BEAM = {"beam_size": 3}
MODELS = {
    "relative": {"positions": "relative", "max_relative_position": 2},
    "learned, untied, post-norm": {
        **{"positions": "learned", "max_sequence_length": 16, "tie_embeddings": "none"},
        "normalize_first": False,
    },
    "output bias": {"output_bias": True, "source_end_token": False},
    "bfloat16": {"dtype": "bfloat16"},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
}
SETTINGS = {
    "greedy": {"beam_size": 1},
    "first_beams, suppressed": {
        **{**BEAM, "stopping": "first_beams", "length_penalty": "mean"},
        "suppressed_tokens": [7, 8],
    },
    "force_end": {**BEAM, "force_end": True},
    "processor": {**BEAM, "processors": [no_repeat_ngram_size(2)]},
}


def new_model(**options):
    return new_transformer(V, num_encoder_layers=1, num_decoder_layers=1, **options)


def new_search(model, shape, settings, languages=False):
    """Returns a search for random sentences, and its state before the first step."""
    rows, length, longest = shape
    ids = padded_ids(np.arange(rows) % length + 1, V, width=length)
    language_ids = ops.convert_to_tensor(5 + np.arange(rows)[:, None] % 2) if languages else None
    settings = kt.SearchSettings(**settings)
    search, inputs = make_model_search(
        model,
        ops.convert_to_tensor(ids),
        ops.convert_to_tensor(longest - np.arange(rows, dtype="int32") % 2),
        settings,
        n_best=settings.max_hypotheses,
        language_ids=language_ids,
        penalties=ops.convert_to_tensor(penalties_up_to(longest, settings)),
    )
    return search, inputs


def assert_same_searches(model, settings=BEAM, prefixes=(0,), **options):
    """The traced search has the tokens, log-probs and scores of that which runs step by step."""
    import torch

    for shape, size in zip(SHAPES * len(prefixes), np.repeat(prefixes, len(SHAPES)), strict=True):
        search, inputs = new_search(model, shape, settings, **options)
        prefix = ops.convert_to_tensor(padded_ids(np.arange(shape[0]) % (size + 1), V, width=size))
        state = search.first_state(*inputs, prefix)
        with torch.inference_mode():
            expected = tree.map_structure(to_numpy, loop_eager.run_growing(search, state, False))
            found = search.run(*inputs, prefix)
        found = tree.map_structure(to_numpy, found)
        assert_same_arrays(found._asdict(), trim(expected, PAD, np)._asdict())


@pytest.fixture
def traces(monkeypatch):
    """A list that grows by one when a function is traced."""
    import torch

    calls, trace = [], torch.jit.trace
    monkeypatch.setattr(torch.jit, "trace", lambda *a, **k: calls.append(a) or trace(*a, **k))
    return calls


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_one_program_gives_the_bits_of_every_step(settings, traces):
    assert_same_searches(new_model(), settings)
    assert len(traces) == (0 if "processors" in settings else 1)


@pytest.mark.long
@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_every_kind_of_model_is_traced(options, traces):
    assert_same_searches(new_model(**options))
    assert len(traces) == 1


def test_prefixes_and_languages(traces):
    model = new_model()
    assert_same_searches(model, prefixes=(0, 2))
    assert_same_searches(model, languages=True)
    assert len(traces) == 2


@pytest.mark.long
def test_ensembles(traces):
    assert_same_searches(Ensemble([new_model(), new_model(positions="relative")]))
    assert len(traces) == 1


@pytest.mark.long
@pytest.mark.parametrize("change", ["int8", "lora"])
def test_other_weights_need_another_trace(change, traces):
    model = new_model()
    assert_same_searches(model)
    if change == "lora":
        model.decoder.embedding.enable_lora(2)
    else:
        model.decoder.embedding.quantize("int8")
    assert_same_searches(model)
    assert len(traces) == 2


class Block(kt.layers.DecoderBlock):
    """A block whose output depends on what a trace would keep as a constant."""

    constant = None

    def call(
        self,
        inputs,
        encoder_output=None,
        attention_mask=None,
        encoder_attention_mask=None,
        use_causal_mask=True,
        return_attention_scores=False,
        cache=None,
        training=None,
    ):
        masks = attention_mask, encoder_attention_mask, use_causal_mask
        x, *others = super().call(inputs, None, *masks, return_attention_scores, cache, training)
        return x * Block.constant(x, cache["self"].key), *others


class Decoder(kt.models.TransformerDecoder):
    block_class = Block


class Model(kt.Transformer):
    decoder_class = Decoder


CONSTANTS = {
    "a decision": lambda x, key: 2.0 if ops.sum(x) > 0 else 1.0,
    "tokens so far": lambda x, key: int(key.shape[2] % 4) + 1,
}
MORE_CONSTANTS = {
    "rows": lambda x, key: int(x.shape[0]),
    "a value": lambda x, key: float(ops.max(x)),
    "an array": lambda x, key: np.cos(to_numpy(x)).mean().item(),
}


@pytest.mark.parametrize(
    "constant",
    [
        *(pytest.param(constant, id=name) for name, constant in CONSTANTS.items()),
        *(pytest.param(c, id=name, marks=pytest.mark.long) for name, c in MORE_CONSTANTS.items()),
    ],
)
def test_what_no_trace_can_hold_runs_step_by_step(constant, monkeypatch):
    """And gives no silently wrong translation."""
    monkeypatch.setattr(Block, "constant", staticmethod(constant))
    sizes = {"num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32, "num_heads": 2}
    assert_same_searches(Model(vocabulary_size=V, **sizes))


def test_programs_follow_the_weights_and_go_with_the_model():
    model = new_model()
    assert_same_searches(model)
    for weight in model.weights:
        weight.assign(-2 * weight)
    assert_same_searches(model)
    copied = copy_model(model)
    alive = weakref.ref(model)
    del model, weight
    gc.collect(2)  # all generations, see conftest.py
    assert alive() is None
    assert_same_searches(copied)
