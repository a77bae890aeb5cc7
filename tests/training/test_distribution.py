"""Strategies: which is chosen, that it is one, and what is refused; how rows are dealt."""

import os
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import get_strategy

pytestmark = pytest.mark.tensorflow_only

DEVICES = ["CPU:0", "CPU:1"]


def test_strategy_is_the_same_object_for_the_same_devices():
    import tensorflow as tf

    assert get_strategy() is get_strategy("auto") is get_strategy("single")
    assert get_strategy("mirrored", DEVICES) is get_strategy("auto", DEVICES)
    assert isinstance(get_strategy("mirrored", DEVICES), tf.distribute.MirroredStrategy)
    assert get_strategy("mirrored", DEVICES).num_replicas_in_sync == 2
    assert get_strategy("single", ["CPU:1"]) is get_strategy("single", ["CPU:1"])
    assert get_strategy("single", ["CPU:1"]) is not get_strategy("single")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("parameter_server",), "ParameterServerStrategy.*asynchronous"),
        (("horovod",), "one of auto, single, mirrored, multi_worker.*'horovod'"),
        (("mirrored", ["GPU:7"]), "no device 'GPU:7'.*CPU:0"),
        (("mirrored", []), "list of device names"),
        (("mirrored", "GPU:0"), "list of device names"),
        (("single", DEVICES), "one device"),
        (("multi_worker", DEVICES), "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_wrong_strategies_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        get_strategy(*arguments)


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_row_blocks_hold_every_row_once_and_zeros(rows, replicas):
    import tensorflow as tf

    from keras_transformer.training.distribution import row_blocks

    array = np.arange(1, rows * 3 + 1).reshape(rows, 3)
    blocks = row_blocks(tf.constant(array), replicas).numpy()
    assert len(blocks) == replicas
    flat = blocks.reshape(-1, 3)
    np.testing.assert_array_equal(flat[:rows], array)
    assert not flat[rows:].any() and len(flat) < rows + replicas


def test_dealt_dataset_has_as_many_batches_and_every_row_weighs_once():
    import tensorflow as tf

    from keras_transformer.training.distribution import deal_rows

    strategy = get_strategy("mirrored", DEVICES)
    batches = [np.arange(1, n + 1)[:, None].astype("int32") for n in (4, 3, 1)]
    dataset = tf.data.Dataset.from_generator(
        lambda: ((rows, rows) for rows in batches),
        output_signature=(tf.TensorSpec((None, 1), tf.int32),) * 2,
    ).apply(tf.data.experimental.assert_cardinality(3))
    dealt = deal_rows(dataset, strategy)
    assert dealt.cardinality == 3
    for rows, batch in zip(batches, dealt, strict=True):
        parts = [np.concatenate(strategy.experimental_local_results(v)) for v in batch]
        x, y, weights, is_real = parts
        np.testing.assert_array_equal(x, y)
        np.testing.assert_array_equal(x[is_real], rows)
        np.testing.assert_array_equal(weights[:, 0] > 0, is_real)


SLURM = """
from keras_transformer.training.distribution import *
strategy = get_strategy("multi_worker")
index = int(os.environ["SLURM_PROCID"])
total = sum_over_workers(strategy, 10.0**index)
print(num_workers(strategy), is_chief(strategy), total, os.environ["TF_CONFIG"])
"""


@pytest.mark.slow
def test_slurm_tasks_find_each_other():
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
    told = [process.communicate(timeout=120)[0].split()[:3] for process in processes]
    assert told == [["2", "True", "11.0"], ["2", "False", "11.0"]]


def test_slurm_hosts_stand_in_the_order_of_their_tasks(monkeypatch):
    from keras_transformer.training import distribution

    monkeypatch.setenv("SLURM_STEP_NODELIST", "node[2,10],extra")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2(x2),1")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    config = distribution._config_of_slurm()
    hosts = ["node2:20005", "node2:20006", "node10:20005", "node10:20006", "extra:20005"]
    assert config["cluster"] == {"worker": hosts}
    assert config["task"] == {"type": "worker", "index": 3}
