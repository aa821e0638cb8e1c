"""ACCEPTANCE section 3 by its rows, for a rank among any number of others.

Each is called with the communicator of one rank, by all of them; what is right comes from NumPy.
`python -m tests.collective.rows` runs them, and DistOpt's rules, as one rank of the job that the
environment names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import CollectiveMismatch, ConfigError, DtypeMismatch, TensorError
from tests.distopt.rules import RULES

LARGE = 700_000  # elements that travel in chunks
DTYPES = ["int32", "int64", "float16", "bfloat16", "float32", "float64"]
OPS = ["sum", "mean", "min", "max", "product"]
TOLERANCE = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-6}


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def arrays(world: int, shape: tuple[int, ...], dtype: str, op: str) -> list[np.ndarray]:
    """Those of all ranks."""
    rng = np.random.default_rng([world, *shape])
    low, high = (-2, 3) if op == "product" else (-100, 100)
    if dtype == "uint8":
        low, high = 0, (3 if op == "product" else 100 // world)
    if dtype == "int8":
        low, high = (-2, 3) if op == "product" else (-100 // world, 100 // world)
    return [rng.integers(low, high, shape).astype(dtype_of(dtype)) for _ in range(world)]


def expected(parts: list[np.ndarray], op: str, dtype: str, factor: float = 1.0) -> np.ndarray:
    """The exact result, rounded once."""
    exact = np.float64 if "float" in dtype else np.int64
    stacked = np.stack([part.astype(exact) for part in parts])
    total = {"sum": stacked.sum, "mean": stacked.mean, "min": stacked.min, "max": stacked.max,
             "product": stacked.prod}[op](axis=0)
    with np.errstate(over="ignore"):
        return (total if factor == 1.0 else np.trunc(total * factor) if exact is np.int64
                else total * factor).astype(dtype_of(dtype))


def assert_close(got: np.ndarray, want: np.ndarray, dtype: str) -> None:
    assert got.dtype == want.dtype
    if "int" in dtype:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), rtol=TOLERANCE[dtype],
                                   atol=TOLERANCE[dtype])


def assert_alike(comm: Communicator, found: list[np.ndarray]) -> bytes:
    """All ranks have the same bits; returns their digest."""
    digest = hashlib.blake2b(b"".join(each.tobytes() for each in found), digest_size=16).digest()
    of_all = comm.all_gather(np.frombuffer(digest, np.uint8).reshape(1, -1))
    assert (of_all == of_all[0]).all()
    return digest


def c1(comm: Communicator) -> None:
    """Operations, dtypes, dimensions; in place or not."""
    found = []
    for dtype in DTYPES:
        for op in OPS:
            if op == "mean" and "int" in dtype:
                with pytest.raises(DtypeMismatch, match="mean of integers"):
                    comm.all_reduce(np.ones(3, dtype), op)
                continue
            for shape in ((17,), (17, 17), (17, 17, 17)):
                parts = arrays(comm.world_size, shape, dtype, op)
                x, want = parts[comm.rank].copy(), expected(parts, op, dtype)
                out = comm.all_reduce(x, op, out=np.empty_like(x))
                np.testing.assert_array_equal(x, parts[comm.rank])
                assert comm.all_reduce(x, op) is x
                assert_close(x, want, dtype)
                assert out.tobytes() == x.tobytes()
                found.append(x)
    assert_alike(comm, found)


def c2(comm: Communicator) -> None:
    """Many sizes, sums of ranks."""
    world = comm.world_size
    for count in (0, 1, 4, 64, 97, 100, 1000, 9973, 10000, LARGE):
        for dtype in ("float16", "float32"):
            got = comm.all_reduce(np.full(count, comm.rank, dtype))
            np.testing.assert_array_equal(got, np.full(count, world * (world - 1) / 2, dtype))


def c3(comm: Communicator) -> None:
    """Factors."""
    for dtype in ("float32", "float16", "int32"):
        for before, after in ((0.5, 1.0), (1.0, 3.0), (0.25, 2.0)):
            parts = arrays(comm.world_size, (17, 5), dtype, "sum")
            got = comm.all_reduce(parts[comm.rank].copy(), prescale=before, postscale=after)
            assert_close(got, expected(parts, "sum", dtype, before * after), dtype)
            got = comm.all_reduce(np.full(9, 4, dtype), prescale=before, postscale=after)
            assert (got == before * 4 * comm.world_size * after).all()


def c4(comm: Communicator) -> None:
    """Ranks that call differently, the last one from all others."""
    if comm.world_size == 1:
        return
    last = comm.world_size - 1
    odd = comm.rank == last
    for call in (
        lambda: comm.all_reduce(np.zeros(4 if odd else 3, "f4"), name="g"),
        lambda: comm.all_reduce(np.zeros(LARGE + odd, "f4"), name="g"),
        lambda: comm.all_reduce(np.zeros(3, "f8" if odd else "f4"), name="g"),
        lambda: comm.all_reduce(np.zeros(3, "f4"), "max" if odd else "sum", name="g"),
    ):
        with pytest.raises(CollectiveMismatch, match=rf"'g'.*ranks 0 and {last}"):
            call()
        assert (comm.all_reduce(np.ones(3, "f4"), name="g") == comm.world_size).all()


def c5(comm: Communicator) -> None:
    """200 names, each rank in an order of its own."""
    world, handles = comm.world_size, {}
    for i in np.random.default_rng(comm.rank).permutation(200).tolist():
        size = LARGE if i % 100 == 0 else 1 + 301 * (i % 7) * (i % 3)
        handles[i] = comm.all_reduce(np.full(size, i + comm.rank, "f8"), name=f"t{i}",
                                     async_op=True)
    for i, handle in sorted(handles.items()):
        assert (handle.wait() == i * world + world * (world - 1) // 2).all()


def c6(comm: Communicator) -> None:
    """A name that is under way: the call has not ended, for one rank has not made it."""
    for late in range(comm.world_size if comm.world_size > 1 else 0):
        if comm.rank != late:
            handle = comm.all_reduce(np.ones(3), name="twice", async_op=True)
            with pytest.raises(ConfigError, match="under way"):
                comm.all_reduce(np.ones(3), name="twice", async_op=True)
            comm.barrier()
        else:
            comm.barrier()
            handle = comm.all_reduce(np.ones(3), name="twice", async_op=True)
        assert (handle.wait() == comm.world_size).all()


def c7(comm: Communicator) -> None:
    """The other verbs, as in MPI."""
    world, me = comm.world_size, comm.rank
    rows = [(17, 32, 81, 0)[rank % 4] for rank in range(world)]
    got = comm.all_gather(np.full((rows[me], 3), me, "i8"))
    np.testing.assert_array_equal(got, np.repeat(np.arange(world), rows)[:, None].repeat(3, 1))
    for root in range(world):
        for count in (5, LARGE):
            x = comm.broadcast(np.full(count, me, "f4"), root)
            assert (x == root).all()
    for count in (0, 1, 8, 11):
        parts = [np.random.default_rng(rank).integers(-9, 9, (count, 2)) for rank in range(world)]
        want = np.array_split(np.sum(parts, axis=0), world)[me]
        np.testing.assert_array_equal(comm.reduce_scatter(parts[me]), want)
    sent = [(me + 1) * (to + 1) for to in range(world)]
    got, counts = comm.all_to_all(np.repeat(100 * me + np.arange(world), sent), sent)
    assert counts == [(source + 1) * (me + 1) for source in range(world)]
    np.testing.assert_array_equal(got, np.repeat(100 * np.arange(world) + me, counts))
    got, counts = comm.all_to_all(np.full((me + 1) * world, me, "f4"), [me + 1] * world)
    assert counts == list(range(1, world + 1))
    np.testing.assert_array_equal(got, np.repeat(np.arange(world), counts))


def c8(comm: Communicator) -> None:
    """The last rank has a step more than the others."""
    last = comm.world_size - 1
    for _ in range(2):
        for step in range(10 + (comm.rank == last)):
            left = comm.world_size if step < 10 else 1
            for count in (4, LARGE if step > 8 else 9):
                assert (comm.all_reduce(np.ones(count, "f4")) == left).all()
        assert comm.join() == last
        assert (comm.broadcast(np.full(4, comm.rank, "f4"), last) == last).all()


def c9(comm: Communicator) -> None:
    """Fused or not, run after run: the same bits, those of sums in the order of ranks."""
    shapes = [(n % 37 + 1, n % 5 + 1) for n in range(100)]
    of_all = [[each.standard_normal(shape, "f4") for shape in shapes]
              for each in map(np.random.default_rng, range(comm.world_size))]
    want = [in_order([part[i] for part in of_all]) for i in range(len(shapes))]
    digests = set()
    for _ in range(2):
        mine = [part.copy() for part in of_all[comm.rank]]
        digests.add(assert_alike(comm, [comm.all_reduce(part.copy()) for part in mine]))
        digests.add(assert_alike(comm, comm.grouped_all_reduce([part.copy() for part in mine])))
        handles = [comm.all_reduce(part, async_op=True) for part in mine]
        digests.add(assert_alike(comm, [handle.wait() for handle in handles]))
    assert digests == {assert_alike(comm, want)}


def c12(comm: Communicator) -> None:
    """Arrays that are no plain memory, by all verbs: the right result or a typed error."""
    world, me = comm.world_size, comm.rank
    for make in (
        lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
        np.asfortranarray,
        lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
        lambda x: np.stack([x, x], 2)[..., 1],
    ):
        of_all = [np.arange(6.0 * world).reshape(2 * world, 3) + 100 * rank
                  for rank in range(world)]
        total, mine = np.sum(of_all, axis=0), make(of_all[me])
        np.testing.assert_array_equal(mine, of_all[me])
        np.testing.assert_array_equal(comm.all_gather(mine), np.concatenate(of_all))
        np.testing.assert_array_equal(comm.reduce_scatter(mine), total[2 * me : 2 * me + 2])
        rows, counts = comm.all_to_all(mine)
        assert counts == [2] * world
        want = np.concatenate([each[2 * me : 2 * me + 2] for each in of_all])
        np.testing.assert_array_equal(rows, want)
        np.testing.assert_array_equal(mine, of_all[me])
        x = make(of_all[me].copy())
        assert comm.broadcast(x, world - 1) is x
        np.testing.assert_array_equal(x, of_all[-1])
        x = make(of_all[me].copy())
        assert comm.all_reduce(x) is x
        np.testing.assert_array_equal(x, total)
    foreign, frozen = np.ones((world, 2), ">f4"), np.ones((world, 2), "f4")
    frozen.flags.writeable = False
    for verb in (comm.all_reduce, comm.broadcast, comm.all_gather, comm.reduce_scatter,
                 comm.all_to_all):
        with pytest.raises(DtypeMismatch):
            verb(foreign)
    assert (comm.all_gather(frozen) == 1).all()
    assert (comm.reduce_scatter(frozen) == world).all()
    assert (comm.all_to_all(frozen)[0] == 1).all()
    with pytest.raises(TensorError, match="read-only"):
        comm.all_reduce(frozen)


def in_order(parts: list[np.ndarray], op: Any = np.add) -> np.ndarray:
    """The reduction in the order of ranks; of halves in f32, and rounded once."""
    wide = np.float32 if parts[0].dtype.itemsize == 2 else parts[0].dtype
    total = parts[0].astype(wide)
    for part in parts[1:]:
        total = op(total, part.astype(wide))
    return total.astype(parts[0].dtype)


ROWS: dict[str, Callable[[Communicator], None]] = {
    "C1": c1, "C2": c2, "C3": c3, "C4": c4, "C5": c5, "C6": c6, "C7": c7, "C8": c8, "C9": c9,
    "C12": c12,
}


def main() -> None:
    """Be one rank."""
    with Communicator.from_env() as comm:
        for name, check in (*ROWS.items(), *RULES.items()):
            check(comm)
            comm.barrier()
            if comm.rank == 0:
                print(f"{name} of {comm.world_size} ranks", flush=True)


if __name__ == "__main__":
    main()
