"""Row ids as they travel: they come back, neighbours cost a head, garbage is the peer's error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.protocol import rows


@given(st.sets(st.integers(0, 2**40), max_size=30), st.sampled_from([2**41, 2**62]))
def test_ids_come_back(chosen: set[int], table_rows: int) -> None:
    ids = np.array(sorted(chosen), np.int64)
    data = rows.pack(ids, table_rows)
    assert len(data) % 8 == 0
    named = rows.parse(memoryview(data + b"rows"))
    assert named.size == len(data)
    assert named.number == ids.size
    assert named.to_ids().tolist() == ids.tolist()
    assert named.is_inside(0, table_rows)
    if ids.size:
        assert not named.is_inside(int(ids[0]) + 1, table_rows)
        assert not named.is_inside(0, int(ids[-1]))


@pytest.mark.parametrize(("ids", "table_rows", "size"), [
    ([], 100, 24), ([7], 100, 24), (range(5, 5000), 10**4, 24), ([1, 3], 2**32 - 1, 32),
    ([1, 3, 5], 2**32 - 1, 40), ([1, 3], 2**32, 40),
])  # fmt: skip
def test_bytes_are_those_of_the_formula(ids: list[int], table_rows: int, size: int) -> None:
    assert len(rows.pack(np.array(ids, np.int64), table_rows)) == size


def test_golden_bytes() -> None:
    assert rows.pack(np.array([2, 9], np.int64), 10).hex() == (
        "0400000000000000" "0000000000000000" "0200000000000000" "02000000" "09000000"
    )
    assert rows.pack(np.array([4, 5], np.int64), 10).hex() == (
        "0000000000000000" "0400000000000000" "0200000000000000"
    )


@pytest.mark.parametrize("head", [
    (1, 0, 1), (4, 1, 1), (4, 0, 0), (4, 0, -1), (0, -1, 1), (0, 1, -1), (8, 0, 2**60), (4, 0, 3),
    (0, 2**62, 2**62),
])  # fmt: skip
def test_impossible_heads_are_the_peers_error(head: tuple[int, int, int]) -> None:
    data = np.array(head, "<i8").tobytes() + bytes(8)
    with pytest.raises(RemoteProtocolError):
        rows.parse(memoryview(data))
    with pytest.raises(RemoteProtocolError):
        rows.parse(memoryview(data[:20]))


@given(st.binary(max_size=80))
def test_garbage_is_rows_or_an_error_of_the_peer(data: bytes) -> None:
    try:
        named = rows.parse(memoryview(data))
    except RemoteProtocolError:
        return
    named.is_inside(0, 10)


@pytest.mark.parametrize("ids", [[3, 3], [5, 4]])
def test_ids_that_do_not_ascend_are_not_inside(ids: list[int]) -> None:
    data = np.array([4, 0, 2], "<i8").tobytes() + np.array(ids, "<u4").tobytes()
    assert not rows.parse(memoryview(data)).is_inside(0, 10)
