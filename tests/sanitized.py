"""Runs tests on kernels that watch every access to memory: `python tests/sanitized.py`.

A copy of this clone is made in build/sanitized, its kernels are built with AddressSanitizer and
UndefinedBehaviorSanitizer, and pytest runs there with libasan beneath it, so that each array of
NumPy has a zone around it that nobody may touch. The first fault ends the run, and tells the line.
Arguments go to pytest; without any, all runs that reads what came over a wire, or is a kernel.
Nothing else is changed: the kernels of the clone stay as they are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "sanitized"
PARTS = ("asyncps", "asyncps_ext", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE")

TESTS = (
    "tests/asyncps_ext", "tests/tensor", "tests/fuzz", "tests/protocol",
    "tests/roles/test_bases.py", "tests/roles/test_encoded.py", "tests/roles/test_slab.py",
    "tests/roles/test_thinned.py", "tests/roles/test_unit.py",
    "tests/kvstore/test_changes.py", "tests/kvstore/test_compression.py",
)

REPORT = "report"  # and the number of a process

# A byte behind an array: said by the C library, which libasan stands in for.
STRAY = """
import ctypes, numpy
array = numpy.zeros({0}, "u1")
ctypes.memset(array.ctypes.data + {0}, 7, 1)
"""


def copy() -> None:
    """Bring the copy up to date; what did not change keeps its time, and is not built again."""
    TREE.mkdir(parents=True, exist_ok=True)
    for name in PARTS:
        source, target = ROOT / name, TREE / name
        if source.is_file():
            shutil.copy2(source, target)
            continue
        for path in target.rglob("*"):
            if path.is_file() and path.suffix != ".so":
                path.unlink()
        shutil.copytree(source, target, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def library(name: str) -> str:
    """Return the path of a library of the compiler."""
    compiler = os.environ.get("CC", "gcc").split()[0]
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, text=True,
                           capture_output=True).stdout.strip()
    if not Path(found).is_absolute():
        sys.exit(f"{compiler} has no {name}; on Debian and Ubuntu it comes with gcc")
    return found


def check(environment: dict[str, str]) -> None:
    """See for ourselves that a fault would be told, in NumPy's memory and in the kernels."""
    for size in (1, 100, 5000, 1 << 20):
        ended = subprocess.run([sys.executable, "-c", STRAY.format(size)], env=environment,
                               cwd=TREE, text=True, capture_output=True)
        if "heap-buffer-overflow" not in ended.stderr:
            sys.exit(f"a byte behind an array of {size} went unnoticed:\n{ended.stderr}")
    for path in sorted(TREE.glob("asyncps_ext/*.so")):
        if b"__asan_report_load" not in path.read_bytes():
            sys.exit(f"{path.name} was not built to watch its memory")


def main() -> None:
    """Copy, build, check, run pytest, and show what the sanitizers have to tell."""
    copy()
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("ASYNCPS_", "DMLC_"))}
    environment["PYTHONPATH"] = str(TREE)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=TREE,
                   env={**environment, "ASYNCPS_EXT_SANITIZE": "1"}, check=True)
    environment.update(
        LD_PRELOAD=f"{library('libasan.so')}:{library('libubsan.so')}",
        PYTHONMALLOC="malloc",  # else small objects lie side by side in memory of Python's own
        ASAN_OPTIONS="detect_leaks=0",  # Python keeps much until its end
    )
    check(environment)
    # Into files, since pytest holds back what is written to the screen, and a fault ends it too.
    for path in TREE.glob(f"{REPORT}.*"):
        path.unlink()
    environment["ASAN_OPTIONS"] += f":log_path={TREE / REPORT}"
    environment["UBSAN_OPTIONS"] = f"print_stacktrace=1:log_path={TREE / REPORT}"
    ended = subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
                            *(sys.argv[1:] or TESTS)], env=environment, cwd=TREE)
    for path in sorted(TREE.glob(f"{REPORT}.*")):
        print(f"\n{path}:\n{path.read_text(errors='replace')}")
    sys.exit(ended.returncode)


if __name__ == "__main__":
    main()
