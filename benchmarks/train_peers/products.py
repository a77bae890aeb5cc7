"""The matrix products of the train step alone, one after another, in our dtype and number.

Forward and backward: `A B`, `dC B'` and `A' dC` have the same number of operations. The vocabulary
product has the real tokens only; all others have the padding too. Inputs are ready, outputs are
dropped, and malloc keeps their memory (`KEEPING_MALLOC`): the rate is that of the products.
"""

import time

import tensorflow as tf

from train_peers.engine import Engine


class Products(Engine):
    """Measures the products of a pass: `measure` returns also their `operations`."""

    def __init__(self, request):
        super().__init__(request)
        self.dtype = getattr(tf, request["dtype"])
        self.products = [products_of(batch, request["config"]) for batch in self.batches]

    def first_update(self):
        pass

    def measure(self):
        seconds = operations = 0
        for counts in self.products:
            for (outer, m, k, n), count in counts.items():
                seconds += self._time(outer, m, k, n, count)
                operations += 3 * count * 2 * outer * m * k * n
        return {"seconds": seconds, "operations": operations}

    def _time(self, outer, m, k, n, count):
        """Returns the seconds of `count` products with their two gradients."""
        a, b, c = (self._random(outer, *shape) for shape in ((m, k), (k, n), (m, n)))
        began = time.perf_counter()
        for _ in range(count):
            tf.matmul(a, b)
            tf.matmul(c, b, transpose_b=True)
            tf.matmul(a, c, transpose_a=True)
        return time.perf_counter() - began

    def _random(self, outer, rows, columns):
        shape = (rows, columns) if outer == 1 else (outer, rows, columns)
        return tf.cast(tf.random.uniform(shape, -1.0, 1.0), self.dtype)


def products_of(batch, config):
    """Returns the forward products of a batch.

    Returns:
        dict from `(outer, m, k, n)`, that many `(m, k) @ (k, n)`, to their number in the model.
    """
    source, target, labels = batch
    (rows, s), (_, t) = source.shape, target.shape
    width, inner, heads = (config[name] for name in ("hidden_dim", "intermediate_dim", "num_heads"))
    encoders, decoders = config["num_encoder_layers"], config["num_decoder_layers"]
    counts = {}

    def add(count, outer, m, k, n):
        key = outer, m, k, n
        counts[key] = counts.get(key, 0) + count

    def attend(count, queries, keys):
        add(count, rows * heads, queries, config["key_dim"], keys)
        add(count, rows * heads, queries, keys, config["value_dim"])

    # Query, key, value and output; the decoder's second keys and values come from the source.
    add(4 * encoders + 2 * decoders, 1, rows * s, width, width)
    add(6 * decoders, 1, rows * t, width, width)
    for layers, slots in ((encoders, rows * s), (decoders, rows * t)):
        add(layers, 1, slots, width, inner)
        add(layers, 1, slots, inner, width)
    attend(encoders, s, s)
    attend(decoders, t, t)
    attend(decoders, t, s)
    add(1, 1, int((labels != 0).sum()), width, config["vocabulary_size"])
    return counts
