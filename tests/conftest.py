"""What every test starts from: which tests run, quiet backends, two logical CPUs, fixed seeds."""

import contextlib
import gc
import math
import os
import pathlib
import re
import signal
import time
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

BACKEND = os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What JAX compiles is kept for all workers, for processes that tests start, and for the next time.
CACHE = pathlib.Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
if BACKEND == "jax":
    # Nearly all the time goes into compiling: every operation, for every shape.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
        "--xla_force_host_platform_device_count=4",
    )

# A failure prints the line that repeats it: `@reproduce_failure(...)`.
# Nothing fails because it is slow: another process may have the processor.
AT_ANY_SPEED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=25, derandomize=True, **AT_ANY_SPEED)
settings.register_profile("long", max_examples=100, print_blob=True, **AT_ANY_SPEED)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too")
    until = "begin no further test after this time, in seconds since 1970; name what is left out"
    parser.addoption("--until", type=float, default=math.inf, help=until)


def pytest_configure(config):
    settings.load_profile("long" if config.getoption("long") else "short")
    # Most models of tests have random weights, whose translations have no end.
    ignored = "ignore:.* translations are unfinished:UserWarning"
    config.addinivalue_line("filterwarnings", ignored)


def pytest_runtest_setup(item):
    if time.time() > item.config.getoption("until"):
        pytest.skip(f"no time left for {item.location[0]}")
    # A shell ignores it for what is started with `&`; a `fit` that failed may leave its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session):
    """Imports the backend, but not in the process that only hands the tests to workers."""
    if session.config.pluginmanager.hasplugin("dsession"):
        return
    import keras  # noqa: F401

    if BACKEND == "tensorflow":
        import tensorflow as tf

        # Before TensorFlow starts: it cannot be split later.
        (cpu,) = tf.config.list_physical_devices("CPU")
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
    # Tracing allocates millions of objects: collect less often, and never walk the modules.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    # Keras and `doctor` collect everything very often, which takes half a second here.
    collect = gc.collect
    gc.collect = lambda generation=1: collect(generation)


def pytest_ignore_collect(collection_path):
    """Modules that need TensorFlow are not imported on another backend."""
    if BACKEND != "tensorflow" and collection_path.suffix == ".py":
        marks = re.search(r"^pytestmark = .*", collection_path.read_text("utf-8"), re.MULTILINE)
        if marks and "tensorflow_only" in marks.group():
            return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    for item in items:
        if BACKEND == "jax" and "slow_on_jax" in item.keywords:
            item.add_marker("long")
        if "long" in item.keywords:
            item.add_marker("slow")
        only = item.get_closest_marker("backends")
        is_of_another_backend = only is not None and BACKEND not in only.args
        is_of_another_backend |= BACKEND != "tensorflow" and "tensorflow_only" in item.keywords
        is_too_long = "long" in item.keywords and not config.getoption("long")
        (left_out if is_of_another_backend or is_too_long else kept).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.fixture(autouse=True)
def fixed_seed():
    import keras

    with contextlib.ExitStack() as stack:
        if BACKEND == "tensorflow":
            # A new seed also drops the kernels: then each graph would be optimized anew.
            kept = "tensorflow.python.pywrap_tfe.TFE_ContextClearCaches"
            stack.enter_context(mock.patch(kept, lambda context: None))
        keras.utils.set_random_seed(0)


@pytest.fixture(autouse=BACKEND == "tensorflow")
def same_rewrites():
    """A command with a SavedModel leaves rewrites of graphs out for the rest of its process.

    In bfloat16, the later tests of that process would round otherwise.
    """
    yield
    import tensorflow as tf

    from keras_transformer.decoding.saved_model import OTHER_REWRITES

    used = tf.config.optimizer.get_experimental_options()
    if not all(used.get(name, True) for name in OTHER_REWRITES):
        tf.config.optimizer.set_experimental_options(dict.fromkeys(OTHER_REWRITES, True))
