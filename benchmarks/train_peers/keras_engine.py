"""`KerasEngine`: what the engines with `fit` have in common."""

import keras
import tensorflow as tf

import keras_transformer as kt
from train_peers import ADAM, PAD_TOKEN_ID, WARMUP_STEPS
from train_peers.engine import Engine

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


class KerasEngine(Engine):
    """Trains `self.model` by `fit` with a dataset like that of `make_dataset`.

    Subclasses have `make_model(config, policy)`, which returns a compiled model.
    """

    def __init__(self, request):
        super().__init__(request)
        keras.utils.set_random_seed(0)
        self.config = kt.TransformerConfig(**request["config"])
        self.model = self.make_model(self.config, POLICIES[request["dtype"]])

    def first_update(self):
        self._fit(self.batches[:1])

    def train_pass(self):
        return self._fit(self.batches)

    def _fit(self, batches):
        history = self.model.fit(dataset_of(batches), epochs=1, verbose=0)
        return history.history["loss"][0]


def optimizer_of(config):
    return kt.paper_optimizer(config, WARMUP_STEPS, **ADAM)


def dataset_of(batches):
    """Returns a dataset of `(inputs, labels, sample_weight)`, made by a generator as ours."""
    shapes = {batch[0].shape for batch in batches} | {batch[2].shape for batch in batches}
    ids = tf.TensorSpec((None, None), tf.int32)
    if len(shapes) == 1:  # XLA needs the shape
        ids = tf.TensorSpec(shapes.pop(), tf.int32)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    signature = inputs, ids, tf.TensorSpec(ids.shape, tf.float32)

    def examples():
        for source, target, labels in batches:
            inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
            yield inputs, labels, (labels != PAD_TOKEN_ID).astype("float32")

    dataset = tf.data.Dataset.from_generator(examples, output_signature=signature)
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = dataset.prefetch(2).with_options(options)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
