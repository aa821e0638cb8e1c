"""What `import asyncps_ext` gives: compiled kernels, their twins on request, or a clear error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import asyncps_ext

PACKAGE = Path(asyncps_ext.__file__).parent
NAMES = {
    "wire": ["pack_header", "parse_header", "crc32c", "gather_rows", "scatter_rows"],
    "reduce": ["add", "add_f16", "widen_f16", "widen_bf16", "narrow_f16", "narrow_bf16", "scale"],
    "optim": ["test", "sgd", "sgd_momentum", "adam"],
    "sparse": ["check_ids", "unique_rows", "gather_rows_at", "scatter_add_at", "scatter_set_at",
               "merge_rows", "sum_groups", "sum_duplicates"],
    "sparse_index": ["RowIndex", "RangeIndex"],
    "sparse_fill": ["fill_uniform", "fill_normal"],
    "quantize": ["count_nonfinite", "largest", "encode_2bit", "decode_1bit", "onebit_prepare",
                 "add_int8", "encode_f16", "encode_bf16"],
    "select": ["topk", "threshold", "count_threshold", "random_indices", "take",
               "take_f16", "dgc_accumulate", "dgc_mask", "add_at", "add_at_f16", "set_at", "merge"],
}


def run(code: str, root: Path, pure: str | None) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees the package below root."""
    environment = {k: v for k, v in os.environ.items() if k not in ("ASYNCPS_PURE", "PYTHONPATH")}
    environment["PYTHONPATH"] = str(root)
    if pure is not None:
        environment["ASYNCPS_PURE"] = pure
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def unbuilt(tmp_path: Path) -> Path:
    """A copy of the package without its compiled modules."""
    ignored = shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
    shutil.copytree(PACKAGE, tmp_path / "asyncps_ext", ignore=ignored)
    return tmp_path


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_the_modules_offer_their_functions(module: str, names: list[str]) -> None:
    assert all(callable(getattr(getattr(asyncps_ext, module), name)) for name in names)


def test_the_kernels_in_use_are_told() -> None:
    if asyncps_ext.COMPILED:
        assert asyncps_ext.INSTRUCTION_SET in ("x86-64-v4", "x86-64-v3", "baseline")
    else:
        assert asyncps_ext.INSTRUCTION_SET == "numpy"


@pytest.mark.parametrize("module", ["reduce", "optim", "quantize", "select", "sparse_fill"])
def test_all_kernels_choose_alike_and_the_best(module: str) -> None:
    kernels = getattr(asyncps_ext, module)
    names = kernels._variants()
    assert names == asyncps_ext.reduce._variants()
    assert kernels._set_variant(names[0]) == names[0] == asyncps_ext.INSTRUCTION_SET


def test_missing_kernels_are_an_error_that_tells_how_to_build_them(unbuilt: Path) -> None:
    done = run("import asyncps_ext", unbuilt, None)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the compiled kernels of asyncps_ext cannot be loaded")
    assert "build_ext --inplace" in last
    assert "ASYNCPS_PURE=1" in last


@pytest.mark.parametrize("pure", ["", "0"])
def test_an_empty_or_zero_wish_for_twins_is_none(unbuilt: Path, pure: str) -> None:
    assert run("import asyncps_ext", unbuilt, pure).returncode != 0


@pytest.mark.parametrize("first", ["asyncps_ext", "asyncps_ext.optim", "asyncps_ext.wire"])
def test_the_twins_stand_in_when_asked_for_and_one_line_says_so(unbuilt: Path, first: str) -> None:
    code = f"""
import {first}
import asyncps_ext, asyncps_ext.wire, asyncps_ext.reference as reference
from asyncps_ext import optim, quantize, reduce, select, sparse, sparse_fill, sparse_index, wire
from asyncps_ext.reduce import add
assert not asyncps_ext.COMPILED and asyncps_ext.INSTRUCTION_SET == "numpy"
assert (wire, reduce, optim) == (reference.wire, reference.reduce, reference.optim)
assert (sparse, sparse_fill) == (reference.sparse, reference.sparse_fill)
assert (sparse_index, quantize) == (reference.sparse_index, reference.quantize)
assert select is reference.select
assert add is reference.add and asyncps_ext.wire is wire
assert wire.crc32c(b"123456789") == 0xE3069283
"""
    done = run(code, unbuilt, "1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == ["ASYNCPS_PURE is set: slow NumPy kernels are in use"]


def test_the_twins_stand_in_also_where_kernels_are_built() -> None:
    code = "import asyncps_ext.reduce as r; assert r.__name__ == 'asyncps_ext.reference.reduce'"
    done = run(code, PACKAGE.parent, "1")
    assert done.returncode == 0, done.stderr


def test_the_package_imports_neither_asyncps_nor_asyncio(tmp_path: Path) -> None:
    pure = None if asyncps_ext.COMPILED else "1"
    code = "import sys, asyncps_ext; assert not {'asyncps', 'asyncio'} & set(sys.modules)"
    done = run(code, PACKAGE.parent, pure)
    assert done.returncode == 0, done.stderr
