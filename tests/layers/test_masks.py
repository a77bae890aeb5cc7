"""Masks, compared with literal matrices: 1 = may be attended."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.attention import causal_mask, combine_masks, padding_mask
from tests.builders import to_numpy


def literal(*rows):
    return np.array([[character == "1" for character in row] for row in rows])


def assert_equal(mask, expected):
    mask = to_numpy(mask)
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, expected)


def test_padding_mask_marks_real_tokens():
    ids = np.array([[5, 6, 7, 0], [5, 0, 0, 0], [0, 0, 0, 0]])
    assert_equal(padding_mask(ids), literal("1110", "1000", "0000"))
    assert_equal(padding_mask(np.array([[0, 9, 9]]), pad_token_id=9), literal("100"))


@pytest.mark.parametrize(
    "arguments, expected",
    [
        ((3,), literal("100", "110", "111")),
        ((1,), literal("1")),
        ((2, 4), literal("1000", "1100")),
        ((3, 2), literal("10", "11", "11")),
        ((2, 5, 3), literal("11110", "11111")),
        ((1, 4, 3), literal("1111")),
    ],
)
def test_causal_mask_hides_the_keys_after_each_query(arguments, expected):
    assert_equal(causal_mask(*arguments), expected[None])


def test_causal_mask_of_unknown_length_raises():
    inputs = keras.Input((None, 8))
    with pytest.raises(ValueError, match="`query_length`.*=None.*`use_causal_mask=True`"):
        causal_mask(keras.ops.shape(inputs)[1])


def test_combine_masks_allows_what_all_allow():
    padding = literal("110", "111")[:, None, :]
    expected = np.stack([literal("100", "110", "110"), literal("100", "110", "111")])
    assert_equal(combine_masks(padding, None, causal_mask(3)), expected)
    assert combine_masks(None, None) is None
