"""Checks that our search finds the same translations on all backends, with one model file.

    python benchmarks/backends.py --run RUN --source SOURCE
    python benchmarks/backends.py --near-ties

TensorFlow (the graph, and XLA), JAX and PyTorch translate the same token ids, greedily and with a
beam of 4. Every hypothesis that differs from the one of TensorFlow's graph is printed with both
scores. It is a tie if the scores differ by at most 1e-4: the last bits of a product depend on the
backend. The exit code is 1 if another one differs. `--near-ties` needs no run: the rows of the
embedding of a random model are almost equal, so most steps are near ties.

It needs JAX and PyTorch beside TensorFlow. Linux only.
"""

import argparse
import contextlib
import sys

from decode import BEAMS, batched, compare, random_sentences, trained, use_threads

BATCH, COMPILED_BATCH = 64, 8  # XLA compiles at most 8 sentences on TensorFlow
MAX_LENGTH = 64
# Distance of the rows of the embedding, relative to them: the best two logits differ by 1e-6.
NEAR = 2e-6


def near_ties():
    """Returns a random model whose logits are almost equal, and sentences."""
    import keras

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    model = kt.Transformer(kt.TransformerConfig.tiny(200, num_layers=2))
    embeddings = model.decoder.embedding.embeddings
    rows = embeddings.numpy()
    embeddings.assign(rows[:1] + NEAR * rows)
    sentences = [[token % 190 + 5 for token in row] for row in random_sentences(200)]
    return model, sentences


def check(model, sentences, order):
    """Prints what differs, and returns whether all of it is ties."""
    from decode_peers.backend import Backend
    from decode_peers.ours import Ours

    passed = []
    with contextlib.ExitStack() as stack:
        peers = {"XLA": (Ours(model), COMPILED_BATCH)}
        for backend in ("jax", "torch"):
            peer = Backend(model, backend, threads=1)
            stack.callback(peer.close)
            peers[peer.name] = peer, BATCH
        graph = Ours(model, compiled=False)
        for beam_size in BEAMS:
            expected = decode(graph, sentences, beam_size, BATCH)
            for name, (peer, size) in peers.items():
                print(f"\nBeam {beam_size}, {name}")
                found = decode(peer, sentences, beam_size, size)
                passed.append(compare(order, expected, found))
    return all(passed)


def decode(peer, sentences, beam_size, batch):
    """Returns the best hypothesis of each sentence, and its score."""
    found = []
    for part in batched(sentences, batch):
        found += peer.scored(part, beam_size, MAX_LENGTH)
    return [(list(token_ids), score) for token_ids, score in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="folder of a trained run")
    parser.add_argument("--model", help="another model file, such as an average")
    parser.add_argument("--source", help="file of sentences")
    parser.add_argument("--near-ties", action="store_true", help="a random model instead of --run")
    arguments = parser.parse_args()
    use_threads(1)
    if arguments.near_ties:
        model, sentences = near_ties()
        order = range(len(sentences))
    else:
        translator, sentences, order = trained(arguments)
        model = translator.model
    sys.exit(not check(model, sentences, order))


if __name__ == "__main__":
    main()
