"""A `Transformer` warns where padding counts, and nowhere else."""

import warnings

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.builders import padded_ids, token_inputs, transformer

LABELS = padded_ids([4, 2], 50)
INPUTS = token_inputs(LABELS, LABELS)
BATCH = INPUTS, LABELS
WEIGHTED = INPUTS, LABELS, np.ones(LABELS.shape, "float32")
KERAS_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
OURS, IGNORING = kt.SmoothedCrossEntropy(), kt.SmoothedCrossEntropy(ignore_class=0)


def warnings_of(method, *arguments, **compiled):
    """What `fit` or another method warns of, without the training itself."""
    model = transformer()
    model.compile("sgd", **compiled)
    with warnings.catch_warnings(record=True) as caught, pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, method, lambda self, *args, **kwargs: {})
        warnings.simplefilter("always")
        getattr(model, method)(*arguments)
    assert all("`ignore_class=0`" in str(warning.message) for warning in caught)
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "compiled, batch, expected",
    [
        ({"loss": OURS}, BATCH, "the loss"),
        ({"loss": KERAS_LOSS}, BATCH, "the loss"),
        ({"loss": OURS}, WEIGHTED, None),
        ({"loss": IGNORING}, BATCH, None),
        ({"loss": IGNORING, "metrics": [kt.TokenAccuracy()]}, WEIGHTED, "`TokenAccuracy`"),
        ({"loss": IGNORING, "metrics": [kt.Perplexity(0)]}, BATCH, None),
        ({"loss": OURS, "weighted_metrics": [kt.Perplexity()]}, WEIGHTED, None),
        ({"loss": lambda labels, logits: logits[..., 0]}, BATCH, None),
    ],
)
def test_padding_that_counts_causes_a_warning(compiled, batch, expected):
    found = warnings_of("train_on_batch", *batch, **compiled)
    assert len(found) == (expected is not None)
    assert all(expected in message for message in found)


def test_warning_names_the_line_that_calls_fit():
    model = transformer()
    model.compile("sgd", OURS)
    with pytest.MonkeyPatch.context() as patch, pytest.warns(UserWarning) as caught:
        patch.setattr(keras.Model, "fit", lambda self, *args, **kwargs: None)
        model.fit(*BATCH)
    assert caught[0].filename == __file__


@pytest.mark.tensorflow_only
@pytest.mark.parametrize("batch, number", [(BATCH, 1), (WEIGHTED, 0)])
def test_spec_of_a_dataset_shows_whether_it_has_weights(batch, number):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensors(batch)
    assert len(warnings_of("fit", dataset, loss=OURS)) == number


def test_data_of_unknown_structure_cause_no_warning():
    assert warnings_of("fit", iter([BATCH]), loss=OURS) == []
