"""What every test starts from: quiet backends, two logical CPUs, fixed seeds."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import pytest  # noqa: E402

BACKEND = keras.backend.backend()

if BACKEND == "tensorflow":
    import tensorflow as tf

    # Before TensorFlow starts: it cannot be split later.
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


def pytest_collection_modifyitems(items):
    if BACKEND == "tensorflow":
        return
    skip = pytest.mark.skip(reason=f"needs TensorFlow, the backend is {BACKEND}")
    for item in items:
        if "tensorflow_only" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def fixed_seed():
    keras.utils.set_random_seed(0)
