"""What one server keeps for one store, through the ports that workers speak to."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis.stateful import run_state_machine_as_test

from asyncps.errors import (
    AsyncPSError,
    Disagreement,
    DtypeMismatch,
    RemoteProtocolError,
    UnknownKey,
)
from asyncps.protocol import messages
from asyncps.protocol.frames import Kind
from asyncps.protocol.messages import Install, Missing, SetHyper, UnitSpec
from asyncps.roles.dropping import drop
from asyncps.roles.unit import Unit
from tests.roles.machine import StoreMachine, random_walk
from tests.support.ports import STORE, FakeServer, Frame, make_frame, read_answer

CHUNK, SLAB = 0, 1


def f4(*values: float) -> bytes:
    return np.array(values, "f4").tobytes()


def answer(server: FakeServer, rank: int) -> tuple[int, int, bytes, AsyncPSError | None]:
    return read_answer(server.answers(rank).popleft())


def ask(server: FakeServer, rank: int, frame: Frame) -> tuple[int, int, bytes, AsyncPSError | None]:
    server.deliver(rank, frame)
    return answer(server, rank)


async def test_no_order_of_frames_halves_and_cuts_gives_a_wrong_byte() -> None:
    run_state_machine_as_test(
        StoreMachine,
        settings=hypothesis.settings(max_examples=40, stateful_step_count=40, deadline=None),
    )


@pytest.mark.parametrize("first", range(0, 400, 100))
async def test_random_walk_gives_no_wrong_byte(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            random_walk(seed)
        except BaseException as error:
            error.add_note(f"random_walk({seed})")
            raise


@pytest.mark.parametrize("type", ["dist_sync", "dist_ssp"])
async def test_who_has_left_waits_for_nothing_and_is_owed_nothing(type: str) -> None:
    server = FakeServer(2, optimizer="test", hyper={"rescale_grad": 1.0}, type=type,
                        staleness=1 if type == "dist_ssp" else 0)
    server.init(CHUNK, "float32", [f4(0)], slab=False)
    for clock in (1, 2):
        server.deliver(1, make_frame(Kind.PUSH, clock, CHUNK, clock, f4(1)))
    server.deliver(1, make_frame(Kind.PULL, 3, CHUNK, 2, size=4))  # and nobody takes the answer
    server.keeper.left(1)
    for clock in (1, 2):
        server.deliver(0, make_frame(Kind.PUSH, clock, CHUNK, clock, f4(1)))
    unit = server.keeper.units[CHUNK]
    assert isinstance(unit, Unit)
    assert not unit.parked
    assert not unit.current.owed
    assert not unit.old
    assert unit.current.buffer.view("f4").tolist() == [4]


async def test_frame_that_began_before_a_split_and_ended_after_it_counts() -> None:
    server = FakeServer(2)
    server.init(SLAB, "float32", [f4(0), f4(0)], slab=True)
    whole = make_frame(Kind.PUSHPULL, 1, SLAB, 1, f4(1, 2))
    assert server.begin(0, whole)
    assert ask(server, 1, make_frame(Kind.PUSH, 1, SLAB, 1, f4(10), rows=[0]))[0] == Kind.ACK
    server.end(0, whole)
    assert not server.answers(0)
    server.deliver(1, make_frame(Kind.PUSH, 2, SLAB, 1, f4(20), rows=[1]))
    assert answer(server, 0)[2] == f4(11, 22)


async def test_frame_of_rows_that_began_before_a_join_and_ended_after_it_counts() -> None:
    server = FakeServer(2)
    server.init(SLAB, "float32", [f4(0), f4(0)], slab=True)
    for row in (0, 1):  # split, and equal again
        for rank in (0, 1):
            ask(server, rank, make_frame(Kind.PUSH, 1 + row, SLAB, 1, f4(1), rows=[row]))
    rows = make_frame(Kind.PUSHPULL, 3, SLAB, 2, f4(3), rows=[1])
    assert server.begin(0, rows)
    server.deliver(1, make_frame(Kind.PUSH, 3, SLAB, 2, f4(10, 20)))
    server.end(0, rows)
    assert answer(server, 0)[2] == f4(23)


async def test_request_that_comes_again_is_parked_once() -> None:
    server = FakeServer(2)
    server.init(CHUNK, "float32", [f4(0)], slab=False)
    frame = make_frame(Kind.PUSHPULL, 1, CHUNK, 1, f4(1))
    for _ in range(3):
        server.connect(0)
        server.deliver(0, frame)
    assert len(server.ports[0].parked) == 1
    server.deliver(1, make_frame(Kind.PUSH, 1, CHUNK, 1, f4(5)))
    assert answer(server, 0)[2] == f4(6)
    assert not server.answers(0)
    assert not server.ports[0].parked


async def test_peer_that_has_not_heard_of_the_newest_rows_speaks_of_the_first_ones() -> None:
    server = FakeServer(1)
    server.init(SLAB, "float32", [f4(1), f4(2, 3)], slab=True)
    server.init(SLAB, "float32", [f4(4)], slab=True, first_row=2)
    assert ask(server, 0, make_frame(Kind.PULL, 1, SLAB, 0, size=12))[2] == f4(1, 2, 3)
    assert ask(server, 0, make_frame(Kind.PULL, 2, SLAB, 0, size=16))[2] == f4(1, 2, 3, 4)


async def test_init_that_comes_again_changes_nothing() -> None:
    server = FakeServer(1)
    server.init(SLAB, "float32", [f4(1), f4(2)], slab=True)
    server.init(SLAB, "float32", [f4(9), f4(9), f4(3)], slab=True)
    server.init(CHUNK, "float32", [f4(5)], slab=False)
    server.init(CHUNK, "float32", [f4(6)], slab=False)
    assert ask(server, 0, make_frame(Kind.PULL, 1, SLAB, 0, size=12))[2] == f4(1, 2, 3)
    assert ask(server, 0, make_frame(Kind.PULL, 2, CHUNK, 0, size=4))[2] == f4(5)
    assert server.keeper.value_bytes == 16


async def test_assign_replaces_rows_and_chunks() -> None:
    server = FakeServer(1)
    server.init(SLAB, "float32", [f4(1), f4(2), f4(3)], slab=True)
    server.init(CHUNK, "float32", [f4(5)], slab=False)
    ask(server, 0, make_frame(Kind.ASSIGN, 1, SLAB, 0, f4(8, 9), rows=[0, 2]))
    ask(server, 0, make_frame(Kind.ASSIGN, 2, CHUNK, 0, f4(7)))
    assert ask(server, 0, make_frame(Kind.PULL, 3, SLAB, 0, size=12))[2] == f4(8, 2, 9)
    assert ask(server, 0, make_frame(Kind.PULL, 4, CHUNK, 0, size=4))[2] == f4(7)


async def test_assign_does_not_touch_the_bytes_of_an_answer_on_its_way() -> None:
    server = FakeServer(1)
    server.init(CHUNK, "float32", [f4(5)], slab=False)
    server.deliver(0, make_frame(Kind.PULL, 1, CHUNK, 0, size=4))
    server.deliver(0, make_frame(Kind.ASSIGN, 2, CHUNK, 0, f4(7)))
    assert answer(server, 0)[2] == f4(5)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (make_frame(Kind.PUSH, 5, 77, 1, f4(1)), UnknownKey),
        (make_frame(Kind.PULL, 5, 77, 0, size=4), UnknownKey),
        (make_frame(Kind.PUSH, 5, CHUNK, 1, f4(1, 2)), RemoteProtocolError),
        (make_frame(Kind.PULL, 5, CHUNK, 0, size=8), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, CHUNK, 1, f4(1), rows=[0]), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, CHUNK, 2, f4(1)), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, CHUNK, 1), RemoteProtocolError),
        (make_frame(Kind.PULL, 5, CHUNK, 1, f4(1)), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, SLAB, 1, f4(1), rows=[2]), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, SLAB, 1, f4(1, 1), rows=[1, 1]), RemoteProtocolError),
        (make_frame(Kind.PUSH, 5, SLAB, 1, f4(1, 1), rows=[1]), RemoteProtocolError),
        (make_frame(Kind.PULL, 5, SLAB, 0, size=5), RemoteProtocolError),
        (make_frame(Kind.INIT, 5, 9, 0, f4(1), table=messages.encode(
            UnitSpec("float32", False, 0, ["k"], [99]))), RemoteProtocolError),
        (make_frame(Kind.INIT, 5, 9, 0, f4(1), table=messages.encode(
            UnitSpec("complex64", False, 0, ["k"], [4]))), DtypeMismatch),
        (make_frame(Kind.INIT, 5, SLAB, 0, f4(1), table=messages.encode(
            UnitSpec("float32", True, 7, ["k"], [4]))), RemoteProtocolError),
        (make_frame(Kind.DATA, 5, CHUNK, 0), RemoteProtocolError),
    ],
)  # fmt: skip
async def test_bad_frame_is_answered_with_a_typed_error_and_the_store_goes_on(
    frame: Frame, kind: type[AsyncPSError]
) -> None:
    server = FakeServer(1)
    server.init(CHUNK, "float32", [f4(5)], slab=False)
    server.init(SLAB, "float32", [f4(1), f4(2)], slab=True)
    told, number, _, error = ask(server, 0, frame)
    assert (told, number) == (Kind.ERROR, 5)
    assert type(error) is kind
    assert ask(server, 0, make_frame(Kind.PUSHPULL, 6, CHUNK, 1, f4(3)))[2] == f4(3)
    assert ask(server, 0, make_frame(Kind.PUSHPULL, 7, SLAB, 1, f4(3, 4)))[2] == f4(3, 4)


async def test_mean_of_integers_is_refused() -> None:
    server = FakeServer(1, reduce="mean")
    spec = messages.encode(UnitSpec("int32", False, 0, ["k"], [4]))
    error = ask(server, 0, make_frame(Kind.INIT, 1, 9, 0, f4(1), table=spec))[3]
    assert isinstance(error, DtypeMismatch)
    assert error.key == "k"


async def test_mean_divides_by_the_contributors() -> None:
    server = FakeServer(2, reduce="mean")
    server.init(CHUNK, "float16", [np.zeros(1, "f2").tobytes()], slab=False)
    for rank in (0, 1):
        payload = np.full(1, 60000, "f2").tobytes()
        server.deliver(rank, make_frame(Kind.PUSHPULL, 1, CHUNK, 1, payload))
    assert np.frombuffer(answer(server, 0)[2], "f2")[0] == np.float16(60000)


async def test_same_version_of_hyper_parameters_must_hold_the_same_values() -> None:
    server = FakeServer(1, optimizer="test", hyper={"rescale_grad": 1.0})
    server.keeper.set_hyper(SetHyper(STORE, 1, {"rescale_grad": 2.0}))
    server.keeper.set_hyper(SetHyper(STORE, 1, {"rescale_grad": 2.0}))
    with pytest.raises(Disagreement):
        server.keeper.set_hyper(SetHyper(STORE, 1, {"rescale_grad": 3.0}))


async def test_round_uses_the_newest_hyper_parameters_of_its_contributors() -> None:
    server = FakeServer(2, optimizer="test", hyper={"rescale_grad": 1.0})
    server.init(CHUNK, "float32", [f4(0)], slab=False)
    server.keeper.set_hyper(SetHyper(STORE, 1, {"rescale_grad": 10.0}))
    server.deliver(0, make_frame(Kind.PUSHPULL, 1, CHUNK, 1, f4(1), hyper=1))
    server.deliver(1, make_frame(Kind.PUSHPULL, 1, CHUNK, 1, f4(1), hyper=0))
    assert answer(server, 0)[2] == f4(20)


async def test_round_that_was_open_when_the_optimizer_changed_is_applied() -> None:
    server = FakeServer(2, optimizer="test", hyper={"rescale_grad": 1.0})
    server.init(CHUNK, "float32", [f4(0)], slab=False)
    server.keeper.set_hyper(SetHyper(STORE, 1, {"rescale_grad": 10.0}))
    server.deliver(0, make_frame(Kind.PUSHPULL, 1, CHUNK, 1, f4(1), hyper=1))
    server.keeper.install(Install(STORE, server.config_words, "test", {"rescale_grad": 3.0}))
    server.deliver(1, make_frame(Kind.PUSHPULL, 1, CHUNK, 1, f4(1), hyper=0))
    assert answer(server, 0)[2] == f4(6)


async def test_missing_names_who_has_not_contributed() -> None:
    server = FakeServer(3)
    server.init(SLAB, "float32", [f4(0), f4(0)], slab=True)
    server.deliver(1, make_frame(Kind.PUSH, 1, SLAB, 1, f4(1, 1)))
    assert server.keeper.missing(Missing(STORE, SLAB, [], 1)).ranks == [0, 2]
    server.deliver(0, make_frame(Kind.PUSH, 1, SLAB, 1, f4(1), rows=[0]))
    assert server.keeper.missing(Missing(STORE, SLAB, [0], 1)).ranks == [2]
    assert server.keeper.missing(Missing(STORE, SLAB, [1], 1)).ranks == [0, 2]


async def test_failed_round_answers_everyone_and_the_next_push_goes_on() -> None:
    server = FakeServer(1, optimizer="sgd", hyper={
        "learning_rate": 1.0, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
        "clip_gradient": -1.0, "nesterov": False,
    })  # fmt: skip
    server.init(CHUNK, "int32", [np.int32(5).tobytes()], slab=False)
    one = np.int32(1).tobytes()
    for clock in (1, 2):
        told, _, _, error = ask(server, 0, make_frame(Kind.PUSHPULL, clock, CHUNK, clock, one))
        assert told == Kind.ERROR
        assert error is not None
        assert error.key == "key 0.0"
    # Word that the clock is applied is no value: the failed round does not matter to it.
    assert ask(server, 0, make_frame(Kind.WAIT, 3, CHUNK, 2, size=4))[0] == Kind.ACK
    server.keeper.install(Install(STORE, server.config_words, "test", {"rescale_grad": 1.0}))
    assert ask(server, 0, make_frame(Kind.PUSHPULL, 4, CHUNK, 3, one))[2] == np.int32(6).tobytes()


async def test_dropped_store_gives_its_memory_back_and_tells_whoever_waits() -> None:
    server = FakeServer(2)
    before = server.pool.keep_bytes
    server.init(CHUNK, "float32", [f4(0, 0)], slab=False)
    server.init(SLAB, "float32", [f4(0), f4(0)], slab=True)
    assert server.pool.keep_bytes == before + 16
    for number, (unit, rows) in enumerate([(CHUNK, None), (SLAB, None), (SLAB, [1])], 1):
        value = f4(1) if rows else f4(1, 1)
        clock = 2 if rows else 1
        server.deliver(0, make_frame(Kind.PUSHPULL, number, unit, clock, value, rows=rows))
    assert not server.answers(0)
    drop(server.keeper)
    told = [read_answer(frame) for frame in server.answers(0)]
    assert sorted(number for _, number, _, _ in told) == [1, 2, 3]
    assert all(isinstance(error, UnknownKey) for *_, error in told)
    assert not server.ports[0].parked
    assert server.pool.keep_bytes == before
    assert server.pool.free_bytes <= before
    assert not server.keeper.units
