"""PositionalEmbedding, compared with the paper's formulas; masks, dtypes, learned positions."""

import math

import keras
import numpy as np
import pytest

from keras_transformer.layers import PositionalEmbedding, PositionalEncoding, sinusoidal_encoding
from tests.builders import assert_close, normal, randomize, to_numpy
from tests.layer_checks import EPSILON, HALF_PRECISION, check_config, check_layer
from tests.paper_reference import positional_encoding

V, D = 11, 8
LEARNED = {"positions": "learned", "max_sequence_length": 6}
TENSOR2TENSOR = {"positions": "tensor2tensor", "first_position": 1}
ids = np.array([[4, 5, 6, 7], [8, 9, 4, 0]], dtype="int32")


def built(**config):
    layer = PositionalEmbedding(V, D, **config)
    layer(ids)
    return randomize(layer)


def timing_signal(positions, width):
    """`get_timing_signal_1d` of Tensor2Tensor, whose columns are sines, cosines and a zero."""
    number = width // 2
    increment = math.log(10000) / max(number - 1, 1)
    scaled = np.arange(*positions)[:, None] * np.exp(np.arange(number) * -increment)
    signal = np.concatenate([np.sin(scaled), np.cos(scaled)], axis=1)
    return np.pad(signal, [[0, 0], [0, width % 2]])


def in_halves(width):
    """Columns sine, cosine, sine, cosine, ... -> all sines, all cosines."""
    return [*range(0, width - 1, 2), *range(1, width, 2), *range(width - width % 2, width)]


@pytest.mark.parametrize("width", [16, 7, 4, 3, 2, 1])
def test_sinusoidal_encoding_equals_the_formula(width):
    ours = to_numpy(sinusoidal_encoding(np.arange(50), width))
    assert_close(ours, positional_encoding(50, width), 1e-5)
    tensor2tensors = to_numpy(sinusoidal_encoding(np.arange(50), width, tensor2tensor=True))
    assert_close(tensor2tensors[:, in_halves(width)], timing_signal((0, 50), width), 1e-5)


@pytest.mark.parametrize(
    "positions, first",
    [("sinusoidal", 0), ("sinusoidal", 1), ("tensor2tensor", 1), ("learned", 0)],
)
def test_layers_add_the_positions_from_the_first_and_the_start_on(positions, first):
    """The embedding is scaled by the root of its width; a table of positions is read by rows."""
    learned = LEARNED if positions == "learned" else {}
    arguments = {"positions": positions, "first_position": first, **learned}
    series, encoding = normal(2, 4, D), PositionalEncoding(**arguments)
    encoding.build(series.shape)
    layer = built(**arguments)
    vectors = to_numpy(layer.embeddings)[ids] * math.sqrt(D)
    for each, inputs, added in ((randomize(encoding), series, series), (layer, ids, vectors)):
        if positions == "learned":
            table = to_numpy(each.position_embeddings)
        elif positions == "sinusoidal":
            table = positional_encoding(first + 9, D)[first:]
        else:
            table = np.zeros((9, D))
            table[:, in_halves(D)] = timing_signal((first, first + 9), D)
        for start in (0, 2, np.int32(2), np.int64(2), keras.ops.convert_to_tensor(2)):
            found = to_numpy(each(inputs, start_index=start))
            assert_close(found, added + table[int(start) :][:4], 1e-6)
    assert_close(to_numpy(layer.encode_positions([3, 4, 5])), table[3:6], 1e-6)


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_positions_are_exact_in_half_precision(policy):
    layer, dtype = PositionalEmbedding(V, 64, dtype=policy), HALF_PRECISION[policy]
    layer.build()
    layer.embeddings.assign(np.zeros((V, 64)))
    for position in (0, 1, 512, 5000):
        encoded = layer(np.array([[4]]), start_index=position)
        assert keras.backend.standardize_dtype(encoded.dtype) == dtype
        expected = positional_encoding(position + 1, 64)[position]
        angle_error = position * 2.0**-23  # of float32 angles: frequency and product are rounded
        difference = np.abs(to_numpy(encoded)[0, 0] - expected)
        tolerance = EPSILON[dtype] / 2 * np.abs(expected) + angle_error + 1e-6
        assert (difference <= tolerance).all(), position


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_logits_of_half_precision_are_float32(policy):
    logits = built(dtype=policy)(normal(2, 4, D), reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_matrix_and_positions_have_an_initializer_each():
    def new(**initializers):
        layer = PositionalEmbedding(V, D, **LEARNED, **initializers)
        layer.build()
        return layer, *to_numpy([layer.embeddings, layer.position_embeddings])

    of_words = keras.initializers.Constant(2.0)
    layer, words, positions = new(embeddings_initializer=of_words, positions_initializer="zeros")
    assert (words == 2).all() and (positions == 0).all()
    twin = PositionalEmbedding.from_config(layer.get_config())
    twin.build()
    assert (to_numpy(twin.position_embeddings) == 0).all()
    matrix = normal(V, D)  # of the shape of the words alone
    _, words, positions = new(embeddings_initializer=lambda shape, dtype: matrix.reshape(shape))
    assert (words == matrix).all()
    assert 0.2 < positions.std() * D**0.5 < 2, "the paper's normal distribution"


def test_weights_are_loaded_before_the_last_rows_are_trained_alone():
    """A file holds one matrix, also of a layer that trains its last rows."""
    store = {}
    layer = built()
    layer.train_last_rows(2)
    layer.last_rows.assign(layer.last_rows + 1)
    expected = to_numpy(layer(ids))
    layer.save_own_variables(store)
    with pytest.raises(ValueError, match="before `train_last_rows`"):
        layer.load_own_variables(store)
    other = built()
    other.load_own_variables({name: np.array(value) for name, value in store.items()})
    assert_close(to_numpy(other(ids)), expected, 1e-6)


@pytest.mark.parametrize("count", [0, V + 1, 2.0])
def test_wrong_number_of_last_rows_leaves_the_layer_as_it_is(count):
    layer = built()
    expected = to_numpy(layer(ids))
    with pytest.raises(ValueError, match=f"`count` .*count={count}"):
        layer.train_last_rows(count)
    np.testing.assert_array_equal(to_numpy(layer(ids)), expected)
    layer.train_last_rows(np.int64(V))
    np.testing.assert_array_equal(to_numpy(layer(ids)), expected)


@pytest.mark.parametrize("positions, mask_zero", [({}, True), (LEARNED, False)])
def test_layer_passes_the_layer_checks(positions, mask_zero):
    config = {"vocabulary_size": V, "hidden_dim": D, "mask_zero": mask_zero, **positions}
    check_layer(PositionalEmbedding, config, {"inputs": ids})


@pytest.mark.parametrize("mask_zero", [False, True])
def test_padding_is_masked_only_with_mask_zero(mask_zero):
    """Average pooling applies the mask, also that of hidden states, to the logits."""
    layer, average = built(mask_zero=mask_zero), keras.layers.GlobalAveragePooling1D()
    counted = ids != 0 if mask_zero else np.ones_like(ids, bool)
    for outputs in (layer(ids), layer(layer(ids), reverse=True)):
        rows = zip(to_numpy(outputs), counted, strict=True)
        expected = [row[real].mean(axis=0) for row, real in rows]
        assert_close(to_numpy(average(outputs)), np.stack(expected), 1e-6)
    for inputs in (ids, ids.astype("float32")):
        mask = layer.compute_mask(keras.ops.convert_to_tensor(inputs))
        assert mask is None if not mask_zero else (to_numpy(mask) == (ids != 0)).all()
    zeros = keras.ops.zeros((2, 4, D))  # hidden states are no padding
    assert layer.compute_mask(zeros) is None


@pytest.mark.parametrize("policy", ["float32", *HALF_PRECISION])
def test_float_token_ids_equal_integer_token_ids(policy):
    layer = PositionalEmbedding(5000, D, dtype=policy)
    odd = np.array([[4999, 1001, 257, 0]])
    expected = to_numpy(layer(odd))
    for dtype in ("float32", "float64", "uint16"):
        np.testing.assert_array_equal(to_numpy(layer(odd.astype(dtype))), expected)


@pytest.mark.parametrize("policy", HALF_PRECISION)
def test_dtype_that_cannot_represent_every_token_id_raises(policy):
    """`keras.Sequential` casts its inputs to the compute dtype, which would round 257 to 256."""
    dtype = HALF_PRECISION[policy]
    model = keras.Sequential([PositionalEmbedding(5000, D, dtype=policy)])
    message = f"Token ids must be integers: {dtype}.*Received: .*vocabulary_size=5000"
    with pytest.raises(ValueError, match=message):
        model.predict(ids, verbose=0)
    small = PositionalEmbedding(257, D, dtype=policy)
    every_id = np.arange(257).reshape(1, -1)
    halved = small(keras.ops.cast(every_id, dtype))
    np.testing.assert_array_equal(to_numpy(halved), to_numpy(small(every_id)))


@pytest.mark.parametrize(
    "length, start_index, convert",
    [(7, 0, int), (1, 6, np.int32), (4, 3, keras.ops.convert_to_tensor), (4, -1, int)],
)
def test_position_outside_the_learned_table_raises(length, start_index, convert):
    layer = built(**LEARNED)
    with pytest.raises(ValueError, match=f"`max_sequence_length`=6. Received: {length} tokens"):
        layer(np.ones((1, length), "int32"), start_index=convert(start_index))


def functions_of_unknown_length(layer, folder):
    """{name: function of the number of tokens}; the graph of each does not know the number."""
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((), tf.int32)])
    def decode(length):
        def step(index, total):
            embedded = layer(tf.ones((1, 1), tf.int32), start_index=index)
            return index + 1, total + embedded[0, 0]

        return tf.while_loop(lambda index, _: index < length, step, (0, tf.zeros(D)))[1]

    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, layer(inputs))
    model.export(folder, verbose=False)
    loaded = tf.saved_model.load(folder)
    return {
        "model": lambda length: model.predict_on_batch(np.ones((1, length), "int32")),
        "SavedModel": lambda length: loaded.serve(tf.ones((1, length), tf.int32)),
        "decoding": decode,
    }


@pytest.mark.tensorflow_only
def test_position_outside_the_learned_table_raises_in_graphs(tmp_path):
    import tensorflow as tf

    for name, function in functions_of_unknown_length(built(**LEARNED), tmp_path).items():
        assert np.isfinite(function(6)).all(), name
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            function(7)
        tokens, start_index = (1, 6) if name == "decoding" else (7, 0)
        received = f"=6. Received:] [{tokens}] [tokens, start_index =] [{start_index}]"
        assert received in str(error.value), name


def test_position_outside_the_learned_table_is_nan_in_compiled_code():
    layer = built(**LEARNED)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(
            lambda index: layer(ids, start_index=index),
            input_signature=[tf.TensorSpec((), tf.int32)],
            jit_compile=True,
        )
    elif keras.config.backend() == "jax":
        import jax

        compiled = jax.jit(lambda index: layer(ids, start_index=index))
    else:
        pytest.skip("PyTorch compiles nothing here, so all positions are static")
    assert_close(to_numpy(compiled(np.int32(2))), to_numpy(layer(ids, start_index=2)), 1e-6)
    outputs = to_numpy(compiled(np.int32(4)))
    assert np.isfinite(outputs[:, :2]).all() and np.isnan(outputs[:, 2:]).all()


def test_encoding_passes_the_layer_checks():
    check_layer(PositionalEncoding, LEARNED, {"inputs": normal(2, 4, 7)})
    check_config(PositionalEncoding, TENSOR2TENSOR)
    sizes = {"vocabulary_size": V, "hidden_dim": D}
    check_config(PositionalEmbedding, sizes | TENSOR2TENSOR)


def test_encoding_propagates_the_mask():
    padded = np.where(np.arange(4)[:, None] < 3, normal(2, 4, D), 0)
    masked = keras.layers.Masking()(padded)
    average = to_numpy(keras.layers.GlobalAveragePooling1D()(PositionalEncoding()(masked)))
    assert_close(average, (padded + positional_encoding(4, D))[:, :3].mean(axis=1), 1e-6)
