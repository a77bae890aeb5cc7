"""Runs in OpenNMT-tf's environment: reads a model's sizes, then sentences, as lines of JSON.

The search's own parameters force the length; a forced search costs the same as a free one.
"""

import functools
import json
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import opennmt
import tensorflow as tf


def make_model(vocabulary_size, sizes):
    """Returns a model of the given sizes, and the ids of its token strings."""
    special = ["<blank>", "<s>", "</s>"]
    # OpenNMT-tf adds a token for unknown words.
    tokens = special + [str(token_id) for token_id in range(3, vocabulary_size - 1)]
    sizes["num_layers"] = tuple(sizes["num_layers"])
    model = opennmt.models.Transformer(
        share_embeddings=opennmt.models.EmbeddingsSharingLevel.ALL,
        output_layer_bias=False,
        **sizes,
    )
    with tempfile.NamedTemporaryFile("w", suffix=".vocab") as file:
        file.write("\n".join(tokens))
        file.flush()
        model.initialize({"source_vocabulary": file.name, "target_vocabulary": file.name})
        model.create_variables()
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    return model, ids | {"<unk>": vocabulary_size - 1}


def make_decode(model):
    @functools.cache
    def search(beam_size, length):
        @tf.function(
            input_signature=[tf.TensorSpec([None, None], tf.int64), tf.TensorSpec([None], tf.int32)]
        )
        def run(ids, lengths):
            model.params.update(
                beam_width=beam_size,
                length_penalty=0.6,
                minimum_decoding_length=length,
                maximum_decoding_length=length,
            )
            _, predictions = model({"ids": ids, "length": lengths})
            return predictions["tokens"][:, 0]

        return run

    def decode(sentences, beam_size, length):
        ragged = tf.ragged.constant(sentences, tf.int64)
        lengths = tf.cast(ragged.row_lengths(), tf.int32)
        return search(beam_size, length)(ragged.to_tensor(), lengths).numpy()

    return decode


def main():
    first = json.loads(sys.stdin.readline())
    tf.config.threading.set_intra_op_parallelism_threads(first["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(first["threads"])
    model, ids = make_model(first["vocabulary_size"], first["sizes"])
    decode = make_decode(model)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        rows = decode(**json.loads(line))
        print(json.dumps([[ids[token.decode()] for token in row] for row in rows]), flush=True)


if __name__ == "__main__":
    main()
