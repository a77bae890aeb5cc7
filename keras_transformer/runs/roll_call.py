"""Do all devices, of all workers, answer within a time limit?"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from keras_transformer.training.distribution import get_strategy, num_workers, sum_over_workers

VECTOR = 1_000_000  # floats to add up over all replicas
LINGER = 1.0  # seconds in which a worker that is done still answers those that are not
NCCL_ADVICE = "With several GPUs try the environment variable NCCL_P2P_DISABLE=1"


def add_up_over_all(distribution, devices):
    """Adds up a vector over all replicas, and a number over the workers.

    Args: those of `get_strategy`.

    Returns:
        whether the sums are right, and what was added up, in words.
    """
    strategy = get_strategy(distribution, devices)
    started = time.perf_counter()

    @tf.function
    def add_up():
        replica = tf.distribute.get_replica_context()
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([VECTOR]))

    sums = strategy.experimental_local_results(strategy.run(add_up))
    replicas, workers = strategy.num_replicas_in_sync, num_workers(strategy)
    right = all(np.all(value.numpy() == replicas) for value in sums)
    right = right and sum_over_workers(strategy, 1.0) == workers
    devices = strategy.extended.worker_devices if replicas > 1 else [sums[0].device]
    here = ", ".join(device.rpartition("device:")[2] for device in devices)
    return right, (
        f"replicas: {replicas}, workers: {workers}, here {here}; a vector was added up over all in "
        f"{time.perf_counter() - started:.2f} s" + (not right) * f", but WRONGLY. {NCCL_ADVICE}"
    )


def answer_and_exit():
    """What the other process does: `add_up_over_all`, told as a line of JSON."""
    try:
        answer = add_up_over_all(*json.loads(sys.argv[1]))
    except Exception as error:
        answer = False, f"{type(error).__name__}: {error}"
    print(json.dumps(answer), flush=True)
    time.sleep(LINGER)
    os._exit(0)  # does not wait for the other workers, as TensorFlow would


def roll_call(distribution, devices, timeout):
    """Does `add_up_over_all` in another process, or tells that it did not return in time.

    A worker that waits for a dead one holds the interpreter's lock and heeds no signal but SIGKILL:
    neither a thread beside it nor Ctrl-C would get a word in.

    Args:
        distribution, devices: those of `get_strategy`.
        timeout: float, in seconds.

    Returns:
        whether all devices answered rightly, and what was found, in words.
    """
    code = "from keras_transformer.runs.roll_call import answer_and_exit; answer_and_exit()"
    # This process may have taken its share of the GPUs already.
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    command = [sys.executable, "-c", code, json.dumps([distribution, devices])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    deadline = time.monotonic() + timeout
    cluster = json.loads(os.environ.get("TF_CONFIG", "{}")).get("cluster", {})
    missed = [address for addresses in cluster.values() for address in addresses]
    with subprocess.Popen(command, env=os.environ | environment, **pipes) as process:
        try:
            while time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    out, err = process.communicate(timeout=min(1.0, timeout))
                    if out.strip():
                        return json.loads(out.splitlines()[-1])
                    last = err.decode(errors="replace").strip().rpartition("\n")[2]
                    return False, f"ended with code {process.returncode}: {last}. {NCCL_ADVICE}"
                missed = [address for address in missed if not _answers(address)]
        finally:
            process.kill()
    if missed:
        advice = f"Nobody answered at {', '.join(missed)}: start `doctor` on all workers at once"
        return False, f"no answer within {timeout:g} s. {advice}, let firewalls pass these ports"
    return False, f"no answer within {timeout:g} s. {NCCL_ADVICE}"


def _answers(address):
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2):
        return True
    return False
