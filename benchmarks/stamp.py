"""When, with which commit and on what a figure was measured."""

import datetime
import os
import pathlib
import subprocess

NUMBERS = {"family": "cpu family", "model": "model"}  # as in /proc/cpuinfo


def stamp():
    """Returns date, commit, cores of this process and processor, as a dict of JSON."""
    command = ["git", "describe", "--always", "--dirty", "--tags"]
    folder = pathlib.Path(__file__).parent
    commit = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit,
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
    }


def _processor():
    """Name, family and model: processors of one name differ in speed."""
    found = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    parts = [found.get("model name", "unknown")]
    parts += [f"{name} {found[key]}" for name, key in NUMBERS.items() if key in found]
    return ", ".join(parts)
