"""Device check: several devices or workers do an all-reduce, with a time limit."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import keras
import numpy as np

from keras_transformer.runs.devices import run_devices
from keras_transformer.runs.training_settings import TrainingSettings
from keras_transformer.training.workers import LocalDevices, num_workers, sum_over_workers

VECTOR_LENGTH = 1_000_000
EXIT_DELAY = 1.0  # seconds that a finished worker stays alive, so that slower ones can connect


def all_reduce(distribution, devices):
    """Sums a vector over all replicas, and a number over the workers.

    Args:
        distribution, devices: settings of a recipe.

    Returns:
        whether the sums are right, and a description.
    """
    strategy = run_devices(TrainingSettings(distribution=distribution, devices=devices))
    start = time.perf_counter()
    if isinstance(strategy, LocalDevices):
        sums, names = _sum_over_devices(strategy)
    else:
        sums, names = _sum_over_replicas(strategy)
    replicas, workers = strategy.num_replicas_in_sync, num_workers(strategy)
    is_right = all(np.all(value == replicas) for value in sums)
    is_right = is_right and sum_over_workers(strategy, 1.0) == workers
    local_devices = ", ".join(name.rpartition("device:")[2] for name in names)
    error = "" if is_right else f", but the sum is WRONG{_advice()}"
    time_text = f"; all-reduce took {time.perf_counter() - start:.2f} s" if replicas > 1 else ""
    return is_right, (
        f"replicas: {replicas}, workers: {workers}, here {local_devices}{time_text}{error}"
    )


def _sum_over_replicas(strategy):
    """Sums ones over the replicas of a strategy; returns each sum, and the names of the devices."""
    import tensorflow as tf

    @tf.function
    def sum_over_replicas():
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([VECTOR_LENGTH]))

    sums = strategy.experimental_local_results(strategy.run(sum_over_replicas))
    is_one = strategy.num_replicas_in_sync == 1
    names = [sums[0].device] if is_one else strategy.extended.worker_devices
    return [value.numpy() for value in sums], names


def _sum_over_devices(devices):
    """As `_sum_over_replicas`, on the devices of JAX, or on the one of PyTorch."""
    rows = keras.ops.ones([devices.num_replicas_in_sync, VECTOR_LENGTH])
    names = [str(rows.device)]
    if devices.num_replicas_in_sync > 1:
        names = keras.distribution.list_devices()
        layout = keras.distribution.DataParallel().get_data_layout(rows.shape)
        rows = keras.distribution.distribute_tensor(rows, layout)
    return [keras.ops.convert_to_numpy(keras.ops.sum(rows, axis=0))], names


def main():
    """Entry point of the subprocess: prints the result of `all_reduce` as one line of JSON."""
    try:
        result = all_reduce(*json.loads(sys.argv[1]))
    except Exception as error:
        result = False, f"{type(error).__name__}: {error}"
    print(json.dumps(result), flush=True)
    time.sleep(EXIT_DELAY)
    os._exit(0)  # a normal exit of TensorFlow waits for the other workers


def check_devices(distribution, devices, timeout):
    """Runs `all_reduce`: in a subprocess if the run has several devices or workers.

    A collective that waits for a dead worker holds the GIL and ignores every signal but SIGKILL, so
    the check runs in a subprocess.

    Args:
        distribution, devices: settings of a recipe.
        timeout: time limit of the subprocess, in seconds.

    Returns:
        whether the check passed, and a description.
    """
    if _is_alone(distribution, devices):
        return all_reduce(distribution, devices)
    code = "from keras_transformer.runs.device_check import main; main()"
    # The subprocess allocates GPU memory on demand: this process may already hold most of it.
    on_demand = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | on_demand
    command = [sys.executable, "-c", code, json.dumps([distribution, devices])]
    try:
        process = subprocess.run(command, capture_output=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        unreached = [address for address in _workers() if not _is_reachable(address)]
        if not unreached:
            return False, f"no result within {timeout:g} s: give a longer `--timeout`{_advice()}"
        return False, (
            f"no worker at {', '.join(unreached)} within {timeout:g} s: start `doctor` on all "
            "workers at the same time, and open these ports in firewalls"
        )
    if process.returncode == 0:
        return json.loads(process.stdout.splitlines()[-1])
    last_line = process.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return False, f"ended with code {process.returncode}: {last_line}{_advice()}"


def _is_alone(distribution, devices):
    """Whether a run has one device and one worker. Does not initialize TensorFlow's devices."""
    if keras.config.backend() != "tensorflow":
        settings = TrainingSettings(distribution=distribution, devices=devices)
        return run_devices(settings).num_replicas_in_sync == 1
    if distribution == "multi_worker" or len(_workers()) > 1:
        return False
    return distribution == "single" or (len(devices) if devices else _number_of_gpus()) <= 1


def _number_of_gpus():
    if keras.config.backend() != "tensorflow":
        return sum(
            not name.startswith(("cpu", "tpu")) for name in keras.distribution.list_devices()
        )
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def _advice():
    """Returns what may cure a failed all-reduce; empty unless NCCL connects several GPUs."""
    has_several_gpus = _number_of_gpus() > 1
    return ", or try the environment variable NCCL_P2P_DISABLE=1" if has_several_gpus else ""


def _workers():
    """Returns the addresses of the workers; only TensorFlow has several."""
    if keras.config.backend() != "tensorflow":
        return []
    from keras_transformer.training.distribution import cluster_addresses

    return cluster_addresses()


def _is_reachable(address):
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return True
    return False
