"""The engines that `benchmarks/train.py` compares, and the processes that they run in.

Each engine is a process of its own, `serve.py`, so that the libraries cannot disturb each other and
the peak memory of each can be read. The parent, `worker.py`, asks it for one pass over the batches
at a time. This file imports no library: every process reads it.
"""

from typing import NamedTuple

PAD_TOKEN_ID = 0
LABEL_SMOOTHING = 0.1
# The paper's schedule with a short warm-up, so that the loss falls within the measured updates.
WARMUP_STEPS = 200
ADAM = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
# KerasHub's example pads every row to one length. 98.5% of the rows of Multi30k fit into this one.
FIXED_LENGTH = 32

# malloc keeps large blocks instead of returning them to the system after every step.
KEEPING_MALLOC = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4294967296",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
}


class EngineKind(NamedTuple):
    """A row of the tables.

    Attributes:
        name: in the tables.
        factory: `module:function` in this package; the function takes a request, see `serve.py`.
        environment: environment variables of its process.
        is_library: whether it is another library, not our model.
    """

    name: str
    factory: str
    environment: dict = {}
    is_library: bool = True


# value of --engines -> engine
ENGINES = {
    "ours": EngineKind("ours", "ours:Ours", is_library=False),
    "keras-step": EngineKind("our model, Keras's step", "ours:KerasStep", is_library=False),
    "hub": EngineKind("KerasHub", "keras_hub_model:KerasHub"),
    "hub-fixed": EngineKind("KerasHub, fixed, XLA", "keras_hub_model:KerasHubFixed"),
    "torch": EngineKind("PyTorch", "torch_model:Torch", KEEPING_MALLOC),
    "torch-compile": EngineKind("PyTorch, compiled", "torch_model:TorchCompiled", KEEPING_MALLOC),
    "opennmt": EngineKind("OpenNMT-tf", "opennmt_model:OpenNMT"),
}


def learning_rate(step, hidden_dim):
    """Returns the paper's learning rate of an update, counted from 1."""
    return hidden_dim**-0.5 * min(step**-0.5, step * WARMUP_STEPS**-1.5)
