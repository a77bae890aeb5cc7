"""OpenNMT-tf: its own Transformer, loss and optimizer, in its own environment.

    python3.10 -m venv onmt && onmt/bin/pip install opennmt-tf==2.32.0 tensorflow==2.13.1

Its inputs are our batches, without its text pipeline; the update is that of `Model.train`. Its
mixed precision is float16, for GPUs; bfloat16 is the policy of Keras, which its layers follow.
"""

import tempfile

import opennmt
import tensorflow as tf

from train_peers import ADAM, LABEL_SMOOTHING, PAD_TOKEN_ID, WARMUP_STEPS
from train_peers.engine import Engine


class OpenNMT(Engine):
    def __init__(self, request):
        super().__init__(request)
        tf.random.set_seed(0)
        if request["dtype"] == "bfloat16":
            tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
        config = request["config"]
        self.model = make_model(config)
        rate = opennmt.schedules.NoamDecay(1.0, config["hidden_dim"], WARMUP_STEPS)
        self.optimizer = opennmt.optimizers.make_optimizer("Adam", rate, **ADAM)
        self.update = tf.function(
            self.train, input_signature=[tf.TensorSpec([None, None], tf.int64)] * 3
        )
        self.batches = [[tf.constant(ids, tf.int64) for ids in batch] for batch in self.batches]

    def train(self, source, target, labels):
        """Makes an update; returns the loss, summed over the tokens."""
        lengths = [
            tf.math.count_nonzero(ids != PAD_TOKEN_ID, axis=1, dtype=tf.int32)
            for ids in (source, labels)
        ]
        loss = self.model.train(
            {"ids": source, "length": lengths[0]},
            {"ids": target, "ids_out": labels, "length": lengths[1]},
            self.optimizer,
        )
        return loss * tf.cast(tf.reduce_sum(lengths[1]), loss.dtype)

    def first_update(self):
        self.update(*self.batches[0]).numpy()

    def train_pass(self):
        return sum(float(self.update(*batch)) for batch in self.batches) / self.tokens


def make_model(config):
    model = opennmt.models.Transformer(
        num_layers=(config["num_encoder_layers"], config["num_decoder_layers"]),
        num_units=config["hidden_dim"],
        num_heads=config["num_heads"],
        ffn_inner_dim=config["intermediate_dim"],
        dropout=config["dropout"],
        attention_dropout=0.0,
        ffn_dropout=0.0,
        pre_norm=False,
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        output_layer_bias=False,
    )
    # OpenNMT-tf adds a token for unknown words.
    special = ["<blank>", "<s>", "</s>"]
    tokens = special + [str(token_id) for token_id in range(3, config["vocabulary_size"] - 1)]
    with tempfile.NamedTemporaryFile("w", suffix=".vocab") as file:
        file.write("\n".join(tokens))
        file.flush()
        model.initialize(
            {"source_vocabulary": file.name, "target_vocabulary": file.name},
            # The loss is divided by the number of tokens.
            {"label_smoothing": LABEL_SMOOTHING, "average_loss_in_time": True},
        )
        model.create_variables()
    return model
