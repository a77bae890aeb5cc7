"""Transformer: names, shapes, masks, precision, gradients, initial loss."""

import math

import keras
import numpy as np
import pytest

from keras_transformer import (
    SmoothedCrossEntropy,
    TokenAccuracy,
    Transformer,
    TransformerConfig,
)
from tests.builders import (
    assert_close,
    new_transformer,
    padded_ids,
    seeded_call,
    to_numpy,
    token_inputs,
    transformer,
)
from tests.layer_checks import EPSILON, HALF_PRECISION

V = 50
source, target = padded_ids([6, 3], V, seed=1), padded_ids([5, 5], V, seed=2)
inputs = token_inputs(source, target)


def test_inputs_and_output_have_names_and_shapes():
    model = transformer()
    assert {k: (v.shape, v.dtype) for k, v in model.input.items()} == {
        "encoder_token_ids": ((None, None), "int32"),
        "decoder_token_ids": ((None, None), "int32"),
    }
    assert model.output_names == ["logits"]
    assert (model.output.shape, model.output.dtype) == ((None, None, V), "float32")
    assert tuple(model(inputs).shape) == (2, 5, V)
    assert tuple(model.encode(source).shape) == (2, 6, 32)


def test_fields_stand_for_a_config():
    fields = {"vocabulary_size": V, "num_layers": 1, "hidden_dim": 32, "num_heads": 4}
    assert Transformer(**fields).config == TransformerConfig(**fields)
    with pytest.raises(ValueError, match="Give a `config` or its fields, not both"):
        Transformer(transformer().config, hidden_dim=8)
    for wrong in ({}, {"config": "tiny"}, {"config": TransformerConfig.tiny(9).to_dict()}):
        with pytest.raises(ValueError, match="`config` must be a `TransformerConfig`; without it"):
            Transformer(**wrong)
    with pytest.raises(ValueError, match="'num_head'. Did you mean 'num_heads'"):
        Transformer(vocabulary_size=V, num_head=4)


@pytest.fixture
def floatx_of_float64():
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)


# JAX says that it has no float64 unless that is switched on.
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
def test_float64_is_refused_by_name_and_float32_trains_beside_it(floatx_of_float64):
    with pytest.raises(ValueError, match='`dtype` must not be float64.*`dtype="float32"`'):
        new_transformer()
    one_layer = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model = new_transformer(dtype="float32", output_bias=True, **one_layer)
    how = {"run_eagerly": True} if keras.config.backend() == "tensorflow" else {}
    metrics = [TokenAccuracy(ignore_class=0)]
    model.compile("sgd", SmoothedCrossEntropy(ignore_class=0), metrics=metrics, **how)
    for model.fused_loss in (True, False):
        logs = model.train_on_batch(inputs, target, return_dict=True)
        assert np.isfinite(logs["loss"])


def test_list_of_inputs_is_source_then_target():
    """Keras would sort a dict by its keys, so that the target came first."""
    model, expected = transformer(), to_numpy(transformer()(inputs))
    for pair in ([source, target], (source, target)):
        assert_close(to_numpy(model(pair)), expected, 1e-6)
    pairs = [source, target], inputs
    found, wanted = (to_numpy(model.attention_scores(pair)["encoder_decoder"]) for pair in pairs)
    assert_close(found[0], wanted[0], 1e-6)
    symbolic = [keras.Input((None,), dtype="int32") for _ in range(2)]
    outer = keras.Model(symbolic, model(symbolic))
    assert_close(to_numpy(outer([source, target])), expected, 1e-6)
    hidden = model(symbolic, return_hidden=True)
    assert hidden.shape == (None, None, 32)
    found = to_numpy(keras.Model(symbolic, hidden)([source, target]))
    assert_close(found, to_numpy(model(inputs, return_hidden=True)), 1e-6)
    assert_close(model.predict([source, target], verbose=0), expected, 1e-5)


def test_clone_model_is_refused_and_from_config_makes_a_new_model():
    model = transformer()
    with pytest.raises(NotImplementedError, match="from_config"):
        keras.models.clone_model(model)
    twin = type(model).from_config(model.get_config())
    assert twin.config == model.config and twin.count_params() == model.count_params()


def test_summary_names_the_parts():
    lines = []
    transformer().summary(print_fn=lambda line, **_: lines.append(line))
    summary = "\n".join(lines)
    for part in ("encoder_token_ids", "decoder_token_ids", "encoder ", "decoder ", "logits"):
        assert f" {part}" in summary
    assert f"Total params: {transformer().count_params():,}" in summary
    assert "_1" not in summary  # no numbered names, which would differ between processes
    paths = [[v.path for v in new_transformer().trainable_variables] for _ in range(2)]
    assert paths[0] == paths[1] and len(set(paths[0])) == len(paths[0])


RELATIVE = {"normalize_first": True, "positions": "relative", "max_relative_position": 2}


@pytest.mark.parametrize("fields, training", [({}, True), (RELATIVE, False)])
def test_the_future_never_leaks(fields, training):
    rates = {"dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.1}
    model = transformer(**fields, **rates)
    before = to_numpy(seeded_call(model, inputs, training=training))
    for t in range(target.shape[1] - 1):
        changed = target.copy()
        changed[:, t + 1 :] = 4 + (changed[:, t + 1 :] + 1) % (V - 4)
        after = to_numpy(seeded_call(model, token_inputs(source, changed), training=training))
        np.testing.assert_array_equal(after[:, : t + 1], before[:, : t + 1])
        assert (after[:, t + 1] != before[:, t + 1]).any()


@pytest.mark.parametrize(
    "fields, amount", [({}, 1), pytest.param(RELATIVE, 33, marks=pytest.mark.slow_on_jax)]
)
def test_more_padding_changes_no_logits(fields, amount):
    model = transformer(**fields)
    expected = to_numpy(model(inputs))
    wider = [np.pad(ids, [(0, 0), (0, amount)]) for ids in (source, target)]
    actual = to_numpy(model(token_inputs(*wider)))
    assert_close(actual[:, : target.shape[1]], expected, 1e-6)


@pytest.mark.slow_on_jax
def test_another_pad_token_is_masked_too():
    model = transformer(pad_token_id=3, unk_token_id=0)
    expected = to_numpy(model(token_inputs(source[:, :2], target)))
    padded = np.pad(source[:, :2], [(0, 0), (0, 3)], constant_values=3)
    assert_close(to_numpy(model(token_inputs(padded, target))), expected, 1e-6)
    zeros = np.pad(source[:, :2], [(0, 0), (0, 3)])
    assert not np.allclose(to_numpy(model(token_inputs(zeros, target))), expected)


@pytest.mark.slow_on_jax
def test_end_of_the_source_is_masked_as_padding_on_request():
    model = transformer(source_end_token=False)
    expected = to_numpy(model(token_inputs(source[:, :2], target)))
    ended = np.pad(source[:, :2], [(0, 0), (0, 1)], constant_values=model.config.end_token_id)
    assert_close(to_numpy(model(token_inputs(ended, target))), expected, 1e-6)


@pytest.mark.slow_on_jax
def test_sentences_of_a_batch_do_not_touch():
    model = transformer()
    together = to_numpy(model(inputs))
    for b, length in enumerate([6, 3]):
        alone = model(token_inputs(source[b : b + 1, :length], target[b : b + 1]))
        assert_close(to_numpy(alone)[0], together[b], 1e-6)


def test_sentence_of_only_padding_attends_to_nothing():
    model = transformer()
    empty = token_inputs(np.zeros_like(source), target)
    assert np.isfinite(to_numpy(model(empty))).all()
    scores = to_numpy(model.attention_scores(empty))
    for kind in ("encoder", "encoder_decoder"):
        np.testing.assert_array_equal(np.stack(scores[kind]), 0)


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_logits_and_scores_are_float32_in_half_precision(policy):
    expected = to_numpy(transformer()(inputs))
    model = transformer(dtype=policy)
    logits, scores = model(inputs), model.attention_scores(inputs)
    float32_outputs = [logits, *keras.tree.flatten(scores)]
    assert {keras.backend.standardize_dtype(x.dtype) for x in float32_outputs} == {"float32"}
    hidden = model.encode(source)
    assert keras.backend.standardize_dtype(hidden.dtype) == HALF_PRECISION[policy]
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    for block_scores in to_numpy(keras.tree.flatten(scores)):
        np.testing.assert_allclose(block_scores.sum(axis=-1), 1, atol=1e-6)
    # A dozen sub-layers, each of which rounds its output a few times.
    assert_close(to_numpy(logits), expected, 16 * EPSILON[HALF_PRECISION[policy]])


@pytest.mark.parametrize("tie_embeddings", ["all", "decoder", "none"])
def test_every_weight_gets_a_gradient(tie_embeddings):
    """One step of gradient descent at rate 1 changes each weight by its gradient."""
    model = new_transformer(tie_embeddings=tie_embeddings)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    how = {"run_eagerly": True} if keras.config.backend() == "tensorflow" else {}
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss, **how)
    before = {v.path: to_numpy(v) for v in model.trainable_variables}
    model.train_on_batch(inputs, target)
    for variable in model.trainable_variables:
        gradient = before[variable.path] - to_numpy(variable)
        assert np.isfinite(gradient).all()
        # A key bias shifts all similarities of a query equally, which softmax ignores.
        assert variable.path.endswith("key/bias") or gradient.any(), variable.path


@pytest.mark.parametrize("tie_embeddings, normalize_first", [("all", False), ("none", True)])
def test_first_loss_is_that_of_a_guess(tie_embeddings, normalize_first):
    keras.utils.set_random_seed(0)
    fields = {"tie_embeddings": tie_embeddings, "normalize_first": normalize_first}
    config = TransformerConfig.tiny(1000, **fields)
    source, target = padded_ids([20] * 8, 1000, seed=1), padded_ids([21] * 8, 1000, seed=2)
    logits = Transformer(config)(token_inputs(source, target[:, :-1]))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(target[:, 1:], logits)
    assert abs(to_numpy(loss) - math.log(1000)) < 1
