"""powersgd at a server: factors are added to what others bring, or refused and not counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError
from asyncps.protocol.frames import Flag, Kind
from asyncps.tensor import codecs
from tests.roles.test_encoded import ROWS, N, answer, gradient, raw, served
from tests.support.ports import make_frame
from tests.tensor.test_powersgd_payloads import payload_of

CODEC = codecs.made(codecs.checked({"type": "powersgd"}))
P, Q = np.arange(15.0).reshape(15, 1), np.linspace(-1, 1, 20).reshape(20, 1)
PRODUCT = (P @ Q.T).astype("f4").reshape(-1)


def frame(payload: Any, elements: int = N, **more: Any) -> Any:
    return raw(Kind.PUSHPULL, Flag.CODEC, CODEC.head(elements, 0), payload.tobytes(), **more)


@pytest.mark.parametrize("order", ["arrival", "rank"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
async def test_factors_and_values_meet_in_one_round(order: str, dtype: str) -> None:
    bits = "f4" if dtype == "float32" else "f2"
    server = served(order, workers=4, dtype=dtype)
    dense = gradient(2).astype(bits)
    server.deliver(0, frame(payload_of(20, 0, P, Q)))
    server.deliver(1, make_frame(Kind.PUSHPULL, 2, 0, 1, dense.tobytes()))
    server.deliver(2, frame(payload_of(20, 0, P, Q)))
    server.deliver(3, frame(gradient(3).view(np.uint8)))  # as it is, and f32 whatever is stored
    expected = 2 * PRODUCT + dense.astype("f4") + gradient(3)
    for rank in range(4):
        got = answer(server, rank, bits).astype("f4")
        assert np.allclose(got, expected, atol=1e-4, rtol=1e-3 if bits == "f2" else 1e-5)


@pytest.mark.parametrize("payload", [
    payload_of(20, 1, P, Q), payload_of(20, 0, P * np.nan, Q), payload_of(20, 0, P[1:], Q),
    np.zeros(4 * N + 4, np.uint8), np.zeros(0, np.uint8), np.zeros(7, np.uint8),
])  # fmt: skip
async def test_a_wrong_one_is_refused_and_not_counted(payload: Any) -> None:
    server = served()
    server.deliver(0, frame(payload))
    assert isinstance(answer(server, 0), RemoteProtocolError)
    for rank in range(2):
        server.deliver(rank, frame(payload_of(20, 0, P, Q), request=3))
    for rank in range(2):
        assert np.allclose(answer(server, rank), 2 * PRODUCT, atol=1e-4)


async def test_rows_of_a_slab_have_their_sizes() -> None:
    """The last row as factors, the others as they are."""
    server = served(workers=1)
    parts = [gradient(1, 5).view(np.uint8), gradient(2, 1).view(np.uint8),
             payload_of(8, 0, P[:5], Q[:8])]
    sizes = np.array([part.nbytes for part in parts], "<u4").tobytes()
    assert [5, 1, 40] == list(ROWS)
    data = b"".join(part.tobytes() for part in parts)
    server.deliver(0, raw(Kind.PUSHPULL, Flag.CODEC, sizes + CODEC.head(46, 0), data, unit=1))
    expected = np.concatenate(
        [gradient(1, 5), gradient(2, 1), (P[:5] @ Q[:8].T).astype("f4").reshape(-1)])
    assert np.allclose(answer(server, 0), expected, atol=1e-5)
