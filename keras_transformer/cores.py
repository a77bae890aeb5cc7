"""How many cores this process may use. Pure Python."""

import contextlib
import math
import os
from pathlib import Path

# Files with the quota and the period of a container, for control groups of version 2 and 1.
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
            text = " ".join((CGROUPS / name).read_text("utf-8") for name in names)
            quota, period = map(int, text.split())
            if quota > 0:  # version 1 has -1 for no quota
                cores = min(cores, math.ceil(quota / period))
    return cores
