"""Lists where the time of a train step goes, by part of the model and by operation.

    python benchmarks/profile_step.py --data MULTI30K
    python benchmarks/profile_step.py --data MULTI30K --logits --dtype mixed_bfloat16

TensorFlow's profiler measures the operations while `--batches` batches of Multi30k are trained on,
after two passes that are not measured. The milliseconds are sums over the threads, per update: with
two threads, they may add up to twice the time of the update. `--logits` turns `fused_loss` off.
"""

import argparse
import collections
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2
from train_peers.bench import SIZES, VOCABULARY_SIZE
from train_peers.corpus import make_tokenizer, sample_batches
from train_peers.engine import count_tokens
from train_peers.keras_engine import dataset_of
from train_peers.ours import compiled

import keras_transformer as kt

# The first part of which a word is in the operation's name.
PARTS = {
    "optimizer": ("adam",),
    "layer norm": ("layer_norm",),
    "dropout": ("dropout",),
    "loss": ("while", "softmax_cross_entropy", "one_hot", "embedding_1/MatMul"),
    "feed-forward": ("feed_forward",),
    "attention: projections": ("query_", "key_", "value_", "output_"),
    "attention: products, softmax, masks, heads": ("attention",),
    "embedding": ("embedding",),
}
REST = "gradients of layer norm, sums of gradients, other"
LARGEST = 6  # operations shown of each part


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="folder of Multi30k")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--logits", action="store_true", help="with `fused_loss=False`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        update, batches = prepare(arguments, folder)
        seconds = []
        for number in range(3):
            if number == 2:
                tf.profiler.experimental.start(folder)
            began = time.perf_counter()
            for _ in range(len(batches)):
                loss = update()
            float(loss)
            seconds.append(time.perf_counter() - began)
        tf.profiler.experimental.stop()
        times = operation_times(folder, len(batches))
    tokens = count_tokens(batches)
    print(f"{arguments.size}, {arguments.dtype}: {tokens / seconds[1]:,.0f} target tokens/s")
    print(f"{1000 * seconds[1] / len(batches):.0f} ms an update, not profiled")
    print_parts(times)


def prepare(arguments, folder):
    """Returns a function that makes one update and returns its loss, and the batches."""
    slots, *_ = SIZES[arguments.size]
    tokenizer = make_tokenizer(arguments.data, VOCABULARY_SIZE, pathlib.Path(folder, "tokenizer"))
    batches = sample_batches(arguments.data, tokenizer, slots, arguments.batches)
    config = getattr(kt.TransformerConfig, arguments.size)(VOCABULARY_SIZE)
    model = compiled(kt.Transformer(config, dtype=arguments.dtype))
    model.fused_loss = not arguments.logits
    iterator = iter(dataset_of(batches).cache().repeat())
    model.make_train_function()
    return lambda: model.train_function(iterator)["loss"], batches


def operation_times(folder, updates):
    """Returns the milliseconds per update by operation type, for each part of the model."""
    (path,) = pathlib.Path(folder).glob("plugins/profile/*/*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    times = collections.defaultdict(collections.Counter)
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name, _, kind = plane.event_metadata[event.metadata_id].name.rpartition(":")
            # Others are of the profiler, or contain operations.
            if "/" in name and kind[:1] in "_ABCDEFGHIJKLMNOPQRSTUVWXYZ" and kind != "While":
                times[part_of(name)][kind] += event.duration_ps / 1e9 / updates
    return times


def part_of(name):
    for part, words in PARTS.items():
        if any(word in name for word in words):
            return part
    return REST


def print_parts(times):
    total = sum(sum(part.values()) for part in times.values())
    print(f"{'part':50}{'ms':>7}{'share':>8}  largest operations, ms")
    for part, kinds in sorted(times.items(), key=lambda item: -sum(item[1].values())):
        milliseconds = sum(kinds.values())
        largest = ", ".join(f"{kind} {ms:.0f}" for kind, ms in kinds.most_common(LARGEST))
        print(f"{part:50}{milliseconds:7.0f}{milliseconds / total:8.1%}  {largest}")
    print(f"{'all':50}{total:7.0f}")


if __name__ == "__main__":
    main()
