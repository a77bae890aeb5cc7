"""Distribution strategies of TensorFlow.

Paper, section 5.2 (one machine with 8 GPUs).
"""

import itertools
import json
import os
from collections.abc import Sequence
from functools import cache

import tensorflow as tf
from tensorflow.python.distribute.cluster_resolver.slurm_cluster_resolver import (
    expand_hostlist,
    expand_tasks_per_node,
)

STRATEGIES = ("auto", "single", "mirrored", "multi_worker")


def get_strategy(
    name: str = "auto", devices: Sequence[str] | None = None
) -> tf.distribute.Strategy:
    """Returns the distribution strategy. Build the model inside `strategy.scope()`.

    The same arguments return the same object, because training under a second `MirroredStrategy`
    in one process can fail.

    Args:
        name: one of:

            - `"single"`: one device.
            - `"mirrored"`: all GPUs of this machine, or the given `devices`.
            - `"multi_worker"`: this process is one of several, on one or more machines, configured
              by the environment variable `TF_CONFIG` or by Slurm. Call `get_strategy` before any
              other TensorFlow code.
            - `"auto"`: `"multi_worker"` if `TF_CONFIG` names several workers, else `"mirrored"` if
              there are several GPUs, else `"single"`.
        devices: device names, such as `["GPU:0", "GPU:1"]`; one for `"single"`. Defaults to all
            GPUs, or the CPU if there are none.

    Raises:
        ValueError: if the name is unknown, if a device does not exist, or if neither `TF_CONFIG`
            nor Slurm describes the cluster. Keras 3 does not support `"parameter_server"`.

    Example:

    >>> strategy = keras_transformer.get_strategy()
    >>> with strategy.scope():
    ...     model = keras_transformer.Transformer(
    ...         keras_transformer.TransformerConfig.tiny(vocabulary_size=50)
    ...     )
    >>> strategy is keras_transformer.get_strategy()
    True
    """
    if name not in STRATEGIES:
        raise ValueError(
            f"The strategy must be one of {', '.join(STRATEGIES)} (Keras 3 does not support "
            f"ParameterServerStrategy, whose updates are asynchronous). Received: {name!r}"
        )
    if name == "auto":
        name = _automatic(devices)
    if devices is not None:
        _check_devices(name, devices)
    return _strategy(name, None if devices is None else tuple(devices))


def cluster_addresses() -> list[str]:
    """Returns the addresses of all tasks in `TF_CONFIG`; an empty list if it is unset or empty.

    Raises:
        ValueError: if `TF_CONFIG` does not describe a cluster.
    """
    return list(itertools.chain(*_checked_config().get("cluster", {}).values()))


def _checked_config(with_task=False):
    """Returns `TF_CONFIG` as a dict; with `with_task`, it must name a task of the cluster."""
    try:
        config = json.loads(os.environ.get("TF_CONFIG") or "{}")
        cluster = config.get("cluster", {}) if isinstance(config, dict) else None
        if not isinstance(cluster, dict) or not all(
            isinstance(addresses, list) for addresses in cluster.values()
        ):
            raise TypeError
        if with_task:
            task = config["task"]
            if task["index"] not in range(len(cluster[task["type"]])):
                raise IndexError
        return config
    except (ValueError, LookupError, TypeError):
        raise ValueError(
            "TF_CONFIG must describe the cluster and the task of this process, such as "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
            '"task": {"type": "worker", "index": 0}}. '
            f"Received: {os.environ['TF_CONFIG']}"
        ) from None


def _automatic(devices):
    if len(cluster_addresses()) > 1:
        return "multi_worker"
    num_devices = len(devices or tf.config.list_logical_devices("GPU"))
    return "mirrored" if num_devices > 1 else "single"


@cache
def _strategy(name, devices):
    if name == "mirrored":
        return tf.distribute.MirroredStrategy(devices)
    if name == "multi_worker":
        if not os.environ.get("TF_CONFIG"):
            os.environ["TF_CONFIG"] = json.dumps(_config_of_slurm())
        _checked_config(with_task=True)
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return tf.distribute.MultiWorkerMirroredStrategy(cluster)
    if devices is not None:
        return tf.distribute.OneDeviceStrategy(devices[0])
    return tf.distribute.get_strategy()


def _config_of_slurm():
    """Returns the value of `TF_CONFIG` that the environment variables of Slurm's `srun` describe.

    TensorFlow's own resolver needs GPUs, and sorts the hosts, which gives wrong task indices.
    """
    try:
        hosts = expand_hostlist(os.environ["SLURM_STEP_NODELIST"])
        tasks_of_hosts = expand_tasks_per_node(os.environ["SLURM_STEP_TASKS_PER_NODE"])
        index = int(os.environ["SLURM_PROCID"])
    except KeyError:
        raise ValueError(
            "Several workers need the environment variable TF_CONFIG or Slurm's `srun`; neither "
            "was found. To try it on one machine, run `scripts/train_multi_worker.sh 2`."
        ) from None
    port = 20_000 + int(os.environ.get("SLURM_JOB_ID", 0)) % 20_000  # jobs may share a host
    addresses = [
        f"{host}:{port + offset}"
        for host, num_tasks in zip(hosts, tasks_of_hosts, strict=True)
        for offset in range(num_tasks)
    ]
    return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}


def _check_devices(name, devices):
    if isinstance(devices, str) or not devices:
        raise ValueError(f"`devices` must be a list of device names. Received: {devices!r}")
    if name == "multi_worker":
        raise ValueError(
            "`multi_worker` uses all GPUs of each worker; hide some with CUDA_VISIBLE_DEVICES. "
            f"Received: devices={devices!r}"
        )
    if len(set(devices)) < len(devices):
        raise ValueError(f"`devices` must name each device once. Received: {devices!r}")
    if name == "single" and len(devices) > 1:
        raise ValueError(f"`single` takes one device. Received: devices={devices!r}")
    existing = [device.name.rpartition("device:")[2] for device in tf.config.list_logical_devices()]
    for device in devices:
        if device.rpartition("device:")[2].strip("/") not in existing:
            raise ValueError(
                f"There is no device {device!r}. The devices are: {', '.join(existing)}"
            )
