"""What ranks tell each other of a sum in few bytes: it is read, or is an error of ours."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.codedframe import State, Word, agree, framed, frames_of, word_bytes
from asyncps.errors import AsyncPSError, CodecError, CollectiveMismatch, ShapeMismatch, TensorError

WORD = Word(0, State.THERE, "sum", 1.0, "float32", (30, 7), "2bit (0.5)")
OTHER = msgspec.structs.replace(WORD, rank=1)


def both(other: Word = OTHER) -> Any:
    return np.concatenate([word_bytes(WORD), word_bytes(other)])


def test_what_is_said_is_heard() -> None:
    whole = msgspec.structs.replace(OTHER, state=State.WHOLE, text="so")
    assert agree(both(whole), "w", 5, range(2)) == [WORD, whole]


@pytest.mark.parametrize(("more", "kind", "what"), [
    ({"operation": "mean"}, CollectiveMismatch, "operation sum and mean"),
    ({"factor": 0.5}, CollectiveMismatch, r"factor 1\.0 and 0\.5"),
    ({"dtype": "float16"}, CollectiveMismatch, "dtype float32 and float16"),
    ({"shape": (210,)}, CollectiveMismatch, r"shape \(30, 7\) and \(210,\)"),
    ({"compression": "onebit"}, CollectiveMismatch, r"compression 2bit \(0\.5\) and onebit"),
    ({"state": State.REFUSED, "text": "7 of 9"}, TensorError, "not finite.*key 5.*rank 1.*7 of 9"),
    ({"state": State.ANOTHER, "text": "shape (2,)"}, ShapeMismatch, r"rank 1.*shape \(2,\)"),
    ({"state": State.FAILED, "text": "MemoryError()"}, AsyncPSError, "rank 1 has failed.*Memory"),
    ({"largest": float("nan")}, CodecError, "largest"),
    ({"largest": -1.0}, CodecError, "largest"),
    ({"drawn": -1}, CodecError, "number of a push"),
    ({"drawn": 1 << 62}, CodecError, "number of a push"),
    ({"rank": 0}, CodecError, r"take no part.*got \[0, 0\]"),
    ({"rank": 2}, CodecError, r"take no part.*got \[0, 2\]"),
])  # fmt: skip
def test_what_is_no_sum_is_told(more: dict[str, Any], kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=what):
        agree(both(msgspec.structs.replace(OTHER, **more)), "w", 5, range(2))


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    raw = np.frombuffer(bytearray(data), np.uint8)
    with pytest.raises(AsyncPSError):
        agree(raw, "w", 5, range(2))
    with pytest.raises(AsyncPSError):
        frames_of(raw, 2)


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
       st.integers(0, 200))
def test_words_that_were_changed_or_cut_are_read_or_refused(
    changes: list[tuple[int, int]], size: int
) -> None:
    raw = both()
    for at, value in changes:
        raw[at % raw.size] = value
    try:
        found = agree(raw[:size], "w", 5, range(2))
    except AsyncPSError:
        return
    assert {word.rank for word in found} <= {0, 1}


def test_arrays_lie_behind_each_other() -> None:
    payload = np.arange(10, dtype=np.uint8)
    raw = np.concatenate([framed(7, [payload[:4], payload[4:]]), framed(8, []), framed(0, None)])
    found = frames_of(raw, 3)
    assert [each.seed for each in found] == [7, 8, 0]
    assert [each.has_failed for each in found] == [False, False, True]
    assert [each.payload.tolist() for each in found] == [list(range(10)), [], []]
    with pytest.raises(CodecError, match="another number"):
        frames_of(raw, 2)
    for cut in range(1, raw.size):
        with pytest.raises(CodecError):
            frames_of(raw[:cut], 3)
