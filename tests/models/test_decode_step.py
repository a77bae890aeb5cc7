"""Decoding steps with a cache, compared with the full pass."""

import keras
import numpy as np
import pytest

from tests.builders import (
    assert_close,
    padded_ids,
    to_numpy,
    token_chunks,
    token_inputs,
    transformer,
)

V, T = 50, 6
source, target = padded_ids([5, 3, 7], V, seed=1), padded_ids([T] * 3, V, seed=2)
# Two blocks have two caches.
SMALL = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_dim": 8, "num_heads": 2}
VARIANTS = {
    "post-norm": {},
    "pre-norm": {"normalize_first": True},
    "learned": {"positions": "learned", "max_sequence_length": 7},
    "relative": {"positions": "relative", "max_relative_position": 2},
    "tensor2tensor": {"positions": "tensor2tensor", "first_position": 1},
    "untied": {"tie_embeddings": "none", "value_dim": 3, "normalize_first": True},
}


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


TWO = pytest.mark.parametrize("variant", ["untied", "relative", long("learned")])


def model_of(variant, **fields):
    return transformer(**SMALL | VARIANTS[variant] | fields)


def decode(model, cache, lengths, target=target, convert=int):
    logits = []
    for start, end in token_chunks(lengths):
        step, cache = model.decode_step(target[:, start:end], cache, convert(start))
        logits.append(to_numpy(step))
    return np.concatenate(logits, axis=1), cache


@pytest.mark.parametrize(
    "variant, lengths, max_length",
    [
        ("post-norm", [3, 1, 2], T + 2),
        pytest.param("pre-norm", [1] * T, T + 2, marks=pytest.mark.slow_on_jax),
        pytest.param("learned", [1] * T, None, marks=pytest.mark.slow_on_jax),
        ("tensor2tensor", [T], T),
        ("relative", [3, 1, 2], None),
        pytest.param("relative", [2] + [1] * (T - 2), T + 2, marks=pytest.mark.slow_on_jax),
        ("untied", [3, 1, 2], None),
    ],
)
def test_steps_equal_the_full_pass(variant, lengths, max_length):
    model = model_of(variant)
    cache = model.init_cache(source, max_length=max_length)
    shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape), cache)
    # The index may be a tensor, too.
    convert = int if max_length else keras.ops.convert_to_tensor
    logits, cache = decode(model, cache, lengths, convert=convert)
    if max_length is not None:
        assert keras.tree.map_structure(lambda tensor: tuple(tensor.shape), cache) == shapes
    assert logits.dtype == "float32"
    assert_close(logits, to_numpy(model(token_inputs(source, target))), 1e-6)


def test_decoding_steps_apply_no_dropout():
    rates = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}
    models = model_of("post-norm", dropout=0.0), model_of("post-norm", **rates)
    outputs = [decode(model, model.init_cache(source), [1, 2])[0] for model in models]
    np.testing.assert_array_equal(*outputs)


@TWO
def test_sentences_can_be_removed_along_the_first_axis_of_the_cache(variant):
    model = model_of(variant)
    expected = to_numpy(model(token_inputs(source, target)))
    _, cache = decode(model, model.init_cache(source), [3])
    assert {leaf.shape[0] for leaf in keras.tree.flatten(cache)} == {len(source)}
    kept = np.array([2, 0])
    cache = keras.tree.map_structure(lambda leaf: keras.ops.take(leaf, kept, axis=0), cache)
    for index in (3, 4):
        logits, cache = model.decode_step(target[kept, index : index + 1], cache, index)
        assert_close(to_numpy(logits)[:, 0], expected[kept, index], 1e-6)


def random_beam_steps(model, steps, slots, max_length=None):
    """Decodes W hypotheses per sentence, one token a step, with random tokens and parents.

    Yields the prefixes `(B, W, T)`, start token first, the logits and the scores of each step.
    """
    rng = np.random.default_rng(0)
    cache = model.init_cache(source, max_length=max_length, beam_size=slots if max_length else 1)
    prefixes = np.zeros((len(source), 1, 0), "int32")
    for index in range(steps):
        shape = (len(source), slots)
        parents = rng.integers(0, slots, shape) if index else np.zeros(shape, "int64")
        tokens = rng.integers(4, V, shape) if index else np.ones(shape, "int64")
        prefixes = np.take_along_axis(prefixes, parents[:, :, None], axis=1)
        prefixes = np.concatenate([prefixes, tokens[:, :, None]], axis=2).astype("int32")
        logits, cache, scores = model.decode_step(
            tokens.astype("int32"),
            cache,
            index,
            parents=parents.astype("int32"),
            return_attention_scores=True,
        )
        yield prefixes, to_numpy(logits), to_numpy(scores)


def check_beam_steps(model, steps, slots, tolerance, max_length=None):
    steps = list(random_beam_steps(model, steps, slots, max_length))
    for prefixes, logits, _ in steps:
        # (B, W, T) -> (B * W, T): every hypothesis as a separate sentence
        inputs = token_inputs(np.repeat(source, slots, axis=0), np.concatenate(prefixes))
        assert_close(np.concatenate(logits), to_numpy(model(inputs))[:, -1], tolerance)
    prefixes, _, scores = steps[-1]
    full = to_numpy(model.attention_scores(inputs)["encoder_decoder"])
    for block, of_block in zip(scores, full, strict=True):  # (B, N, W, S), (B * W, N, T, S)
        block = np.concatenate(np.swapaxes(block, 1, 2))
        np.testing.assert_allclose(block, of_block[:, :, -1], atol=10 * tolerance)


@pytest.mark.parametrize(
    "variant, max_length",
    [pytest.param("relative", length, marks=pytest.mark.slow_on_jax) for length in (None, 4)]
    + [("untied", 4)]
    + [long("post-norm", 4), long("pre-norm", None), long("tensor2tensor", None)],
)
def test_beam_hypotheses_equal_the_full_pass_over_each_prefix(variant, max_length):
    check_beam_steps(model_of(variant), 4, 3, 1e-5, max_length)


def test_parents_without_a_cache_are_refused():
    model = model_of("untied")
    encoder_output = np.zeros((*source.shape, model.config.hidden_dim), "float32")
    with pytest.raises(ValueError, match="`parents` needs `cache`"):
        model.decoder(source, encoder_output, parents=source)
