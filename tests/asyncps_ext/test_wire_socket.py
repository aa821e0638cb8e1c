"""Looking at a socket without sleeping, and how many bytes wake a loop: the kernel and its twin."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from asyncps_ext import reference, wire

BODIES = pytest.mark.parametrize("body", [wire, reference.wire], ids=["chosen", "reference"])

LONG_S = 8.0  # of a look or wait whose end is known to come

Pair = tuple[socket.socket, socket.socket]


def tcp_pair() -> Pair:
    """Two ends on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs


@pytest.fixture(params=[tcp_pair, socket.socketpair], ids=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Ours, which blocks, and the other end."""
    ours, theirs = request.param()
    with ours, theirs:
        yield ours, theirs


def arrived(sock: socket.socket) -> None:
    """Wait until something lies there."""
    assert select.select([sock], [], [], LONG_S)[0]


# ----------------------------------------------------------------------------------------- looking


@BODIES
@pytest.mark.parametrize("look_s", [0.0, LONG_S])
def test_what_lies_there_is_taken(body: ModuleType, pair: Pair, look_s: float) -> None:
    ours, theirs = pair
    theirs.sendall(b"12345678")
    arrived(ours)
    place = bytearray(b"-" * 10)
    assert body.look(ours.fileno(), place, look_s) == 8
    assert place == b"12345678--"
    place.clear()  # nobody holds it


@BODIES
def test_no_more_is_taken_than_there_is_place_for(body: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"12345678")
    arrived(ours)
    place = memoryview(bytearray(b"-" * 7))
    assert body.look(ours.fileno(), place[1:6], 0.0) == 5
    assert place.tobytes() == b"-12345-"
    assert body.look(ours.fileno(), place, 0.0) == 3
    assert place.tobytes() == b"678345-"


@BODIES
@pytest.mark.parametrize("blocking", [True, False])
def test_nothing_is_told_at_once_and_the_socket_stays_as_it_is(
    body: ModuleType, pair: Pair, blocking: bool
) -> None:
    ours, theirs = pair
    ours.setblocking(blocking)
    number, place = ours.fileno(), bytearray(b"-" * 4)
    for look_s in (0.0, 1e-6, -1.0):
        assert body.look(number, place, look_s) == -1
    assert place == b"----"
    assert ours.fileno() == number
    assert os.get_blocking(number) == blocking
    theirs.sendall(b"later")
    arrived(ours)
    assert ours.recv(10) == b"later"


@BODIES
def test_end_of_the_stream_is_zero_behind_what_came_before_it(
    body: ModuleType, pair: Pair
) -> None:
    ours, theirs = pair
    theirs.sendall(b"last")
    theirs.close()
    place = bytearray(10)
    assert body.look(ours.fileno(), place, LONG_S) == 4
    for _ in range(2):
        assert body.look(ours.fileno(), place, LONG_S) == 0
    assert place == b"last" + bytes(6)


@BODIES
def test_our_own_shutdown_is_the_end_of_the_stream(body: ModuleType, pair: Pair) -> None:
    ours, _ = pair
    ours.shutdown(socket.SHUT_RDWR)
    assert body.look(ours.fileno(), bytearray(4), LONG_S) == 0


@BODIES
def test_connection_that_was_reset_is_an_error_of_its_class(body: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    ours.sendall(b"nobody reads this")
    arrived(theirs)
    theirs.close()
    place = bytearray(4)
    with pytest.raises(ConnectionResetError) as caught:
        body.look(ours.fileno(), place, LONG_S)
    assert caught.value.errno == errno.ECONNRESET
    del caught
    place.clear()  # nobody holds it


@BODIES
def test_number_of_a_closed_socket_is_an_error(body: ModuleType, pair: Pair) -> None:
    ours, _ = pair
    number = ours.fileno()
    ours.close()
    for bad in (number, -1):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
            body.look(bad, bytearray(4), 0.0)
        assert caught.value.errno == errno.EBADF
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            body.wake_at(bad, 1)


@BODIES
def test_number_of_what_is_no_socket_is_an_error(body: ModuleType) -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match=os.strerror(errno.ENOTSOCK)):
            body.look(read, bytearray(4), 0.0)
        with pytest.raises(OSError, match=os.strerror(errno.ENOTSOCK)):
            body.wake_at(read, 1)
    finally:
        os.close(read)
        os.close(write)


@BODIES
def test_place_must_be_writable_and_contiguous(body: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    theirs.sendall(b"kept")
    arrived(ours)
    fixed = np.zeros(16, np.uint8)
    fixed.flags.writeable = False
    for place in (bytes(16), fixed, memoryview(bytes(16))):
        with pytest.raises(ValueError, match="read-only"):
            body.look(ours.fileno(), place, 0.0)
    with pytest.raises(ValueError, match="contiguous"):
        body.look(ours.fileno(), memoryview(bytearray(16))[::2], 0.0)
    unfit: Any = "text"
    with pytest.raises(TypeError):
        body.look(ours.fileno(), unfit, 0.0)
    place = np.zeros((2, 4), np.uint16)
    assert body.look(ours.fileno(), place, 0.0) == 4
    assert place.tobytes() == b"kept" + bytes(12)


@BODIES
def test_what_another_thread_sends_meanwhile_is_taken(body: ModuleType, pair: Pair) -> None:
    ours, theirs = pair
    turns, go = 50, threading.Semaphore(0)

    def send() -> None:
        for turn in range(turns):
            go.acquire()  # which leaves the interpreter to the looking thread
            theirs.sendall(bytes([turn]))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        place = bytearray(1)
        for turn in range(turns):
            go.release()
            assert body.look(ours.fileno(), place, LONG_S) == 1
            assert place[0] == turn
    finally:
        go.release(turns)
        thread.join()


@BODIES
def test_end_that_another_thread_makes_meanwhile_is_seen(body: ModuleType, pair: Pair) -> None:
    ours, _ = pair
    go = threading.Semaphore(0)

    def end() -> None:
        go.acquire()
        ours.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=end)
    thread.start()
    go.release()
    assert body.look(ours.fileno(), bytearray(1), LONG_S) == 0
    thread.join()


# ------------------------------------------------------------------------------------------ waking


@BODIES
def test_socket_says_how_many_bytes_wake_whoever_waits(body: ModuleType, pair: Pair) -> None:
    ours, theirs = pair

    def told(sock: socket.socket) -> int:
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    assert told(ours) == 1
    for count in (4096, 1 << 20, 2, 1):
        assert body.wake_at(ours.fileno(), count) is None
        assert told(ours) == count
        assert told(theirs) == 1


@BODIES
def test_waiting_ends_with_so_many_bytes_or_when_no_more_can_come(body: ModuleType) -> None:
    ours, theirs = tcp_pair()
    with ours, theirs:
        body.wake_at(ours.fileno(), 8)
        theirs.sendall(b"1234567")
        assert select.select([ours], [], [], 0)[0] == []
        theirs.sendall(b"8")
        arrived(ours)
        assert ours.recv(100) == b"12345678"
        theirs.sendall(b"1234567")
        body.wake_at(ours.fileno(), 1)
        arrived(ours)
        assert ours.recv(100) == b"1234567"
        body.wake_at(ours.fileno(), 8)
        theirs.sendall(b"end")
        theirs.close()
        arrived(ours)
        assert ours.recv(100) == b"end"
