"""Decoding step by step with a cache equals the full pass."""

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
VARIANTS = pytest.mark.parametrize(
    "variant",
    [
        {},
        {"normalize_first": True},
        {"positions": "learned", "max_sequence_length": 7},
        {"tie_embeddings": "none", "value_dim": 3, "normalize_first": True},
    ],
    ids=["post-norm", "pre-norm", "learned", "untied"],
)


def decode(model, cache, lengths, target=target, convert=int):
    logits = []
    for start, end in token_chunks(lengths):
        step, cache = model.decode_step(target[:, start:end], cache, convert(start))
        logits.append(to_numpy(step))
    return np.concatenate(logits, axis=1), cache


@VARIANTS
@pytest.mark.parametrize("lengths", [[1] * T, [3, 1, 2], [T]], ids=str)
def test_steps_equal_the_full_pass(variant, lengths):
    model = transformer(**variant)
    logits, _ = decode(model, model.init_cache(source), lengths)
    assert logits.dtype == "float32"
    assert_close(logits, to_numpy(model(token_inputs(source, target))), 1e-6)


def test_index_may_be_a_tensor():
    model = transformer()
    logits, _ = decode(
        model, model.init_cache(source), [1] * T, convert=keras.ops.convert_to_tensor
    )
    assert_close(logits, to_numpy(model(token_inputs(source, target))), 1e-6)


def test_dropout_is_off_in_steps():
    quiet = transformer(dropout=0.0)
    loud = transformer(dropout=0.5, attention_dropout=0.5, activation_dropout=0.5)
    expected, _ = decode(quiet, quiet.init_cache(source), [1] * T)
    np.testing.assert_array_equal(decode(loud, loud.init_cache(source), [1] * T)[0], expected)


@VARIANTS
def test_sentences_can_leave_the_batch_on_the_first_axis_of_the_cache(variant):
    model = transformer(**variant)
    expected = to_numpy(model(token_inputs(source, target)))
    _, cache = decode(model, model.init_cache(source), [1, 2])
    leaves = keras.tree.flatten(cache)
    assert {leaf.shape[0] for leaf in leaves} == {len(source)}
    kept = np.array([2, 0])
    cache = keras.tree.map_structure(lambda leaf: keras.ops.take(leaf, kept, axis=0), cache)
    for index in range(3, T):
        logits, cache = model.decode_step(target[kept, index : index + 1], cache, index)
        assert_close(to_numpy(logits)[:, 0], expected[kept, index], 1e-6)


@pytest.mark.tensorflow_only
@VARIANTS
def test_steps_run_in_a_graph_of_unknown_shapes(variant):
    import tensorflow as tf

    model = transformer(**variant)
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids])
    def all_logits(source, target):
        cache = model.init_cache(source)
        step, cache = model.decode_step(target[:, :1], cache, 0)
        flat = tf.nest.flatten(cache)
        shapes = [tf.TensorShape([None] * leaf.shape.rank) for leaf in flat]
        logits = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[None, V])

        def body(index, logits, flat):
            cache_now = tf.nest.pack_sequence_as(cache, flat)
            step, grown = model.decode_step(target[:, index : index + 1], cache_now, index)
            return index + 1, logits.write(index, step[:, 0]), tf.nest.flatten(grown)

        _, logits, _ = tf.while_loop(
            lambda index, *_: index < tf.shape(target)[1],
            body,
            (1, logits.write(0, step[:, 0]), flat),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape(None), shapes),
        )
        return tf.transpose(logits.stack(), [1, 0, 2])

    expected = to_numpy(model(token_inputs(source, target)))
    assert_close(to_numpy(all_logits(source, target)), expected, 1e-6)
