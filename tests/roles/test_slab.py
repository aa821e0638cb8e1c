"""Many small keys that move together, and each on its own when they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError
from asyncps.roles.slab import Slab
from asyncps.roles.unit import Rules, Waiter
from asyncps.tensor import dtypes
from asyncps.tensor.pool import Pool

MOMENTUM = {"learning_rate": 1.0, "momentum": 0.5, "wd": 0.0, "rescale_grad": 1.0,
            "clip_gradient": -1.0, "nesterov": False}  # fmt: skip


def slab_of(*rows: Any) -> Slab:
    slab = Slab(dtypes.by_name("float32"), Pool(1 << 20))
    slab.add_rows([4 * len(row) for row in rows], as_buffer(*rows))
    return slab


def as_buffer(*rows: Any) -> Any:
    return np.concatenate([np.asarray(row, "f4") for row in rows]).view("u1")


def rules(members: int = 1, **words: Any) -> Rules:
    return Rules("arrival", "sum", (1 << members) - 1, **words)


def value_of(slab: Slab) -> list[float]:
    assert slab.join()
    assert slab.whole is not None
    values: list[float] = slab.whole.current.buffer.view("f4").tolist()
    return values


def test_rows_begin_as_one_unit() -> None:
    slab = slab_of([1], [2, 3])
    assert value_of(slab) == [1, 2, 3]
    assert slab.sizes == [4, 8]
    assert slab.offsets == [0, 4, 12]
    assert slab.size == 12


def test_split_and_join_keep_values_state_and_counts() -> None:
    slab = slab_of([1], [2, 3])
    one = rules(optimizer="sgd", hyper={0: MOMENTUM})
    assert slab.whole is not None
    slab.whole.contribute(0, 1, as_buffer([1], [1, 1]), 0, one, 0.0)
    slab.split()
    assert [row.updates for row in slab.rows] == [1, 1]
    assert slab.rows[1].state["momentum"].tolist() == [-1, -1]
    assert value_of(slab) == [0, 1, 2]
    assert slab.whole is not None
    assert slab.whole.updates == 1
    slab.whole.contribute(0, 2, as_buffer([1], [1, 1]), 0, one, 0.0)
    assert value_of(slab) == [-1.5, -0.5, 0.5]


def test_rows_at_different_clocks_do_not_join() -> None:
    slab = slab_of([1], [2])
    slab.split()
    slab.rows[0].contribute(0, 1, as_buffer([5]), 0, rules(), 0.0)
    assert not slab.join()
    slab.rows[1].contribute(0, 1, as_buffer([6]), 0, rules(), 0.0)
    assert value_of(slab) == [5, 6]


@pytest.mark.parametrize("order", ["arrival", "rank"])
def test_split_takes_the_open_round_along(order: str) -> None:
    slab = slab_of([0], [0, 0])
    both = rules(2)
    both.order = order
    assert slab.whole is not None
    slab.whole.contribute(0, 1, as_buffer([1], [2, 3]), 0, both, 0.0)
    slab.split()
    assert not slab.join()
    slab.rows[0].contribute(1, 1, as_buffer([10]), 0, both, 0.0)
    slab.rows[1].contribute(1, 1, as_buffer([20, 30]), 0, both, 0.0)
    assert value_of(slab) == [11, 22, 33]


def test_waiter_of_the_whole_slab_gets_the_same_bytes_in_parts() -> None:
    slab = slab_of([0], [0])
    waiter = Waiter(0, 7, 0, 0, True, 1, [memoryview(b"")], 1)
    assert slab.whole is not None
    assert not slab.whole.park(waiter, 0, 1)
    slab.split()
    assert waiter.pending == 2
    for row, value in ((1, 8), (0, 4)):
        for found, position in slab.rows[row].contribute(
            0, 1, as_buffer([value]), 0, rules(), 0.0
        ):
            done = slab.rows[row].give(found, position)
    assert done
    assert b"".join(waiter.parts) == as_buffer([4], [8]).tobytes()


def test_owed_versions_survive_split_and_growth() -> None:
    slab = slab_of([1], [2])
    waiter = Waiter(0, 7, 0, 0, True, 0, [memoryview(b"")], 1)
    assert slab.whole is not None
    assert slab.whole.park(waiter, 0, 0)
    slab.whole.contribute(0, 1, as_buffer([5], [6]), 0, rules(), 0.0)
    slab.add_rows([4], as_buffer([9]))
    assert not slab.join()  # an old version is owed
    again = Waiter(0, 7, 0, 0, True, 0, [memoryview(b"")] * 2, 2)
    slab.rows[0].park(again, 0, 0)
    assert slab.rows[1].park(again, 1, 0)
    assert b"".join(again.parts) == b"".join(waiter.parts) == as_buffer([1], [2]).tobytes()


def test_new_rows_stand_at_clock_0_beside_older_ones() -> None:
    slab = slab_of([1])
    assert slab.whole is not None
    slab.whole.contribute(0, 1, as_buffer([5]), 0, rules(), 0.0)
    slab.add_rows([8, 4], as_buffer([7, 8], [9]))
    assert not slab.join()
    assert [row.rounds.applied for row in slab.rows] == [1, 0, 0]
    assert slab.sizes == [4, 8, 4]


def test_sizes_and_rows_that_cannot_be_are_refused() -> None:
    slab = slab_of([1], [2, 3])
    assert list(slab.prefix(4)) == [0]
    assert list(slab.prefix(12)) == [0, 1]
    assert slab.size_of([1, 0]) == 12
    for size in (0, 5, 16):
        with pytest.raises(RemoteProtocolError, match="expected 12"):
            slab.prefix(size)
    for rows in ([], [2], [0, 0]):
        with pytest.raises(RemoteProtocolError):
            slab.size_of(rows)


def test_rows_that_come_one_by_one_extend_the_whole_until_somebody_pushes() -> None:
    slab = slab_of([1], [2, 3])
    first = slab.whole
    slab.add_rows([8], as_buffer([4, 5]), ["third"])
    assert slab.whole is not None
    assert slab.rows == []
    assert value_of(slab) == [1, 2, 3, 4, 5]
    assert slab.offsets == [0, 4, 12, 20]
    assert slab.whole.spans[2] == ("third", 3, 5)
    assert slab.whole is not first
    slab.whole.contribute(0, 1, as_buffer([1, 1, 1, 1, 1]), 0, rules(optimizer="test", hyper={
        0: {"rescale_grad": 1.0}}), 0.0)
    slab.add_rows([4], as_buffer([9]))
    assert slab.whole is None  # it stands at another clock
    assert [row.current.buffer.view("f4").tolist() for row in slab.rows] == [
        [2], [3, 4], [5, 6], [9]]
