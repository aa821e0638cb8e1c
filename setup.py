"""Builds the Cython extensions; everything else stands in pyproject.toml.

ASYNCPS_EXT_DEBUG=1 builds them with bounds checks and line tracing, for debuggers and coverage;
ASYNCPS_EXT_SANITIZE=1 so that they watch every access to memory, for `make sanitize`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

PACKAGE = Path("asyncps_ext")
DEBUG = os.environ.get("ASYNCPS_EXT_DEBUG", "") not in ("", "0")
SANITIZE = os.environ.get("ASYNCPS_EXT_SANITIZE", "") not in ("", "0")
MODE = "sanitize" if SANITIZE else "debug" if DEBUG else "release"
NAMES = [
    "wire", "reduce", "optim", "sparse", "sparse_index", "sparse_fill", "quantize", "select",
]

# No contraction to FMA and no reassociation: all variants of a kernel must agree bit for bit.
# Without errno a square root is one instruction, and loops around it become vector code.
FLAGS = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall"]
DEBUG_FLAGS = ["-O1", "-g", "-ffp-contract=off", "-fno-math-errno", "-Wall"]
# The first fault ends the process. Who loads these must have libasan in LD_PRELOAD.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZE_FLAGS = [*DEBUG_FLAGS, "-fno-omit-frame-pointer", *SANITIZERS]

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": DEBUG,
    "initializedcheck": DEBUG,
    "cdivision": not DEBUG,
    "linetrace": DEBUG,
}

NEEDS_COMPILER = (
    "asyncps_ext could not be compiled. It needs a C compiler (gcc or clang; on Debian and Ubuntu: "
    "`apt-get install gcc`) and the headers of Python (`python3-dev`). There is no build without."
)


class BuildExt(build_ext):
    """Says what is missing when there is no compiler, and rebuilds when the mode has changed."""

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler_so[0]
        if shutil.which(compiler) is None:
            raise CompileError(f"{NEEDS_COMPILER} ({compiler!r} is not on the PATH)")
        marker = Path("build", "asyncps_ext.mode")
        if not marker.exists() or marker.read_text() != MODE:
            self.force = True
            marker.unlink(missing_ok=True)
        try:
            super().build_extensions()
        except CompileError as error:
            raise CompileError(f"{NEEDS_COMPILER} ({error})") from error
        marker.parent.mkdir(exist_ok=True)
        marker.write_text(MODE)


def extension(name: str) -> Extension:
    macros: list[tuple[str, str | None]] = [("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")]
    if DEBUG:
        macros += [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]
    return Extension(
        f"asyncps_ext.{name}",
        [f"asyncps_ext/{name}.pyx"],
        include_dirs=["asyncps_ext", np.get_include()],
        define_macros=macros,
        extra_compile_args=SANITIZE_FLAGS if SANITIZE else DEBUG_FLAGS if DEBUG else FLAGS,
        extra_link_args=SANITIZERS if SANITIZE else [],
        depends=sorted(str(path) for end in ("h", "pxd") for path in PACKAGE.glob(f"*.{end}")),
    )


setup(
    ext_modules=cythonize(
        [extension(name) for name in NAMES],
        build_dir=f"build/cython-{MODE}",
        compiler_directives=DIRECTIVES,
    ),
    cmdclass={"build_ext": BuildExt},
)
