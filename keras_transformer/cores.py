"""How many cores this process may use. Pure Python."""

import contextlib
import math
import os
from pathlib import Path

# The quota and the period of a container, in the files of both versions of control groups.
CGROUPS = Path("/sys/fs/cgroup")
QUOTAS = ("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


def usable_cores() -> int:
    """Returns the number of cores by the affinity of this process and the quota of its container.

    A quota of one core and a half counts as two.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    for names in QUOTAS:
        with contextlib.suppress(OSError, ValueError):  # no such file, or no quota: "max"
            quota, period = map(
                int, " ".join((CGROUPS / n).read_text("utf-8") for n in names).split()
            )
            cores = min(cores, math.ceil(quota / period)) if quota > 0 else cores
    return cores
