"""Initializers: plain data, and the rows that servers make of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

import asyncps
from asyncps.errors import ConfigError
from asyncps.initializer import Constant, Initializer, Normal, One, Uniform, Zero
from asyncps.tensor import firstrows
from asyncps.tensor.dtypes import NAMES, by_name, numpy_dtype

ALL = [Zero(), One(), Constant(-2.5), Uniform(0.1, seed=3), Normal(0.5, seed=2**64 - 1)]


def rows_of(
    what: Initializer, dtype: str = "float64", *, key: Any = "k", ids: Any = (0, 5, 2**40)
) -> np.ndarray[Any, Any]:
    out = np.empty(3 * len(ids), by_name(dtype).bits)
    firstrows.write_rows(what, key, by_name(dtype), 3, np.array(ids, np.int64), out)
    return out.view(numpy_dtype(dtype)).reshape(-1, 3)


@pytest.mark.parametrize("what", ALL, ids=str)
def test_they_cross_the_wire_and_are_equal_there(what: Initializer) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(what), type=Initializer) == what
    assert isinstance(what, getattr(asyncps.initializer, type(what).__name__))


@pytest.mark.parametrize("make", [
    lambda: Constant(float("nan")), lambda: Constant("1"), lambda: Uniform(-0.1),
    lambda: Uniform(float("inf")), lambda: Normal(-1), lambda: Normal(1, seed=-1),
    lambda: Normal(1, seed=2**64), lambda: Uniform(1, seed=1.5), lambda: Normal(True),
    lambda: Constant(10**400), lambda: Constant(-(10**5000)), lambda: Uniform(10**400),
    lambda: Normal(10**5000), lambda: Normal(1, seed=10**5000),
])  # fmt: skip
def test_numbers_that_cannot_be_right_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_a_peers_bad_numbers_are_refused_too() -> None:
    for bad in ({"type": "normal", "sigma": -1.0}, {"type": "uniform", "scale": 1.0, "seed": -1},
                {"type": "pickle"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(bad), type=Initializer)


@pytest.mark.parametrize("dtype", NAMES)
def test_rows_of_one_number(dtype: str) -> None:
    assert (rows_of(Zero(), dtype) == 0).all()
    assert (rows_of(One(), dtype) == 1).all()
    assert (rows_of(Constant(7), dtype) == 7).all()


def test_a_constant_is_rounded_to_the_dtype() -> None:
    assert (rows_of(Constant(0.1), "float32") == np.float32(0.1)).all()
    assert (rows_of(Constant(0.1), "bfloat16") == ml_dtypes.bfloat16(0.1)).all()
    assert (rows_of(Constant(1e9), "float16") == np.inf).all()


@pytest.mark.parametrize("what", [Uniform(1.0), Normal(1.0), Constant(0.5), Constant(300)], ids=str)
def test_integers_want_whole_numbers_that_they_hold(what: Initializer) -> None:
    with pytest.raises(ConfigError, match="uint8"):
        firstrows.check_usable(what, by_name("uint8"))
    firstrows.check_usable(what, by_name("float16"))


@pytest.mark.parametrize(("what", "holds", "refuses"), [
    (Constant(1e300), "float64", "float32"), (Constant(-1e300), "float64", "float32"),
    (Uniform(1e300), "float64", "float32"), (Normal(1e300), "float64", "float32"),
    (Constant(65504), "float16", ""), (Constant(65520), "bfloat16", "float16"),
    (Uniform(65504.0), "float16", ""), (Uniform(1e5), "bfloat16", "float16"),
    (Normal(10_000.0), "float16", ""), (Normal(60_000.0), "float32", "float16"),
    (Constant(10**300), "float64", "bfloat16"), (Normal(1e308), "", "float64"),
    (Constant(2**63 - 1), "int64", "int32"), (Constant(2.0**63), "float32", "int64"),
    (Constant(-(2**63)), "int64", "int32"), (Constant(2**64), "float32", "int64"),
], ids=str)  # fmt: skip
def test_numbers_beyond_the_dtype_are_refused(what: Any, holds: str, refuses: str) -> None:
    """The largest f16 is 65504; from 65520 on numbers are rounded to infinity."""
    if holds:
        firstrows.check_usable(what, by_name(holds))
        assert np.isfinite(rows_of(what, holds, ids=range(1000)).astype(float)).all()
    if refuses:
        with pytest.raises(ConfigError, match=refuses):
            firstrows.check_usable(what, by_name(refuses))


@pytest.mark.parametrize("number", [
    np.float64(0.5), 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**300, 7, True + 1,
], ids=str)  # fmt: skip
def test_any_number_that_is_taken_travels_as_it_is(number: Any) -> None:
    for made in (Constant(number), Normal(abs(number)), Uniform(abs(number))):
        there = msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=Initializer)
        assert there == made
    assert Constant(number).value == (number if abs(number) < 2**63 else float(number))


@pytest.mark.parametrize("kind", ["local", "dist_sync"])
def test_whole_numbers_are_exact_on_a_cluster_too(kind: str) -> None:
    with asyncps.create(kind) as store:
        store.init("t", Constant(2**63 - 1), shape=(3,), dtype="i8")
        assert store.row_sparse_pull("t", [1]).values.tolist() == [2**63 - 1]
        with pytest.raises(ConfigError, match="beyond float32"):
            store.init("u", Normal(1e300), shape=(3,))


@pytest.mark.parametrize("kind", [Uniform, Normal])
def test_random_rows_depend_on_seed_key_and_row_alone(kind: Any) -> None:
    rows = rows_of(kind(1.0))
    assert len(set(rows.reshape(-1).tolist())) == 9
    np.testing.assert_array_equal(rows_of(kind(1.0), ids=(2**40, 0)), rows[[2, 0]])
    np.testing.assert_array_equal(rows_of(kind(3.0)), rows * 3.0)
    assert not (rows_of(kind(1.0, seed=1)) == rows).any()
    assert not (rows_of(kind(1.0), key="l") == rows).any()
    assert not (rows_of(kind(1.0), key=5) == rows_of(kind(1.0), key="5")).any()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_shorter_floats_are_the_same_numbers_rounded(dtype: str) -> None:
    exact = rows_of(Normal(1.0)).astype(np.float32)
    np.testing.assert_array_equal(rows_of(Normal(1.0), dtype), exact.astype(numpy_dtype(dtype)))


def test_the_stream_of_a_key_is_as_written() -> None:
    # Another implementation: the seed's bytes and "sk" or "i-12" through `b2sum -l 64`.
    digests = {(0, "k"): "0bcd1a2194523276", (5, -12): "344c9f32d7a584e5"}
    for (seed, key), digest in digests.items():
        assert firstrows.stream_of(seed, key).to_bytes(8, "little").hex() == digest
