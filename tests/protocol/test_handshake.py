"""Who is there: both sides prove the token, or neither goes on."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import HandshakeError
from asyncps.protocol.handshake import HELLO_BYTES, MAC_BYTES, Handshake, Hello, PeerHello

GOLDEN_HELLO = bytes.fromhex(
    "4153594e43505300 0100 0000 00000000 03 000000 03000000 09000000"
    "5e8c9902207afaeb7120430c585a445f21e92932081d64bc99f80e4925bcb002"
    "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)
GOLDEN_MAC = bytes.fromhex("a4500f2b68f8ef8769e5fad7d1f4eafc0b6a6a79cdca35363852cc92b361396f")
VERDICT_BYTES = 256


def worker(
    token: str = "token", job: str = "job", nonce: bytes | None = None, rank: int = 3
) -> Handshake:
    hello = Hello("worker", rank, 9, job, os.urandom(32) if nonce is None else nonce)
    return Handshake(hello, token, connector=True)


def server(token: str = "token", job: str = "job", nonce: bytes | None = None) -> Handshake:
    hello = Hello("server", 0, 5, job, os.urandom(32) if nonce is None else nonce)
    return Handshake(hello, token, connector=False)


def walk(connector: Handshake, acceptor: Handshake) -> None:
    """Carry bytes to and fro until both are done."""
    to_acceptor = connector.start()
    while to_acceptor:
        to_acceptor = connector.receive(acceptor.receive(to_acceptor))


def test_two_sides_of_one_job_know_each_other() -> None:
    connector, acceptor = worker(), server()
    walk(connector, acceptor)
    assert connector.done
    assert acceptor.done
    assert connector.peer == PeerHello("server", 0, 5)
    assert acceptor.peer == PeerHello("worker", 3, 9)


def test_an_empty_token_on_both_sides_works_and_a_rank_may_be_unknown() -> None:
    connector, acceptor = worker("", rank=-1), server("")
    walk(connector, acceptor)
    assert acceptor.peer == PeerHello("worker", -1, 9)


def test_handshake_has_its_golden_bytes() -> None:
    connector = worker(nonce=bytes(range(32)))
    acceptor = server(nonce=bytes(range(32, 64)))
    assert connector.start() == GOLDEN_HELLO
    answer = acceptor.receive(GOLDEN_HELLO)
    assert answer[HELLO_BYTES:] == GOLDEN_MAC
    assert len(GOLDEN_HELLO) == HELLO_BYTES
    assert len(answer) == HELLO_BYTES + MAC_BYTES


def test_wrong_token_is_noticed_by_both_sides() -> None:
    connector, acceptor = worker("one"), server("two")
    answer = acceptor.receive(connector.start())
    with pytest.raises(HandshakeError, match="wrong token"):
        connector.receive(answer)
    assert not connector.done
    with pytest.raises(HandshakeError, match="wrong token"):
        acceptor.receive(connector.refusal()[: acceptor.wanted])
    assert not acceptor.done


def test_connector_that_knows_no_token_is_refused_in_words() -> None:
    acceptor = server("secret")
    acceptor.receive(worker("guess").start())
    with pytest.raises(HandshakeError, match="wrong token"):
        acceptor.receive(bytes(MAC_BYTES))
    connector = worker("secret")
    honest = server("secret")
    connector.receive(honest.receive(connector.start()))
    with pytest.raises(HandshakeError, match="the peer refused us: wrong token"):
        connector.receive(acceptor.refusal())
    assert not connector.done


def test_other_job_is_noticed_by_both_sides() -> None:
    connector, acceptor = worker(job="one"), server(job="two")
    with pytest.raises(HandshakeError, match="another job"):
        acceptor.receive(connector.start())
    with pytest.raises(HandshakeError, match="another job"):
        connector.receive(acceptor.refusal())


def test_other_version_is_noticed_by_both_sides() -> None:
    connector, acceptor = worker(), server()
    hello = bytearray(connector.start())
    struct.pack_into("<H", hello, 8, 2)
    with pytest.raises(HandshakeError, match=r"another protocol version.*expected 1, got 2"):
        acceptor.receive(hello)
    old = bytearray(acceptor.refusal())
    struct.pack_into("<H", old, 8, 7)
    with pytest.raises(HandshakeError, match=r"another protocol version.*got 7"):
        connector.receive(old)


def test_unknown_role_is_refused() -> None:
    hello = bytearray(worker().start())
    hello[16] = 77
    with pytest.raises(HandshakeError, match="unknown role"):
        server().receive(hello)


@pytest.mark.parametrize("position", range(8, HELLO_BYTES))
def test_hello_changed_on_its_way_is_noticed(position: int) -> None:
    connector, acceptor = worker(), server()
    hello = bytearray(connector.start())
    hello[position] ^= 2
    try:
        answer = acceptor.receive(hello)
    except HandshakeError:
        return
    with pytest.raises(HandshakeError, match="wrong token"):
        connector.receive(answer)


@pytest.mark.parametrize("position", range(8, HELLO_BYTES + MAC_BYTES))
def test_answer_changed_on_its_way_is_noticed(position: int) -> None:
    connector, acceptor = worker(), server()
    answer = bytearray(acceptor.receive(connector.start()))
    answer[position] ^= 2
    with pytest.raises(HandshakeError):
        connector.receive(answer)


def test_what_an_acceptor_said_cannot_be_reflected_to_it() -> None:
    acceptor = server()
    answer = acceptor.receive(worker().start())
    with pytest.raises(HandshakeError, match="wrong token"):
        acceptor.receive(answer[HELLO_BYTES:])  # its own proof as the connector's


def test_own_hello_reflected_to_a_connector_proves_nothing() -> None:
    connector = worker()
    hello = connector.start()
    with pytest.raises(HandshakeError, match="wrong token"):
        connector.receive(hello + bytes(MAC_BYTES))


def test_reflection_through_a_second_connection_proves_nothing() -> None:
    # A node that listens and connects is made to answer its own challenge.
    connector, own_door = worker(), server()
    proof = connector.receive(own_door.receive(connector.start()))  # honest so far
    other_door = server()
    other_door.receive(worker().start())
    with pytest.raises(HandshakeError, match="wrong token"):
        other_door.receive(proof)


def test_recorded_connector_cannot_be_replayed() -> None:
    connector, acceptor = worker(), server()
    hello = connector.start()
    proof = connector.receive(acceptor.receive(hello))
    acceptor.receive(proof)
    assert acceptor.done
    again = server()
    again.receive(hello)
    with pytest.raises(HandshakeError, match="wrong token"):
        again.receive(proof)


def test_recorded_acceptor_cannot_be_replayed() -> None:
    recorded = server().receive(worker().start())
    connector = worker()
    connector.start()
    with pytest.raises(HandshakeError, match="wrong token"):
        connector.receive(recorded)


def test_proof_of_one_direction_is_none_of_the_other() -> None:
    nonce = bytes(32)
    answer = server(nonce=nonce).receive(worker(nonce=nonce).start())
    connector, acceptor = worker(nonce=nonce), server(nonce=nonce)
    proof = connector.receive(acceptor.receive(connector.start()))
    assert proof != answer[HELLO_BYTES:]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(8), b"\xff" * 8, b"ASYNCPS\1"])
def test_garbage_is_refused_by_its_first_eight_bytes_and_not_answered(data: bytes) -> None:
    acceptor = server()
    with pytest.raises(HandshakeError, match="no asyncps peer"):
        acceptor.receive(data[:8])
    assert acceptor.refusal() == b""
    assert acceptor.peer is None


@pytest.mark.parametrize("size", range(8))
def test_nothing_is_judged_before_the_magic_is_whole(size: int) -> None:
    acceptor = server()
    assert acceptor.receive(b"GET / HT"[:size]) == b""
    assert acceptor.wanted == HELLO_BYTES - size
    assert acceptor.refusal() == b""


def test_byte_by_byte_is_the_same() -> None:
    connector, acceptor = worker(), server()

    def drip(to: Handshake, data: bytes) -> bytes:
        answers = []
        for byte in data:
            before = to.wanted
            assert before > 0
            answers.append(to.receive(bytes([byte])))
        assert all(not answer for answer in answers[:-1])
        return answers[-1]

    proof = drip(connector, drip(acceptor, connector.start()))
    drip(connector, drip(acceptor, proof))
    assert connector.done
    assert acceptor.done


def test_no_message_is_longer_than_four_hundred_bytes() -> None:
    connector, acceptor = worker(), server()
    sizes = [HELLO_BYTES, len(acceptor.receive(connector.start()))]
    assert sizes == [HELLO_BYTES, HELLO_BYTES + MAC_BYTES]
    assert max(*sizes, VERDICT_BYTES, len(acceptor.refusal())) <= 400


def test_a_peer_is_believed_only_once_done() -> None:
    connector, acceptor = worker("one"), server("two")
    acceptor.receive(connector.start())
    assert not acceptor.done


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6), st.booleans())
def test_any_garbage_is_refused_or_waited_for(chunks: list[bytes], connector: bool) -> None:
    side = worker() if connector else server()
    side.start()
    try:
        for chunk in chunks:
            side.receive(chunk[: side.wanted])
    except HandshakeError:
        pass
    assert not side.done


@given(st.binary(max_size=VERDICT_BYTES - 2), st.integers(1, 65535))
def test_any_verdict_but_yes_is_a_refusal(text: bytes, code: int) -> None:
    connector, acceptor = worker(), server()
    connector.receive(acceptor.receive(connector.start()))
    with pytest.raises(HandshakeError, match="the peer refused us"):
        connector.receive(struct.pack("<H254s", code, text))
    assert not connector.done
