"""Answers in half the bytes at a server: encoded once a version, kept as long, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import RemoteProtocolError
from asyncps.protocol import messages
from asyncps.protocol.frames import Flag, Kind
from asyncps.roles.dropping import drop
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

N = 300
ROWS = (5, 1, 40)
FIRST = np.linspace(-3, 3, N, dtype="f4")


def served(type: str = "dist_sync", workers: int = 2, **words: Any) -> FakeServer:
    """Unit 0 is a chunk, 1 a slab, 2 a chunk of f16."""
    server = FakeServer(workers, type=type, **words)
    server.init(0, "float32", [FIRST.tobytes()], slab=False)
    server.init(1, "float32", [np.full(n, 0.1, "f4").tobytes() for n in ROWS], slab=True)
    server.init(2, "float16", [bytes(20)], slab=False)
    return server


def wishing(frame: Frame, flags: int = Flag.F16) -> Frame:
    """The same frame, whose answer is to travel so."""
    header, table, payload = frame
    return header._replace(flags=header.flags | flags), table, payload


def pull(request: int, clock: int = 0, unit: int = 0, size: int = 4 * N, **words: Any) -> Frame:
    return wishing(make_frame(Kind.PULL, request, unit, clock, size=size, **words))


def answered(server: FakeServer, rank: int, flags: int = Flag.F16) -> Any:
    parts = server.answers(rank).popleft()
    kind, _, body, error = read_answer(parts)
    if error is not None:
        return error
    assert kind == Kind.DATA
    header = bytes(parts[0])
    assert int.from_bytes(header[6:8], "little") == flags
    return np.frombuffer(body, "u2" if flags == Flag.BF16 else "f2")


async def test_a_version_is_encoded_once_for_all_and_kept_as_long_as_it_is() -> None:
    server = served()
    for rank in range(2):
        server.deliver(rank, pull(2))
    views = [server.answers(rank)[0][1] for rank in range(2)]
    assert np.shares_memory(*[np.frombuffer(view, "u1") for view in views])
    for rank in range(2):
        assert np.array_equal(answered(server, rank), FIRST.astype("f2"))
        server.deliver(rank, make_frame(Kind.PUSH, 3, 0, 1, np.ones(N, "f4").tobytes()))
        server.answers(rank).popleft()
    # Nobody has said that it has arrived: after a cut it is asked for again.
    server.connect(0)
    server.deliver(0, pull(2))
    again = server.answers(0)[0][1]
    assert np.shares_memory(np.frombuffer(again, "u1"), np.frombuffer(views[0], "u1"))
    assert np.array_equal(answered(server, 0), FIRST.astype("f2"))
    old = server.keeper.units[0].old  # type: ignore[union-attr]
    assert len(old) == 1
    for rank in range(2):
        server.deliver(rank, pull(4, 1, acked=1))
        assert np.array_equal(answered(server, rank), np.full(N, 2, "f2"))
    assert not old
    assert bytes(again) == b"\xa5" * (2 * N)  # it went back to the pool


async def test_a_value_that_changes_where_it_lies_is_encoded_anew() -> None:
    server = served(workers=1, optimizer="test", hyper={"rescale_grad": 1.0})
    for clock in range(4):
        server.deliver(0, pull(10 + clock, clock, acked=clock))
        assert np.array_equal(answered(server, 0), (FIRST + np.float32(clock)).astype("f2"))
        # That it has arrived is said by the push: the version is owed to nobody then.
        server.deliver(0, make_frame(Kind.PUSH, 20 + clock, 0, clock + 1,
                                     np.ones(N, "f4").tobytes(), acked=clock + 1))
        server.answers(0).popleft()


async def test_rows_of_slabs_and_several_forms() -> None:
    server = served()
    size = 4 * sum(ROWS)
    server.deliver(0, pull(2, unit=1, size=size))
    assert np.array_equal(answered(server, 0), np.full(46, 0.1, "f2"))
    server.deliver(1, wishing(make_frame(Kind.PULL, 2, 1, 0, size=size), Flag.BF16))
    assert set(answered(server, 1, Flag.BF16).tolist()) == {0x3DCD}
    server.deliver(0, wishing(make_frame(Kind.PUSHPULL, 3, 1, 1, np.ones(46, "f4").tobytes())))
    server.deliver(1, make_frame(Kind.PUSH, 3, 1, 1, np.ones(45, "f4").tobytes(), rows=[2, 0]))
    server.deliver(1, make_frame(Kind.PUSH, 4, 1, 1, np.ones(1, "f4").tobytes(), rows=[1]))
    assert np.array_equal(answered(server, 0), np.full(46, 2, "f2"))


@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("frame", [
    wishing(make_frame(Kind.PUSH, 2, 0, 1, bytes(4 * N))),
    wishing(make_frame(Kind.ASSIGN, 2, 0, 0, bytes(4 * N))),
    wishing(make_frame(Kind.WAIT, 2, 0, 0, size=4 * N)),
    wishing(make_frame(Kind.PULL, 2, 0, 0, size=4 * N), Flag.F16 | Flag.BF16),
    wishing(make_frame(Kind.PULL, 2, 2, 0, size=20)),
    wishing(make_frame(Kind.PUSHPULL, 2, 2, 1, bytes(20)), Flag.BF16),
], ids=lambda frame: f"{Kind(frame[0].kind).name} {frame[0].flags}")  # fmt: skip
async def test_where_it_does_not_belong_it_is_refused_and_nothing_counted(
    frame: Frame, type: str
) -> None:
    server = served(type)
    server.deliver(0, frame)
    assert isinstance(answered(server, 0), RemoteProtocolError)
    assert not server.keeper.beside
    for unit in server.keeper.units.values():
        pushed = getattr(unit, "arrivals", None) or getattr(unit, "rounds", None)
        assert pushed is None or not pushed.pushed


async def test_an_answer_without_rounds_is_the_value_as_it_is_now() -> None:
    server = served("dist_async", optimizer="test", hyper={"rescale_grad": 1.0})
    for clock in range(1, 4):
        frame = make_frame(Kind.PUSHPULL, clock + 1, 0, clock, np.ones(N, "f4").tobytes(),
                           acked=clock)
        server.deliver(0, wishing(frame))
        assert np.array_equal(answered(server, 0), (FIRST + np.float32(clock)).astype("f2"))




async def test_a_value_that_is_loaded_where_it_lies_is_encoded_anew() -> None:
    server = served()
    server.deliver(0, pull(2))
    assert np.array_equal(answered(server, 0), FIRST.astype("f2"))
    server.keeper.left(0)  # now the version is owed to nobody
    value = np.full(N, 0.3, "f4")
    told = messages.encode(messages.StateRange(STORE, 0, "", "", 0, 4 * N))
    server.deliver(1, make_frame(Kind.RESTORE, 2, 0, 0, value.tobytes(), table=told))
    server.answers(1).popleft()
    server.deliver(1, pull(3))
    assert np.array_equal(answered(server, 1), value.astype("f2"))


async def test_what_is_kept_beside_goes_with_the_store() -> None:
    server = served()
    before = server.pool.keep_bytes - server.keeper.dense_bytes
    for request in (2, 3):
        server.deliver(0, pull(request))
    assert server.keeper.value_bytes == server.keeper.dense_bytes + 2 * N
    drop(server.keeper)
    assert server.pool.keep_bytes == before
