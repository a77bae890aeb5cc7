"""The matrix products of the train step alone, one after another, in our dtype and number.

Forward and backward: `A B`, `dC B'` and `A' dC` have the same number of operations. The vocabulary
product has the real tokens only; all others have the padding too. Inputs are ready, outputs are
dropped, and malloc keeps their memory (`KEEPING_MALLOC`): the rate is that of the products.
"""

import time

import tensorflow as tf

from train_peers.engine import Engine
from train_peers.operations import operations_of, products_of


class Products(Engine):
    """Measures the products of a pass: `measure` returns also their `operations`."""

    def __init__(self, request):
        super().__init__(request)
        self.dtype = getattr(tf, request["dtype"])
        self.products = [products_of(batch, request["config"]) for batch in self.batches]

    def first_update(self):
        pass

    def measure(self):
        seconds = 0
        for counts in self.products:
            for (outer, m, k, n), count in counts.items():
                seconds += self._time(outer, m, k, n, count)
        return {"seconds": seconds, "operations": sum(map(operations_of, self.products))}

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
