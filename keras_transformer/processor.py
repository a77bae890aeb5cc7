"""Finds the types that this processor cannot multiply natively, and how slow they are.

Imports a backend only to measure a matrix product.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

CPUINFO = Path("/proc/cpuinfo")
# Line of `CPUINFO` (`flags` on x86, `Features` on Arm) -> type -> instructions that multiply it.
INSTRUCTIONS = {
    "flags": {
        "bfloat16": {"avx512_bf16", "amx_bf16", "avx_ne_convert"},
        "float16": {"avx512_fp16", "amx_fp16"},
        "int8": {"avx512_vnni", "avx_vnni", "avx_vnni_int8", "amx_int8"},
    },
    "Features": {
        "bfloat16": {"bf16", "svebf16"},
        "float16": {"asimdhp"},
        "int8": {"asimddp", "i8mm", "svei8mm"},
    },
}
IN_FLOAT32 = "compute in float32 (`training.precision`, `dtype` or `--dtype`)"
CURES = {
    "bfloat16": IN_FLOAT32,
    "float16": IN_FLOAT32,
    "int8": "use the model as it was before `quantize`",
}
SIZE = 512  # rows and columns of the matrices; the width of the paper's base model
SECONDS = 0.2  # duration of a measurement
SLOWER = 1.2  # minimum ratio that is reported; a busy machine can cause smaller ones
_checked: set[str] = set()


def features() -> str:
    """Returns the line of `/proc/cpuinfo` that names the instructions; empty if there is none."""
    try:
        with open(CPUINFO, encoding="utf-8") as lines:
            matches = (line.rstrip("\n") for line in lines if line.startswith(tuple(INSTRUCTIONS)))
            return next(matches, "")
    except OSError:
        return ""


def is_emulated(dtype: str) -> bool:
    """Whether this processor is known to have no instructions that multiply a type."""
    if dtype not in CURES:
        return False
    name, _, instructions = features().partition(":")
    native = INSTRUCTIONS.get(name.strip(), {}).get(dtype)
    return native is not None and native.isdisjoint(instructions.split())


def time_ratio(dtype: str) -> float | None:
    """Returns the time of a matrix product over that of the same product in float32.

    It is the median of several measurements, which take about 0.2 seconds on the current backend.
    `None` if the backend does not compute on the processor.
    """
    import statistics  # here, because every command imports this module

    from keras import ops

    operands = [ops.cast(ops.ones((SIZE, SIZE)), kind) for kind in (dtype, "float32")]
    if "cpu" not in str(operands[0].device).lower():
        return None

    def seconds(matrix):
        start = time.perf_counter()
        ops.convert_to_numpy(ops.matmul(matrix, matrix)[:1])  # waits for the product
        return time.perf_counter() - start

    ratios: list[float] = []
    deadline = time.perf_counter() + SECONDS
    while len(ratios) < 2 or time.perf_counter() < deadline:
        ratios.append(seconds(operands[0]) / seconds(operands[1]))
    return statistics.median(ratios[1:])  # the first pair compiles


def say_if_emulated(dtype: str, print_fn: Callable[[str], Any]) -> None:
    """Prints, once in a process, that a type is slow on this processor, and what to do.

    Nothing is measured or printed if the processor is unknown or has instructions for the type.

    Args:
        dtype: name of the type that the model computes in, such as `"bfloat16"`.
        print_fn: called with a line of text for the user.
    """
    if dtype in _checked:
        return
    _checked.add(dtype)
    ratio = time_ratio(dtype) if is_emulated(dtype) else None
    if ratio is not None and ratio >= SLOWER:
        print_fn(
            f"This processor has no instructions that multiply {dtype}: a matrix product takes "
            f"{ratio:.1f} times as long as in float32, so {CURES[dtype]}."
        )


def computed_types(model: Any) -> Iterable[str]:
    """Returns the types that a model, or the models of an ensemble, compute in."""
    models = getattr(model, "models", [model])
    dtypes = {getattr(member, "compute_dtype", "float32") for member in models}
    # Keras's int8 layers compute in the type of their weights, though their policy says float32.
    quantized = {"int8"} & {str(weight.dtype) for weight in getattr(model, "weights", ())}
    return sorted(dtypes | quantized)
