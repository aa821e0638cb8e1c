"""What ranks send of an encoded array: whatever comes is read, or is an error of ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.codedframe import OK, REFUSED, SKIPPED, Words, common, framed, parsed
from asyncps.errors import AsyncPSError, CollectiveMismatch
from asyncps.tensor import codecs

SUM = Words(1, 1.0, "float32", (30, 7))


def frame(rank: int = 0, state: int = OK, words: Words = SUM, **spec: Any) -> Any:
    """The bytes of a frame of some codec, with a payload of ten bytes."""
    codec = codecs.made(codecs.checked({"type": "2bit", **spec}))
    payload = np.arange(10, dtype=np.uint8)
    return framed(rank, state, words, codec.head(210, 0), [payload[:4], payload[4:]])


def test_what_is_framed_is_parsed() -> None:
    both = parsed(np.concatenate([frame(), frame(1, SKIPPED, type="topk", values="f16")]))
    assert [each.rank for each in both] == [0, 1]
    assert [each.state for each in both] == [OK, SKIPPED]
    assert all(each.words == SUM for each in both)
    assert all(each.payload.tolist() == list(range(10)) for each in both)
    assert (both[0].codec.name, both[1].codec.name, both[1].codec.half) == ("2bit", "topk", True)
    assert parsed(frame(0, REFUSED))[0].text == bytes(range(10)).decode()


@pytest.mark.parametrize(("other", "what"), [
    (frame(1, words=SUM._replace(operation=2)), "operation 1 and 2"),
    (frame(1, words=SUM._replace(factor=0.5)), r"factor 1\.0 and 0\.5"),
    (frame(1, words=SUM._replace(dtype="float16")), "dtype float32 and float16"),
    (frame(1, words=SUM._replace(shape=(210,))), r"shape \(30, 7\) and \(210,\)"),
    (frame(1, type="onebit"), "compression 2bit .* and onebit"),
    (frame(1, threshold=0.25), r"compression 2bit \(0\.5.* and 2bit \(0\.25"),
])  # fmt: skip
def test_frames_of_different_calls_are_told_apart(other: Any, what: str) -> None:
    with pytest.raises(CollectiveMismatch, match=f"'w' differently: ranks 0 and 1: {what}"):
        common(parsed(np.concatenate([frame(), other])), "w")


def test_a_rank_cannot_be_there_twice() -> None:
    with pytest.raises(AsyncPSError, match="twice"):
        common(parsed(np.concatenate([frame(), frame()])), "w")


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        parsed(np.frombuffer(bytearray(data), np.uint8))
    except AsyncPSError:
        pass
    else:
        assert not data


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8),
       st.integers(0, 200))
def test_frames_that_were_changed_or_cut_are_read_or_refused(
    changes: list[tuple[int, int]], size: int
) -> None:
    raw = np.concatenate([frame(), frame(1)])
    for at, value in changes:
        raw[at % raw.size] = value
    try:
        found = parsed(raw[:size])
        if found:
            common(found, "w")
    except AsyncPSError:
        return
    assert sum(each.payload.nbytes for each in found) <= size
