"""What of a layer cannot run side by side, and how a gradient gets from one position to another.

Counted in the graph that TensorFlow makes of a causal layer, and measured with its gradients.
Letters: n length, D width.
"""

import functools

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import layers
from layer_types.mixers import CausalConvolution, CausalLSTM
from layer_types.models import make_model

LENGTHS = 10, 20, 50, 100, 200
WIDTH = 128
CAUSAL_LAYERS = {
    "self-attention": layers.MultiHeadAttention,
    "recurrent": CausalLSTM,
    "convolutional": CausalConvolution,
}
# Nothing else in a layer costs more than a pass over its numbers.
PRODUCTS = "MatMul", "BatchMatMulV2", "Conv2D"
# All operations that change a number; the others only move it.
ARITHMETIC = *PRODUCTS, "AddV2", "BiasAdd", "Mul", "Sigmoid", "Softmax", "Sub", "Tanh"
GRADIENT_LENGTH, GRADIENT_LAYERS, GRADIENT_SEEDS = 100, 4, 5


def measure_layer(layer_type, length):
    """Returns the operations of a causal layer over a sequence, and its longest paths."""
    graph = graph_of(layer_type, length)
    connects = layers_to_connect(layer_type, length)
    return {
        "multiply_adds": sum(multiply_adds(op) for op in graph.get_operations()),
        "sequential": longest_chain(graph),
        "layers_to_connect": connects,
        "path": connects * shortest_path(graph),
    }


def graph_of(layer_type, length):
    """Returns the graph from the inputs of each position to the last output, for one sequence.

    Keras's layer hides the steps of an LSTM in a loop, so here its cell is called step by step.
    """
    layer = new_layer(layer_type, length)

    def last_output(*positions):
        if layer_type == "recurrent":
            state = tf.zeros((1, layer.state_dim))
            for x in positions:
                outputs, state = layer.advance(x[:, None], state)
            return outputs[:, 0]
        return causal(layer, tf.stack(positions, axis=1))[:, -1]

    spec = tf.TensorSpec((1, WIDTH), tf.float32)
    return tf.function(last_output, autograph=False).get_concrete_function(*[spec] * length).graph


def new_layer(layer_type, length):
    layer = CAUSAL_LAYERS[layer_type](num_heads=4)
    shape = 1, length, WIDTH
    layer.build(shape, shape)
    return layer


def causal(layer, x):
    return layer(query=x, value=x, use_causal_mask=True)


def multiply_adds(op):
    """Returns the number of multiplications of a matrix product; 0 for other operations."""
    if op.type not in PRODUCTS:
        return 0
    outputs, kernel = op.outputs[0].shape, op.inputs[1].shape
    if op.type == "Conv2D":
        contracted = np.prod(kernel[:-1])
    else:
        transposed = op.get_attr("transpose_b" if op.type == "MatMul" else "adj_y")
        contracted = kernel[-1 if transposed else -2]
    return int(np.prod(outputs)) * int(contracted)


def longest_chain(graph):
    """Returns the number of products on the longest chain: each waits for the one before it."""
    depth = {}
    for op in graph.get_operations():
        before = max((depth[tensor.op.name] for tensor in op.inputs), default=0)
        depth[op.name] = before + (op.type in PRODUCTS)
    return max(depth.values())


def shortest_path(graph):
    """Returns the fewest arithmetic operations between input 0 and the last output."""
    first = graph.inputs[0].op.name
    distance = {first: 0}
    for op in graph.get_operations():
        known = [distance[t.op.name] for t in op.inputs if t.op.name in distance]
        if op.name != first and known:
            distance[op.name] = min(known) + (op.type in ARITHMETIC)
    return distance[graph.outputs[0].op.name]


def layers_to_connect(layer_type, length):
    """Returns how many such layers it takes until the last output depends on input 0."""
    layer = new_layer(layer_type, length)
    # A copy of the sequence for each output position, so that one gradient has them all.
    x = tf.repeat(tf.random.stateless_normal((1, length, WIDTH), (1, 2)), length, axis=0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = tf.linalg.diag_part(tf.transpose(causal(layer, x), [2, 0, 1]))
        output = tf.reduce_sum(outputs)
    # (T, T): whether output t depends on input s
    pattern = np.any(tape.gradient(output, x) != 0, axis=-1)
    reached, number = pattern.copy(), 1
    while not reached[-1, 0]:
        reached, number = reached.astype(int) @ pattern > 0, number + 1
    return number


def gradient_norms(layer_type):
    """Returns the norm of d output / d input by distance, relative to distance 0.

    The output is a random direction at the last position of a new encoder, the input a vector at
    each position; the geometric mean over seeds.
    """
    norms = []
    for seed in range(GRADIENT_SEEDS):
        keras.utils.set_random_seed(seed)
        fields = {"num_layers": GRADIENT_LAYERS, "num_heads": 4, "dropout": 0.0}
        encoder = make_model(layer_type, 100, WIDTH, **fields).encoder
        x = tf.random.normal((8, GRADIENT_LENGTH, WIDTH))
        direction = tf.random.normal((WIDTH,))
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = x
            for block in encoder.blocks:
                outputs = block(outputs)
            output = tf.reduce_sum(outputs[:, -1] * direction)
        gradient = tf.reverse(tape.gradient(output, x), axis=[1])
        norms.append(tf.reduce_mean(tf.norm(gradient, axis=-1), axis=0))
    with np.errstate(divide="ignore"):  # 0 where no path leads
        means = np.exp(np.mean(np.log(norms), axis=0))
    return {"norms": [float(f"{norm:.2e}") for norm in means / means[0]]}


def structure_works():
    """Returns the measurements by key."""
    works = {
        f"{layer_type}, {length}": functools.partial(measure_layer, layer_type, length)
        for layer_type in CAUSAL_LAYERS
        for length in LENGTHS
    }
    for layer_type in CAUSAL_LAYERS:
        works[f"{layer_type}, gradients"] = functools.partial(gradient_norms, layer_type)
    return works
