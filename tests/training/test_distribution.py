"""Which strategy is chosen or refused, and how rows are split over replicas."""

import json
import os
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import (
    SmoothedCrossEntropy,
    TrainingLogger,
    get_strategy,
    make_dataset,
    number_names,
)
from keras_transformer.data.pipeline import BatchStream
from keras_transformer.training import distribution
from keras_transformer.training.step_tensorflow import split_rows
from keras_transformer.training.workers import sum_over_workers
from tests.builders import learned_tokenizer
from tests.data.test_feeder import arrays_of, assert_same_batches, planned
from tests.replicas import mirrored
from tests.training.small_models import Tagger

pytestmark = [pytest.mark.tensorflow_only, pytest.mark.slow]

DEVICES = ["CPU:0", "CPU:1"]


def test_strategy_is_the_same_object_for_the_same_devices():
    assert get_strategy() is get_strategy("auto") is get_strategy("single")
    assert get_strategy("mirrored", DEVICES) is get_strategy("auto", DEVICES)
    assert isinstance(get_strategy("mirrored", DEVICES), tf.distribute.MirroredStrategy)
    assert get_strategy("mirrored", DEVICES).num_replicas_in_sync == 2
    assert get_strategy("single", ["CPU:1"]) is get_strategy("single", ["CPU:1"])
    assert get_strategy("single", ["CPU:1"]) is not get_strategy("single")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("parameter_server",), "ParameterServerStrategy.*asynchronous"),
        (("horovod",), "one of auto, single, mirrored, multi_worker.*'horovod'"),
        (("mirrored", ["GPU:7"]), "no device 'GPU:7'.*CPU:0"),
        (("mirrored", []), "list of device names"),
        (("mirrored", "GPU:0"), "list of device names"),
        (("single", DEVICES), "one device"),
        (("mirrored", DEVICES[:1] * 2), "each device once"),
        (("multi_worker", DEVICES), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_wrong_strategies_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        get_strategy(*arguments)


def test_devices_are_refused_where_the_cluster_has_several_workers(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}}')
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        get_strategy("auto", DEVICES)


TWO = {"worker": ["a:1", "b:1"]}


@pytest.mark.parametrize(
    "config",
    ["[]", "5", "null", '"x"', "{", '{"cluster": null}', '{"cluster": []}']
    + [json.dumps({"cluster": {"worker": addresses}}) for addresses in (5, "ab", None)]
    + [json.dumps({"cluster": TWO, "task": task}) for task in (None, "worker", {})]
    + [
        json.dumps({"cluster": TWO, "task": {"type": kind, "index": index}})
        for kind, index in (("chief", 0), ("worker", 2), ("worker", -1), ("worker", "0"))
    ],
)
def test_config_that_describes_no_cluster_is_refused(config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    with pytest.raises(ValueError, match="TF_CONFIG must describe") as caught:
        get_strategy("auto")
    assert str(caught.value).endswith(f"Received: {config}")


@pytest.mark.parametrize(
    "config", ["", "{}", '{"cluster": {}}', '{"cluster": {"worker": ["a:1"]}}']
)
def test_config_without_other_workers_changes_nothing(config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", config)
    assert get_strategy("auto") is get_strategy("single")


@pytest.mark.parametrize("devices", [1, 3, 6, 7])
def test_sum_over_workers_is_exact_for_any_number_of_devices(devices):
    assert sum_over_workers(TwoWorkers(devices), 1000.0) == 2000.0


class TwoWorkers:
    """What `sum_over_workers` uses of a strategy whose two workers give the same value."""

    def __init__(self, devices):
        self.num_replicas_in_sync = 2 * devices
        self.extended = types.SimpleNamespace(worker_devices=["GPU"] * devices)

    def experimental_distribute_values_from_function(self, value_fn):
        ids = range(self.num_replicas_in_sync)
        return [value_fn(types.SimpleNamespace(replica_id_in_sync_group=n)) for n in ids]

    def reduce(self, op, values, axis):
        return sum(float(value) for value in values)


def test_split_dataset_has_as_many_batches_and_each_row_once():
    strategy = get_strategy("mirrored", DEVICES)
    batches = [np.arange(1, n + 1)[:, None].astype("int32") for n in (4, 3, 1)]  # 1: an empty shard
    dataset = tf.data.Dataset.from_generator(
        lambda: ((rows, rows) for rows in batches),
        output_signature=(tf.TensorSpec((None, 1), tf.int32),) * 2,
    ).apply(tf.data.experimental.assert_cardinality(3))
    split = split_rows(dataset, strategy)
    assert split.cardinality == 3
    for rows, batch in zip(batches, split, strict=True):
        for part in batch:
            shards = strategy.experimental_local_results(part)
            np.testing.assert_array_equal(np.concatenate(shards), rows)
            assert [len(shard) for shard in shards] == [-(-len(rows) // 2), len(rows) // 2]


class Worker:
    """What `split_rows` uses of the strategy of one of two workers, each with two replicas."""

    num_replicas_in_sync = 4

    def __init__(self, index):
        self._context = types.SimpleNamespace(num_input_pipelines=2, input_pipeline_id=index)

    def distribute_datasets_from_function(self, function, options):
        return function(self._context)


@pytest.mark.parametrize(
    "options",
    [
        {"shapes": 3},
        {"subword_regularization": 0.3},
        *(pytest.param(options, marks=pytest.mark.long) for options in ({}, {"word_dropout": 0.3})),
    ],
    ids=str,
)
def test_shards_of_two_workers_are_the_batch_and_each_reads_its_rows_only(options):
    pairs = number_names(size=90)
    tokenizer = learned_tokenizer(pairs, 320)
    whole, *streams = (
        BatchStream(pairs, tokenizer, batch_tokens=300, seed=3, **options) for _ in range(3)
    )
    for epoch, batch in ((0, 0), (1, 2), (2, 0)):  # the second is resumed
        plan, shards = whole.batches(epoch), []
        for index, stream in enumerate(streams):
            half = [2 * -(-whole.shape(rows)[0] // 4) for rows in plan]  # two of four replicas
            own = [rows[index * n :][:n] for rows, n in zip(plan, half, strict=True)]
            stream._rows.readable = {*np.concatenate(plan if "subword" in str(options) else own)}
            stream._rows.rows = types.MethodType(read_own, stream._rows)
            stream.seek(epoch, batch)
            dataset = split_rows(stream.dataset(), Worker(index))
            shards.append(arrays_of(dataset, 2 * (len(plan) - batch)))
        parts = shards[0][::2], shards[0][1::2], shards[1][::2], shards[1][1::2]
        found = [
            keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *four)
            for four in zip(*parts, strict=True)
        ]
        assert_same_batches(found, planned(whole, epoch)[batch:])


def read_own(rows, side, pairs):
    assert rows.readable.issuperset(pairs), "a row of another worker"
    return type(rows).rows(rows, side, pairs)


def new_tagger(strategy, vocabulary_size, rate=0.1):
    """A small model with the exact step."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        tokens = keras.Input((None,), dtype="int32")
        x = keras.layers.Embedding(vocabulary_size, 4)(tokens)
        model = Tagger(tokens, keras.layers.Dense(vocabulary_size)(x))
        model.compile(
            keras.optimizers.SGD(rate), SmoothedCrossEntropy(ignore_class=0), run_eagerly=True
        )
    return model


def test_no_batch_of_a_generator_is_lost_on_replicas():
    batches = [np.full((rows, 3), rows, "int32") for rows in (4, 3, 2, 5, 1)]
    losses = []
    for strategy in (get_strategy("single"), mirrored()):
        model = new_tagger(strategy, 9)
        with pytest.warns(UserWarning, match="ran out of data"):  # Keras does not know the length
            generator = ((rows, rows) for rows in batches)
            history = model.fit(generator, shuffle=False, verbose=0).history
        losses.append((history["loss"][0], *(np.sum(w) for w in model.get_weights())))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_learning_rate_that_replicas_share_is_logged():
    """A number, of which the optimizer makes a variable."""
    corpus = number_names("train", 40)
    tokenizer = learned_tokenizer(corpus, 300)
    dataset, _ = make_dataset(corpus, tokenizer, batch_sentences=20)
    logger = TrainingLogger(dataset)
    dataset = dataset.map(lambda x, y, weights: (x["decoder_token_ids"], y, weights))
    model = new_tagger(mirrored(), tokenizer.vocabulary_size, rate=0.25)
    history = model.fit(dataset, shuffle=False, verbose=0, callbacks=[logger]).history
    assert history["learning_rate"] == [0.25]


@pytest.mark.long
@pytest.mark.parametrize("pairs", [3, 40])
def test_epochs_hold_the_same_batches_in_the_same_order_on_replicas(pairs):
    """The dataset counts its epochs. With a learning rate of 0, losses identify batches."""
    corpus = number_names("train", pairs)
    tokenizer = learned_tokenizer(corpus, 300)
    seen = []
    for strategy in (get_strategy("single"), mirrored()):
        dataset, _ = make_dataset(corpus, tokenizer, batch_tokens=128, seed=3)
        dataset = dataset.map(lambda x, y, weights: (x["decoder_token_ids"], y, weights))
        losses = []
        recorder = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs, losses=losses: losses.append(logs["loss"])
        )
        model = new_tagger(strategy, tokenizer.vocabulary_size, rate=0.0)
        model.fit(dataset, epochs=3, shuffle=False, verbose=0, callbacks=[recorder])
        seen.append(losses)
    np.testing.assert_allclose(seen[0], seen[1], rtol=1e-6)


SLURM = """
import os
from keras_transformer.training.distribution import get_strategy
from keras_transformer.training.workers import *
strategy = get_strategy("multi_worker")
index = int(os.environ["SLURM_PROCID"])
total = sum_over_workers(strategy, 10.0**index)
print(num_workers(strategy), is_chief(strategy), total, os.environ["TF_CONFIG"])
"""


@pytest.mark.long
def test_slurm_tasks_connect():
    slurm = {
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_JOB_ID": str(os.getpid()),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SLURM],
            env={**os.environ, **slurm, "SLURM_PROCID": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    printed = [process.communicate(timeout=120)[0].split()[:3] for process in processes]
    assert printed == [["2", "True", "11.0"], ["2", "False", "11.0"]]


def test_slurm_hosts_are_in_the_order_of_their_tasks(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[2,10],extra")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2(x2),1")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    config = distribution._config_of_slurm()
    hosts = ["node2:20005", "node2:20006", "node10:20005", "node10:20006", "extra:20005"]
    assert config["cluster"] == {"worker": hosts}
    assert config["task"] == {"type": "worker", "index": 3}
