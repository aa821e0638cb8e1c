"""ACCEPTANCE section 3, C1 to C3, C9: what all-reduce comes to, over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import ConfigError, DtypeMismatch, TensorError
from tests.collective.rows import (
    OPS,
    arrays,
    assert_close,
    dtype_of,
    expected,
    in_order,
)
from tests.support.group import Group, group

DTYPES = ["int32", "int64", "int8", "uint8", "float16", "bfloat16", "float32", "float64"]


@pytest.fixture(scope="module", params=[1, 2, 3, 4, 8], ids="of{}".format)
def ranks(request: pytest.FixtureRequest) -> Iterator[Group]:
    with group(request.param) as opened:
        yield opened


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_small_arrays(ranks: Group, dtype: str, op: str, dimensions: int) -> None:
    if op == "mean" and "int" in dtype:
        pytest.skip("there is no mean of integers")
    world = len(ranks.ranks)
    parts = arrays(world, (17,) * dimensions, dtype, op)
    mine = [part.copy() for part in parts]
    results = ranks.run(lambda comm: comm.all_reduce(mine[comm.rank], op))
    for rank, result in enumerate(results):
        assert result is mine[rank]
        assert_close(result, expected(parts, op, dtype), dtype)
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
@pytest.mark.parametrize("op", ["sum", "max"])
@pytest.mark.parametrize("count", [1_000_003, 300_007])
def test_large_arrays_travel_in_shares(ranks: Group, dtype: str, op: str, count: int) -> None:
    world = len(ranks.ranks)
    parts = arrays(world, (count,), dtype, op)
    mine = [part.copy() for part in parts]
    results = ranks.run(lambda comm: comm.all_reduce(mine[comm.rank], op))
    for result in results:
        assert_close(result, expected(parts, op, dtype), dtype)
        assert result.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("world", range(1, 6))
def test_real_floats_in_chunks_are_reduced_in_the_order_of_ranks(
    world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, but for means: whoever divides may multiply by 1/N."""
    for name in ("planned.CHUNK_BYTES", "planned.LARGE_CHUNK_BYTES"):
        monkeypatch.setattr(f"asyncps.roles.{name}", 4096)
    monkeypatch.setattr("asyncps.fusing.AT_ONCE_BYTES", 1000)
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        rng = np.random.default_rng(world)
        parts = [rng.uniform(0.5, 1.5, 20_011).astype(dtype_of(dtype)) * rng.choice([-1, 1], 20_011)
                 .astype(dtype_of(dtype)) for _ in range(world)]
        wanted = {"sum": in_order(parts), "product": in_order(parts, np.multiply),
                  "min": np.minimum.reduce(parts), "max": np.maximum.reduce(parts)}
        with group(world) as ranks:
            assert ranks.ranks[0]._fusing._at_once_bytes < parts[0].nbytes
            for op in OPS:
                results = ranks.run(
                    lambda comm, op=op, parts=parts: comm.all_reduce(parts[comm.rank].copy(), op))
                for result in results:
                    assert result.tobytes() == results[0].tobytes()
                    if op != "mean":
                        np.testing.assert_array_equal(result, wanted[op])
                assert_close(results[0], expected(parts, op, dtype), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_small_sums_of_real_floats_are_in_the_order_of_ranks(ranks: Group, dtype: str) -> None:
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal(999).astype(dtype_of(dtype)) for _ in ranks.ranks]
    for got in ranks.run(lambda comm: comm.all_reduce(parts[comm.rank].copy())):
        np.testing.assert_array_equal(got, in_order(parts))


@pytest.mark.parametrize("count", [0, 1, 4, 64, 97, 100, 1000, 9973, 10000, 262144])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_of_ranks_are_exact(ranks: Group, count: int, dtype: str) -> None:
    world = len(ranks.ranks)
    for got in ranks.run(lambda comm: comm.all_reduce(np.full(count, comm.rank, dtype))):
        np.testing.assert_array_equal(got, np.full(count, world * (world - 1) / 2, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("factors", [(0.5, 1.0), (1.0, 3.0), (0.25, 2.0)])
def test_factors(ranks: Group, dtype: str, factors: tuple[float, float]) -> None:
    world = len(ranks.ranks)
    parts = arrays(world, (17, 5), dtype, "sum")
    mine = [part.copy() for part in parts]
    for got in ranks.run(lambda comm: comm.all_reduce(
        mine[comm.rank], prescale=factors[0], postscale=factors[1])):
        assert_close(got, expected(parts, "sum", dtype, factors[0] * factors[1]), dtype)


def test_a_mean_of_half_precision_does_not_overflow(ranks: Group) -> None:
    for size in (10, 400_000):
        for got in ranks.run(lambda comm, size=size: comm.all_reduce(
            np.full(size, 60000, np.float16), "mean")):
            assert (got == 60000).all()


def test_fused_calls_have_the_bits_of_single_ones(ranks: Group) -> None:
    world = len(ranks.ranks)
    shapes = [(n % 37 + 1, n % 5 + 1) for n in range(200)]
    rng = np.random.default_rng(0)
    parts = [[rng.standard_normal(shape, dtype=np.float32) for shape in shapes]
             for _ in range(world)]
    alone = ranks.run(lambda comm: [comm.all_reduce(part.copy()) for part in parts[comm.rank]])

    def fused(comm: Communicator) -> list[np.ndarray]:
        handles = [comm.all_reduce(part.copy(), async_op=True) for part in parts[comm.rank]]
        return [handle.wait() for handle in reversed(handles)][::-1]

    together = ranks.run(fused)
    for rank in range(world):
        for one, other, first in zip(alone[rank], together[rank], alone[0], strict=True):
            assert one.tobytes() == other.tobytes() == first.tobytes()


@pytest.mark.parametrize("named", [True, False])
def test_names_pair_calls_in_any_order(ranks: Group, named: bool) -> None:
    """C5: 200 arrays, small and large, in an order of each rank's own."""
    world = len(ranks.ranks)

    def work(comm: Communicator) -> bool:
        order = np.arange(200)
        if named:
            np.random.default_rng(comm.rank).shuffle(order)
        handles = {}
        for i in order.tolist():
            x = np.full(1 + 3001 * (i % 7) * (i % 3), i + comm.rank, np.float64)
            if i % 50 == 0:
                x = np.full(200_000, i + comm.rank, np.float64)
            handles[i] = comm.all_reduce(x, name=f"t{i}" if named else None, async_op=True)
        return all((handles[i].wait() == i * world + world * (world - 1) // 2).all()
                   for i in sorted(handles))

    assert all(ranks.run(work))


def test_arrays_that_are_no_plain_memory(ranks: Group) -> None:
    """C12: the right result or a typed error, never a wrong number."""
    world = len(ranks.ranks)
    total = world * (world + 1) // 2

    def work(comm: Communicator) -> None:
        one = comm.rank + 1
        base = np.zeros((6, 8), np.float32)
        strided = base[::2, ::3]
        strided[:] = one
        assert comm.all_reduce(strided) is strided
        assert (strided == total).all()
        assert base.sum() == strided.sum()
        fortran = np.asfortranarray(np.full((5, 7), one, np.float32))
        fortran[1, 2] = 10 * one
        comm.all_reduce(fortran)
        assert (fortran == total * np.where((np.indices((5, 7)) == [[[1]], [[2]]]).all(0), 10, 1)
                ).all()
        backwards = np.arange(5, dtype=np.float32)[::-1]
        comm.all_reduce(backwards)
        assert backwards.tolist() == [4 * world, 3 * world, 2 * world, world, 0]
        scalar = np.array(float(one))
        comm.all_reduce(scalar)
        assert scalar == total
        frozen = np.ones(3, np.float32)
        frozen.flags.writeable = False
        with pytest.raises(TensorError, match="read-only"):
            comm.all_reduce(frozen)
        with pytest.raises(DtypeMismatch):
            comm.all_reduce(np.ones(3, ">f4"))
        for wrong in (np.ones(3, "c8"), np.array(["a"]), object(), "text", None):
            with pytest.raises(TensorError):
                comm.all_reduce(wrong)

    ranks.run(work)


def test_wrong_words(ranks: Group) -> None:
    def work(comm: Communicator) -> None:
        x = np.ones(3, np.float32)
        with pytest.raises(ConfigError, match=r"unknown reduction.*sum, mean"):
            comm.all_reduce(x, "median")
        with pytest.raises(DtypeMismatch, match="no mean of integers"):
            comm.all_reduce(np.ones(3, np.int32), "mean")
        with pytest.raises(ConfigError, match="not a name"):
            comm.all_reduce(x, name="")
        with pytest.raises(ConfigError, match="no rank of this job"):
            comm.broadcast(x, root=comm.world_size)

    ranks.run(work)
    assert all((got == len(ranks.ranks)).all()
               for got in ranks.run(lambda comm: comm.all_reduce(np.ones(3, np.float32))))
