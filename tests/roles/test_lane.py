"""Lanes against a hand-made server: what they read, what they skip, when they are given up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from asyncps.errors import RemoteProtocolError, UnknownKey
from asyncps.protocol import messages
from asyncps.protocol.frames import HEADER_SIZE, Kind
from asyncps.protocol.handshake import LANE, Hello, PeerHello
from asyncps.roles import lane as module
from asyncps.roles.lane import LANE_BYTES, LANE_NUMBERS, Lanes
from asyncps.transport.blocking import close_quietly, open_socket, send_parts, wait_at_most
from tests.roles.lanes import TOKEN, Door, Pair, error_frame, fake_node, frame, welcome


@pytest.fixture(params=[0.0, 0.0003], ids=["sleeps", "looks"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A lane that waits long."""
    made = Pair(poll_s=request.param)
    yield made
    made.close()


@pytest.fixture
def hasty() -> Iterator[Pair]:
    """A lane that does not wait."""
    made = Pair(patience_s=0.001)
    yield made
    made.close()


# ---- answers ------------------------------------------------------------------------------------


def test_request_goes_out_whole_and_the_answers_payload_comes_back(pair: Pair) -> None:
    pair.server.sendall(frame(Kind.DATA, 7, b"12345678"))
    assert pair.exchange(8, b"head", b"table", b"value") == b"12345678"
    assert pair.server.recv(100) == b"headtablevalue"
    assert not pair.dropped


@pytest.mark.parametrize("cut", [1, 8, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 1])
def test_answer_may_come_in_pieces(pair: Pair, cut: int) -> None:
    answer = frame(Kind.DATA, 7, b"12345678")
    pair.server.sendall(answer[:cut])

    def rest() -> None:
        pair.server.recv(100)  # once the request is there
        pair.server.sendall(answer[cut:])

    thread = threading.Thread(target=rest)
    thread.start()
    assert pair.exchange(8) == b"12345678"
    thread.join()


def test_largest_answers_pass_one_after_the_other(pair: Pair) -> None:
    for number in range(1, 9):
        value = bytes([number]) * LANE_BYTES
        thread = threading.Thread(target=pair.server.sendall,
                                  args=(frame(Kind.DATA, number, value),))
        thread.start()
        assert pair.exchange(LANE_BYTES, number=number) == value
        thread.join()


def test_late_answers_are_read_past(pair: Pair) -> None:
    late = [frame(Kind.DATA, 1, b"x" * 30_000), error_frame(2), frame(Kind.ACK, 3),
            frame(Kind.DATA, 4, b"87654321")]
    pair.server.sendall(b"".join(late) + frame(Kind.DATA, 7, b"12345678"))
    assert pair.exchange(8) == b"12345678"
    assert not pair.dropped


def test_answer_that_stays_away_leaves_the_lane_open_and_is_skipped_next_time(
    hasty: Pair,
) -> None:
    assert hasty.exchange(8, number=1) is None
    assert not hasty.dropped
    hasty.server.sendall(frame(Kind.DATA, 1, b"too late"))
    hasty.server.sendall(frame(Kind.DATA, 2, b"in time!"))
    assert hasty.exchange(8, number=2) == b"in time!"


def test_half_an_answer_is_kept_for_the_next_time(hasty: Pair) -> None:
    late = frame(Kind.DATA, 1, b"too late")
    hasty.server.sendall(late[:75])
    assert hasty.exchange(8, number=1) is None
    hasty.server.sendall(late[75:] + frame(Kind.DATA, 2, b"in time!"))
    assert hasty.exchange(8, number=2) == b"in time!"


def test_servers_error_is_raised_and_the_lane_stays(pair: Pair) -> None:
    pair.server.sendall(error_frame(7))
    with pytest.raises(UnknownKey, match="nobody made it") as caught:
        pair.exchange(8)
    assert (caught.value.key, caught.value.host) == ("w", "far")
    pair.server.sendall(frame(Kind.DATA, 8, b"12345678"))
    assert pair.exchange(8, number=8) == b"12345678"


# ---- lanes that are given up --------------------------------------------------------------------


@pytest.mark.parametrize("answer", [
    frame(Kind.DATA, 7, b"of another size"), frame(Kind.ACK, 7), b"no header at all" * 10,
    frame(Kind.DATA, 7, b"x" * (LANE_BYTES + 1)), frame(Kind.DATA, 6, b"x" * (LANE_BYTES + 1)),
    frame(Kind.ERROR, 7, table=messages.encode(messages.Done())), frame(Kind.DATA, 7, b"1")[:-1],
], ids=["size", "kind", "garbage", "long", "long and late", "no error", "cut"])  # fmt: skip
def test_bad_answer_or_the_end_drops_the_lane(pair: Pair, answer: bytes) -> None:
    def serve() -> None:
        pair.server.recv(100)
        with contextlib.suppress(OSError):  # the lane may have gone before it has read all
            pair.server.sendall(answer)
            pair.server.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=serve)
    thread.start()
    assert pair.exchange(8) is None
    thread.join()
    assert pair.dropped
    assert pair.exchange(8) is None  # the loop must do it
    assert not pair.lanes.ready(0)  # not at once


def test_lane_that_was_closed_by_the_server_is_dropped(pair: Pair) -> None:
    pair.server.close()
    assert pair.exchange(8) is None
    assert pair.dropped


def test_lane_that_takes_no_more_bytes_is_dropped_and_blocks_nobody(pair: Pair) -> None:
    wait_at_most(pair.lane.sock, 0.001, 0.01)
    request, rounds = bytes(LANE_BYTES), 0
    while not pair.dropped:
        assert pair.exchange(8, request, number=rounds) is None
        rounds += 1
        assert rounds < 1000


@pytest.mark.parametrize("moment", ["send_parts", "receive"])
def test_ctrl_c_in_the_middle_of_a_frame_drops_the_lane(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module if moment == "send_parts" else pair.lane.__class__, moment,
                        interrupted)
    with pytest.raises(KeyboardInterrupt):
        pair.exchange(8)
    assert pair.dropped


def test_closed_lanes_stay_closed(pair: Pair) -> None:
    assert pair.lanes.sockets() == [pair.lane.sock]
    pair.lanes.close()
    assert pair.dropped
    assert pair.lanes.sockets() == []
    assert not pair.lanes.ready(0)
    assert pair.exchange(8) is None


def test_requests_have_numbers_of_their_own(pair: Pair) -> None:
    numbers = [pair.lanes.number() for _ in range(5)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] > LANE_NUMBERS


# ---- opening ------------------------------------------------------------------------------------


def test_lane_is_opened_once_and_says_what_it_is() -> None:
    peers = []
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        peers.append(welcome(sock))
        assert over.wait(5.0)

    with Door(serve) as door:
        lanes = Lanes(fake_node(door.port, rank=3))
        assert lanes.ready(0)
        assert lanes.ready(0)
        (sock,) = lanes.sockets()
        over.set()
        lanes.close()
        assert sock.fileno() == -1
    assert peers == [PeerHello("worker", 3, 5, LANE)]


@pytest.mark.parametrize("behave", [
    lambda sock: None, lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 9),
    lambda sock: sock.sendall(b"ASYNC"), lambda sock: [sock.recv(92), sock.sendall(bytes(124))],
], ids=["closes", "no asyncps", "half", "nonsense"])  # fmt: skip
def test_lane_that_is_refused_is_not_tried_again_at_once(
    behave: Callable[[socket.socket], None]
) -> None:
    with Door(behave) as door:
        lanes = Lanes(fake_node(door.port))
        assert not lanes.ready(0)
        assert lanes.sockets() == []
    assert not lanes.ready(0)  # the door is gone: it would not even be refused


def test_lane_to_nobody_and_after_its_pause_to_somebody() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        lanes = Lanes(fake_node(unheard.getsockname()[1]))
        assert not lanes.ready(0)
    over = threading.Event()

    def serve(sock: socket.socket) -> None:
        welcome(sock)
        assert over.wait(5.0)

    with Door(serve) as door:
        lanes._node.members = fake_node(door.port).members
        assert not lanes.ready(0)
        lanes._closed_until[0] = 0.0
        assert lanes.ready(0)
        over.set()
        lanes.close()


def test_lane_that_opens_while_all_are_closed_is_closed_too() -> None:
    lanes: Lanes

    def serve(sock: socket.socket) -> None:
        sock.recv(92, socket.MSG_PEEK)
        lanes.close()
        welcome(sock)
        sock.recv(1)

    with Door(serve) as door:
        lanes = Lanes(fake_node(door.port))
        assert not lanes.ready(0)
        assert lanes.sockets() == []


def test_socket_that_proves_nothing_in_time_is_closed() -> None:
    over = threading.Event()
    with Door(lambda _: over.wait(5.0) and None) as door:
        with pytest.raises(TimeoutError):
            open_socket("127.0.0.1", door.port, Hello("worker", 0, 1, "j", b""), TOKEN, 0.05)
        over.set()


# ---- blocking sockets ---------------------------------------------------------------------------


def test_receive_and_send_end_by_themselves() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wait_at_most(ours, 0.002, 0.002)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
        with pytest.raises(BlockingIOError):
            send_parts(ours, [bytes(8 << 20)], 8 << 20)


def test_parts_go_out_in_order_however_the_system_cuts_them() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wait_at_most(ours, 5.0, 5.0)
        parts = [b"a" * 72, memoryview(b"b" * 300_000), b"c" * 500_000]
        size = sum(map(len, parts))
        got = bytearray()

        def read() -> None:
            while len(got) < size:
                got.extend(theirs.recv(1 << 16))

        thread = threading.Thread(target=read)
        thread.start()
        send_parts(ours, parts, size)
        thread.join()
        assert got == b"".join(parts)


def test_closing_quietly_is_quiet() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    close_quietly(ours)
    close_quietly(ours)


def test_broken_answer_is_a_protocol_error_inside(pair: Pair) -> None:
    pair.server.sendall(b"x" * 80)
    with pytest.raises(RemoteProtocolError, match="not a frame"):
        pair.lane.receive(pair.lane.bet.expect())
