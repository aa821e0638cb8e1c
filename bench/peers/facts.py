"""What a benchmark's figures were taken on: one JSON object, without names of machines.

$ python facts.py
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _git(*args: str) -> str:
    """Output of a read-only git command in this clone, or "" without one."""
    try:
        command = ["git", "-C", str(ROOT), *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def _cpu_model() -> str:
    """The processor's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _kernels() -> dict[str, object]:
    """COMPILED and the instruction set of the kernels that this interpreter would use."""
    if importlib.util.find_spec("asyncps_ext") is None:
        sys.path.insert(0, str(ROOT))
    try:
        import asyncps_ext
    except ImportError:
        return {"compiled": None, "instruction_set": None}
    return {
        "compiled": asyncps_ext.COMPILED,
        "instruction_set": asyncps_ext.INSTRUCTION_SET,
    }


def facts() -> dict[str, object]:
    """Machine, versions, commit and date."""
    commit = _git("rev-parse", "HEAD")
    return {
        "record": "facts",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit,
        "dirty": bool(_git("status", "--porcelain")) if commit else None,
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_model(),
        "memory_GiB": _memory_gib(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "uvloop": _version("uvloop"),
        "asyncps": _version("asyncps"),
        **_kernels(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
