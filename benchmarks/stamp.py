"""When, with which commit and on what a figure was measured."""

import datetime
import os
import pathlib
import subprocess

NUMBERS = {"family": "cpu family", "model": "model"}  # as in /proc/cpuinfo


def stamp():
    """Returns date, commit, cores of this process and processor, as a dict of JSON."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
    }


def _commit():
    """Returns the commit, with `-dirty` if more than figures and outputs differs from it."""
    git = ["git", "-C", str(pathlib.Path(__file__).parent)]
    described = [*git, "describe", "--always", "--tags"]
    commit = subprocess.run(described, capture_output=True, text=True).stdout.strip()
    code = [":/", ":(exclude)results", ":(exclude)outputs"]
    is_clean = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *code]).returncode == 0
    return commit if is_clean else f"{commit}-dirty"


def _processor():
    """Name, family and model: processors of one name differ in speed."""
    found = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    parts = [found.get("model name", "unknown")]
    parts += [f"{name} {found[key]}" for name, key in NUMBERS.items() if key in found]
    return ", ".join(parts)
