"""Payloads that no worker of ours would send: refused with nothing touched, or plain values.

Output and payload lie at the edge of memory that may not be touched (`Fence`); and `make sanitize`
runs this with kernels that watch each access.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncps.errors import RemoteProtocolError
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from tests.fuzz.payloads import SEED, SPECS, gradient, made, mutated, true_payload
from tests.support.fences import Fence

MOST = 700
PAYLOAD, OUT = Fence(8 * MOST + 64), Fence(4 * MOST)
every = pytest.mark.parametrize("spec", SPECS, ids=str)
PARAMETERS = st.sampled_from([0.0, 0.5, 1e-45, 3e38, -1.0]) | st.floats(width=32)


def take_in(codec: Codec, n: int, data: bytes, seed: int, *, at_back: bool) -> bool:
    """Do what a server does with a payload; tell whether it was accepted."""
    payload = (PAYLOAD.back if at_back else PAYLOAD.front)(np.frombuffer(data, np.uint8))
    payload.flags.writeable = False
    put = OUT.back if at_back else OUT.front
    try:
        codec.check(n, payload, seed)
    except RemoteProtocolError:
        return False
    with np.errstate(all="ignore"):
        total = put(np.zeros(n, np.float32))
        codec.add(total, payload, seed)
        assert OUT.is_whole(total)
        added = total.copy()
        out = put(np.full(n, 9, np.float32))
        codec.decode(out, payload, seed)
        assert OUT.is_whole(out)
    np.testing.assert_array_equal(added, out)  # every value is written, and to the same
    return True


def sizes_of(codec: Codec, n: int) -> st.SearchStrategy[int]:
    """Sizes of payloads, the right one among them."""
    exact = codec.nbytes(n)
    some = st.integers(0, 6 * MOST)
    return some if exact is None else st.just(exact) | st.integers(max(0, exact - 5), exact + 5)


@st.composite
def codecs_of_heads(draw: st.DrawFn) -> tuple[Codec, int]:
    """What comes out of heads of every number."""
    number = draw(st.sampled_from(sorted(codecs.BY_NUMBER)))
    for parameter in (draw(PARAMETERS), 0.0, 0.5):
        for half in (draw(st.integers(0, 1)), 0):
            head = struct.pack("<BBBBfQQ", 1, number, half, 0, parameter, 1, draw(st.integers(
                0, 2**64 - 1)))
            try:
                codec, _, seed = codecs.parse_head(head, codecs.BY_NUMBER)
            except RemoteProtocolError:
                continue
            return codec, seed
    raise AssertionError(f"no head of codec {number} is accepted")


@settings(max_examples=500)
@given(st.data(), codecs_of_heads(), st.integers(1, MOST), st.booleans())
def test_random_payload_touches_nothing_outside(
    data: st.DataObject, told: tuple[Codec, int], n: int, at_back: bool
) -> None:
    codec, seed = told
    size = data.draw(sizes_of(codec, n))
    content = data.draw(st.binary(min_size=size, max_size=size))
    take_in(codec, n, content, seed, at_back=at_back)


@every
@given(data=st.data(), n=st.integers(1, MOST), at_back=st.booleans())
def test_changed_payload_touches_nothing_outside(
    spec: dict[str, Any], data: st.DataObject, n: int, at_back: bool
) -> None:
    codec = made(spec)
    true = true_payload(codec, gradient(n, data.draw(st.integers(0, 99))))
    head = codec.head(n, SEED)
    decoder, elements, seed = codecs.parse_head(head, codecs.BY_NUMBER)
    assert elements == n
    assert take_in(decoder, n, true, seed, at_back=at_back)
    take_in(decoder, n, data.draw(mutated(true)), seed, at_back=at_back)
    other = data.draw(st.integers(1, MOST))  # of a key of another size
    take_in(decoder, other, true, seed, at_back=at_back)


@settings(max_examples=300)
@given(st.binary(max_size=60) | st.builds(
    lambda number, rest: bytes([1, number, 0, 0]) + rest,
    st.sampled_from(sorted(codecs.BY_NUMBER)), st.binary(min_size=20, max_size=20)))
@example(bytes(codecs.HEAD_BYTES))
def test_any_head_is_a_codec_or_refused(head: bytes) -> None:
    if len(head) != codecs.HEAD_BYTES:
        return
    try:
        codec, elements, seed = codecs.parse_head(head, codecs.BY_NUMBER)
    except RemoteProtocolError:
        return
    assert codec.head(elements, seed) == head
    assert np.isfinite(codec.parameter)
