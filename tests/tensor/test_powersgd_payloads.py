"""Payloads of powersgd that come from anybody: values within their place, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.tensor import codecs

CODEC = codecs.made(codecs.checked({"type": "powersgd"}))
GUARD = 64


def payload_of(columns: int, column: int, p: Any, q: Any, rank: int | None = None) -> Any:
    """As docs/wire.md has it."""
    p, q = np.asarray(p, "<f4"), np.asarray(q, "<f4")
    head = np.array([columns, column, p.shape[1] if rank is None else rank], "<u4")
    return np.frombuffer(head.tobytes() + p.tobytes() + q.tobytes(), np.uint8)


def taken(n: int, payload: Any) -> Any:
    """What is added to zeros, between guards that nothing may touch; and decoded, the same."""
    with np.errstate(all="ignore"):
        CODEC.check(n, payload, 0)
        room = np.zeros(n + 2 * GUARD, "f4")
        CODEC.add(room[GUARD:-GUARD], payload, 0)
        assert not room[:GUARD].any()
        assert not room[-GUARD:].any()
        other = np.full(n + 2 * GUARD, 7, "f4")
        CODEC.decode(other[GUARD:-GUARD], payload, 0)
        assert (other[:GUARD] == 7).all()
        assert (other[-GUARD:] == 7).all()
    assert np.array_equal(room[GUARD:-GUARD], other[GUARD:-GUARD], equal_nan=True)
    return other[GUARD:-GUARD]


# -------------------------------------------------------------------------------- what is decoded


def test_golden_payload() -> None:
    """Elements 3 to 14 of a matrix of five columns: rows 0 to 2, of which the first is cut."""
    p, q = [[1], [2], [-3]], [[1], [0.5], [4], [-1], [2]]
    payload = payload_of(5, 3, p, q)
    assert payload.tobytes().hex() == (
        "05000000" "03000000" "01000000" "0000803f" "00000040" "000040c0"
        "0000803f" "0000003f" "00008040" "000080bf" "00000040"
    )  # fmt: skip
    assert taken(12, payload).tolist() == [-1, 2, 2, 1, 8, -2, 4, -3, -1.5, -12, 3, -6]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 40), st.integers(1, 30), st.integers(1, 3), st.data())
def test_any_part_of_a_product_is_that_of_the_product(
    columns: int, rows: int, rank: int, data: st.DataObject
) -> None:
    chance = np.random.default_rng(data.draw(st.integers(0, 1000)))
    p, q = chance.normal(size=(rows, rank)), chance.normal(size=(columns, rank))
    column = data.draw(st.integers(0, columns - 1))
    last = data.draw(st.integers(1, columns))
    n = rows * columns - column - (columns - last)
    payload = payload_of(columns, column, p, q)
    if n < 1 or payload.nbytes >= 4 * n:
        return
    expected = (p @ q.T).reshape(-1)[column : column + n]
    assert np.allclose(taken(n, payload), expected, atol=1e-4)


def test_rows_longer_than_what_is_made_at_once() -> None:
    chance = np.random.default_rng(1)
    p, q = chance.normal(size=(7, 2)), chance.normal(size=(70_001, 2))
    expected = (p @ q.T).reshape(-1)
    for column, n in ((0, expected.size), (3, expected.size - 10), (70_000, 300_000)):
        rows = -(-(column + n) // 70_001)
        payload = payload_of(70_001, column, p[:rows], q)
        assert np.allclose(taken(n, payload), expected[column : column + n], atol=1e-4)


def test_a_payload_that_does_not_lie_as_numbers_must() -> None:
    payload = payload_of(5, 3, [[1], [2], [-3]], [[1], [0.5], [4], [-1], [2]])
    moved = np.concatenate([np.zeros(1, np.uint8), payload])[1:]
    assert taken(12, moved).tolist() == taken(12, payload).tolist()
    dense = np.arange(11, dtype="<f4").view(np.uint8)
    assert taken(11, np.concatenate([np.zeros(1, np.uint8), dense])[1:]).tolist() == list(range(11))


def test_a_product_that_is_too_large_is_infinite_as_a_dense_value_may_be() -> None:
    payload = payload_of(5, 0, [[3e38], [1], [-3e38], [0]], [[3e38], [1], [0], [-1], [1]])
    out = taken(20, payload)
    assert out[:2].tolist() == [np.inf, np.float32(3e38)]
    assert out[10] == -np.inf


# --------------------------------------------------------------------------------- what is refused

ONE = np.ones((4, 1))
FIVE = np.ones((5, 1))


@pytest.mark.parametrize(("n", "payload", "words"), [
    (20, payload_of(5, 0, ONE, FIVE, rank=0), "a rank from 1 to 256"),
    (20, payload_of(5, 0, ONE, FIVE, rank=257), "a rank from 1 to 256"),
    (20, payload_of(5, 0, ONE, FIVE, rank=2**32 - 1), "a rank from 1 to 256"),
    (20, payload_of(5, 0, ONE, FIVE, rank=2), "84 bytes of 20 values"),
    (20, payload_of(5, 5, ONE, FIVE), "a column that is there.*column 5 of 5"),
    (20, payload_of(0, 0, ONE, FIVE), "column 0 of 0"),
    (20, payload_of(5, 1, ONE, FIVE), "52 bytes of 20 values at column 1 of 5"),
    (15, payload_of(5, 0, ONE, FIVE), "44 bytes of 15 values"),
    (20, payload_of(3, 0, ONE, FIVE), "52 bytes of 20"),
    (20, payload_of(2**32 - 1, 2**32 - 2, ONE, FIVE), "bytes of 20 values"),
    (20, payload_of(5, 0, ONE, FIVE)[:-1], "48 bytes of 20"),
    (20, payload_of(5, 0, ONE, FIVE)[:11], "12 to 80 bytes of 20 values"),
    (20, np.zeros(0, np.uint8), "12 to 80 bytes"), (20, np.zeros(81, np.uint8), "12 to 80 bytes"),
    (8, payload_of(5, 0, np.ones((2, 1)), FIVE), "12 to 32 bytes of 8 values"),
    (20, payload_of(5, 0, ONE * np.nan, FIVE), "finite factors"),
    (20, payload_of(5, 0, ONE, FIVE * np.inf), "finite factors"),
])  # fmt: skip
def test_a_payload_that_cannot_be_is_refused(n: int, payload: Any, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=f"not of codec powersgd.*{words}"):
        CODEC.check(n, payload, 0)


near = st.one_of(st.integers(0, 20), st.sampled_from([2**31, 2**32 - 1]))


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 300), near, near, near, st.binary(max_size=1300))
def test_any_bytes_are_values_or_an_error(
    n: int, columns: int, column: int, rank: int, rest: bytes
) -> None:
    head = np.array([columns, column, rank], "<u4").tobytes()
    for data in (rest, head + rest, head + rest[: len(rest) // 4 * 4]):
        try:
            taken(n, np.frombuffer(data, np.uint8))
        except RemoteProtocolError:
            continue


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 40), st.integers(0, 40), st.integers(1, 5),
       st.integers(-1, 1), st.integers(0, 2**32 - 1))
def test_any_factors_of_the_right_size_or_nearly(
    n: int, columns: int, column: int, rank: int, off: int, seed: int
) -> None:
    rows = max(0, -(-(column + n) // columns) + off)
    words = np.random.default_rng(seed).integers(0, 2**32, (rows + columns, rank), np.uint32)
    values = words.view("f4")
    payload = payload_of(columns, column, values[:rows], values[rows:], rank)
    try:
        out = taken(n, payload)
    except RemoteProtocolError:
        return
    if payload.nbytes == 4 * n:  # then these are the values
        return
    assert off == 0
    assert column < columns
    assert out.size == n


def test_no_head_has_a_parameter_or_halves() -> None:
    head = bytearray(CODEC.head(20, 0))
    assert bytes(head).hex() == "010b0000" "00000000" "1400000000000000" "0000000000000000"
    for at in (2, 3, 6):
        wrong = bytes(head[:at]) + b"\1" + bytes(head[at + 1 :])
        with pytest.raises(RemoteProtocolError):
            codecs.parse_head(wrong, codecs.BY_NUMBER)
