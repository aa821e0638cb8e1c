"""ACCEPTANCE section 3, C4 and C6 to C10: the other verbs, and what ranks do differently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncps.communicator import Communicator
from asyncps.errors import (
    ClusterError,
    CollectiveMismatch,
    ConfigError,
    DeadlineExceeded,
    ShapeMismatch,
    TensorError,
)
from tests.support.group import Group, group

LARGE = 700_000  # elements that travel in shares


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Group]:
    with group(request.param) as opened:
        yield opened


@pytest.mark.parametrize("columns", [1, 17, LARGE // 17])
@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
def test_all_gather_of_uneven_rows(ranks: Group, columns: int, dtype: str) -> None:
    rows = (17, 32, 81, 0)

    def work(comm: Communicator) -> np.ndarray:
        count = rows[comm.rank] if columns < 1000 else comm.rank
        x = np.full((count, columns), comm.rank, dtype)
        return comm.all_gather(x)

    counts = rows if columns < 1000 else range(4)
    want = np.concatenate([np.full((counts[rank], columns), rank, dtype)
                           for rank in range(len(ranks.ranks))])
    for got in ranks.run(work):
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("count", [0, 1, 1000, LARGE])
def test_broadcast_from_each(ranks: Group, count: int) -> None:
    for root in range(len(ranks.ranks)):
        def work(comm: Communicator, root: int = root) -> np.ndarray:
            x = np.full(count, comm.rank, np.float32)
            assert comm.broadcast(x, root) is x
            return x

        for got in ranks.run(work):
            np.testing.assert_array_equal(got, np.full(count, root, np.float32))


def test_only_the_root_of_a_broadcast_may_be_read_only(three: Group) -> None:
    def work(comm: Communicator) -> None:
        x = np.full(5, comm.rank, np.float32)
        x.flags.writeable = comm.rank != 1
        if comm.rank != 1:
            comm.broadcast(x, 1)
            assert (x == 1).all()
        else:
            comm.broadcast(x, 1)
            with pytest.raises(TensorError, match="read-only"):
                comm.broadcast(x, 0)

    three.run(work)


@pytest.mark.parametrize("columns", [1, 3, LARGE // 10])
@pytest.mark.parametrize("rows", [0, 1, 8, 11])
def test_reduce_scatter(ranks: Group, rows: int, columns: int) -> None:
    world = len(ranks.ranks)
    rng = np.random.default_rng(rows)
    parts = [rng.integers(-9, 9, (rows, columns)).astype(np.float32) for _ in range(world)]
    total = np.sum(parts, axis=0)
    each = [rows // world + (rank < rows % world) for rank in range(world)]
    got = ranks.run(lambda comm: comm.reduce_scatter(parts[comm.rank]))
    for rank in range(world):
        begin = sum(each[:rank])
        np.testing.assert_array_equal(got[rank], total[begin : begin + each[rank]])


@pytest.mark.parametrize("columns", [1, LARGE // 10])
def test_all_to_all_with_splits(ranks: Group, columns: int) -> None:
    world = len(ranks.ranks)

    def work(comm: Communicator) -> tuple[np.ndarray, list[int]]:
        splits = [comm.rank + 1 + (to == 2) for to in range(world)]
        x = np.concatenate([np.full((split, columns), 10 * comm.rank + to, np.int32)
                            for to, split in enumerate(splits)])
        return comm.all_to_all(x, splits)

    for to, (rows, counts) in enumerate(ranks.run(work)):
        assert counts == [source + 1 + (to == 2) for source in range(world)]
        np.testing.assert_array_equal(rows, np.concatenate([
            np.full((counts[source], columns), 10 * source + to, np.int32)
            for source in range(world)]))


def test_all_to_all_evenly_and_wrong_splits(three: Group) -> None:
    def work(comm: Communicator) -> None:
        rows, counts = comm.all_to_all(np.arange(6) + 10 * comm.rank)
        assert rows.tolist() == [10 * source + 2 * comm.rank + i for source in range(3)
                                 for i in range(2)]
        assert counts == [2, 2, 2]
        for wrong in ([1, 1], [6, 1, -1], [1, 1, 1]):
            with pytest.raises(ShapeMismatch):
                comm.all_to_all(np.arange(6), wrong)
        with pytest.raises(ShapeMismatch, match="evenly"):
            comm.all_to_all(np.arange(7))
        with pytest.raises(ShapeMismatch, match="no rows"):
            comm.all_gather(np.float32(1))

    three.run(work)


def test_objects(three: Group) -> None:
    value = {"a": [1, 2.5, None, True], "b": b"bytes", "c": {"d": "text"}, "e": list(range(9999))}

    def work(comm: Communicator) -> None:
        assert comm.broadcast_object(value if comm.rank == 1 else None, root=1) == value
        assert comm.all_gather_object([comm.rank] * comm.rank) == [[], [1], [2, 2]]
        with pytest.raises(TensorError, match="cannot travel"):
            comm.all_gather_object(object())

    three.run(work)


def differing(kind: str) -> Callable[[Communicator], object]:
    def work(comm: Communicator) -> object:
        odd = comm.rank == 1
        if kind == "shape":
            return comm.all_reduce(np.zeros(4 if odd else 3, np.float32), name="g")
        if kind == "dtype":
            return comm.all_reduce(np.zeros(3, np.float64 if odd else np.float32), name="g")
        if kind == "op":
            return comm.all_reduce(np.zeros(3, np.float32), "max" if odd else "sum", name="g")
        if kind == "verb":
            x = np.zeros(3, np.float32)
            return comm.broadcast(x, name="g") if odd else comm.all_reduce(x, name="g")
        if kind == "size":
            return comm.all_reduce(np.zeros(LARGE if odd else 3, np.float32), name="g")
        if kind == "large":
            return comm.all_reduce(np.zeros(LARGE + odd, np.float32), name="g")
        if kind == "columns":
            return comm.all_gather(np.zeros((2, 3 + odd), np.float32), name="g")
        if kind == "root":
            return comm.broadcast(np.zeros(3, np.float32), int(odd), name="g")
        raise AssertionError(kind)

    return work


@pytest.mark.parametrize(
    "kind", ["shape", "dtype", "op", "verb", "size", "large", "columns", "root"])
def test_a_mismatch_is_told_to_all_and_the_next_call_works(three: Group, kind: str) -> None:
    for outcome in three.outcomes(differing(kind)):
        with pytest.raises(CollectiveMismatch, match=r"'g'.*ranks 0 and 1"):
            outcome()
    for got in three.run(lambda comm: comm.all_reduce(np.ones(LARGE, np.float32), name="g")):
        assert (got == 3).all()


def test_a_name_under_way_is_refused(three: Group) -> None:
    def work(comm: Communicator) -> None:
        first = comm.all_reduce(np.ones(3, np.float32), name="twice", async_op=True)
        with pytest.raises(ConfigError, match="under way"):
            comm.all_reduce(np.ones(3, np.float32), name="twice", async_op=True)
        assert (first.wait() == 3).all()
        assert (comm.all_reduce(np.ones(3, np.float32), name="twice") == 3).all()

    three.run(work)


def test_early_join() -> None:
    """C8: sums of those left; the last rank everywhere; broadcast still works."""
    steps = (10, 10, 11)
    with group(3) as three:
        for _ in range(2):  # and the next epoch too
            def work(comm: Communicator) -> int:
                for step in range(steps[comm.rank]):
                    left = 3 if step < 10 else 1
                    x = comm.all_reduce(np.ones(4, np.float32))
                    assert (x == left).all()
                    x = comm.all_reduce(np.ones(LARGE, np.float32))
                    assert (x == left).all()
                last = comm.join()
                x = np.full(4, comm.rank, np.float32)
                comm.broadcast(x, 2)
                assert (x == 2).all()
                return last

            assert three.run(work) == [2, 2, 2]


def test_a_barrier_waits_and_a_lone_rank_is_told_who_is_missing(three: Group) -> None:
    late = threading.Barrier(3)

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            late.wait(20)
            comm.barrier()
            return
        with pytest.raises(DeadlineExceeded, match=r"lacks ranks \[.*1"):
            comm.barrier(timeout=0.01)
        late.wait(20)

    three.run(work)
    three.run(lambda comm: comm.barrier())


def test_a_handle_tells_how_it_stands(three: Group) -> None:
    late = threading.Event()

    def work(comm: Communicator) -> None:
        if comm.rank == 2:
            late.wait(20)
        handle = comm.all_reduce(np.ones(3, np.float32), name="slow", async_op=True)
        if comm.rank == 0:
            assert not handle.done()
            assert "under way" in repr(handle)
            with pytest.raises(DeadlineExceeded, match=r"'slow'.*lacks ranks"):
                handle.wait(timeout=0.01)
            late.set()
        assert (handle.wait() == 3).all()
        assert handle.done()
        assert handle.exception() is None
        assert "done" in repr(handle)
        assert (handle.wait() == 3).all()

    three.run(work)


def test_who_leaves_while_others_call_is_named() -> None:
    with group(3) as three:
        three.run(lambda comm: comm.barrier())

        def work(comm: Communicator) -> None:
            if comm.rank == 1:
                comm.close()
                return
            comm.all_reduce(np.ones(3, np.float32))

        outcomes = three.outcomes(work)
        outcomes[1]()
        for rank in (0, 2):
            with pytest.raises(ClusterError, match="rank 1 has left"):
                outcomes[rank]()


def test_alone() -> None:
    with Communicator.from_env() as comm:
        assert (comm.rank, comm.world_size) == (0, 1)
        x = np.arange(LARGE, dtype=np.float32)
        assert (comm.all_reduce(x, "mean", postscale=2.0) == 2 * np.arange(LARGE)).all()
        assert comm.all_gather(np.ones((2, 3))).shape == (2, 3)
        assert comm.join() == 0
        comm.barrier()


@pytest.mark.parametrize("factor", ["x", None, [1], 1j, 10**400], ids=str)
def test_factors_that_are_no_numbers_are_refused(three: Group, factor: Any) -> None:
    for words in ({"prescale": factor}, {"postscale": factor}):
        with pytest.raises(ConfigError, match="a number"):
            three.ranks[0].all_reduce(np.ones(3), **words)


@pytest.mark.parametrize("verb", ["all_reduce", "reduce_scatter", "grouped_all_reduce"])
def test_factors_that_change_what_is_reduced_are_refused(three: Group, verb: str) -> None:
    """A product's would count as often as there are ranks; a negative one turns min into max."""
    call, x = getattr(three.ranks[0], verb), np.ones(3)
    given: Any = [x] if verb == "grouped_all_reduce" else x
    for op, prescale in (("product", 2.0), ("product", np.nan), ("min", -1.0), ("max", np.nan)):
        with pytest.raises(ConfigError, match=f"prescale of op {op}.*postscale"):
            call(given, op, prescale=prescale)


@pytest.mark.parametrize(("op", "factors", "expected"), [
    ("product", (1.0, -2.0), -48.0), ("min", (0.5, 1.0), 1.0), ("max", (3.0, -1.0), -12.0),
    ("min", (0.0, 1.0), 0.0), ("mean", (-1.0, 1.0), -3.0),
])  # fmt: skip
def test_factors_of_each_reduction(
    three: Group, op: str, factors: tuple[float, float], expected: float
) -> None:
    outs = three.run(lambda comm: comm.all_reduce(
        np.full(5, comm.rank + 2.0), op, prescale=factors[0], postscale=factors[1]))
    for out in outs:
        assert out.tolist() == [expected] * 5


@pytest.mark.parametrize("verb", ["all_gather", "reduce_scatter", "all_to_all"])
def test_rows_of_no_elements_cannot_be_told_from_none(three: Group, verb: str) -> None:
    outcomes = three.outcomes(lambda comm: getattr(comm, verb)(np.ones((6, 0, 2))))
    others = three.outcomes(lambda comm: getattr(comm, verb)(np.ones((6, 2 * comm.rank, 2))))
    for outcome, other in zip(outcomes, others, strict=True):
        with pytest.raises(ShapeMismatch, match=r"rows of no elements.*\(6, 0, 2\)"):
            outcome()
        with pytest.raises(CollectiveMismatch, match="shape"):
            other()
