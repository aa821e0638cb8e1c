"""Control messages: they come back as they were, garbage is refused, errors keep their class."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps import errors
from asyncps.errors import AsyncPSError, RemoteProtocolError, class_of_code
from asyncps.protocol import messages as m
from tests.protocol.streams import ALL_MESSAGES, MESSAGES, values_of

ERRORS = [
    value for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, AsyncPSError)
]

GOLDEN = [
    (m.Join("worker", None, 0, "", 0, "node7", 4711, "m7", 8),
     "9a 01 a6776f726b6572 c0 00 a0 00 a56e6f646537 cd1267 a26d37 08"),
    (m.Joined(3, 9, 8, 2), "95 02 03 09 08 02"),
    (m.Members([m.Member("server", 0, 5, "10.0.0.1", 9092, "n", 1, "m7")]),
     "92 03 91 98 a6736572766572 00 05 a831302e302e302e31 cd2384 a16e 01 a26d37"),
    (m.Barrier(1), "92 1e 01"),
    (m.SetCompression(1, "w*", {"type": "f16"}, True),
     "95 22 01 a2772a 81 a474797065 a3663136 c3"),
    (m.Done(), "91 28"),
    (m.ErrorInfo(61, "shape", key="w", rank=2, host="h", expected="(3,)", got="(4,)"),
     "98 29 3d a57368617065 a177 02 a168 a428332c29 a428342c29"),
    (m.UnitSpec("f4", True, 2, ["a", 5], [4, 8]), "96 32 a26634 c3 02 92 a161 05 92 04 08"),
]


@pytest.mark.parametrize("kind", ALL_MESSAGES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_message_comes_back(kind: type[m.Message], data: st.DataObject) -> None:
    message = data.draw(values_of(kind))
    assert m.decode(m.encode(message)) == message


@given(MESSAGES)
def test_message_is_read_from_any_buffer(message: m.Message) -> None:
    data = m.encode(message)
    assert m.decode(memoryview(bytearray(data))) == m.decode(bytearray(data)) == message


@pytest.mark.parametrize(("message", "golden"), GOLDEN, ids=lambda v: type(v).__name__)
def test_message_has_its_golden_bytes(message: m.Message, golden: str) -> None:
    assert m.encode(message) == bytes.fromhex(golden)
    assert m.decode(bytes.fromhex(golden)) == message


def test_tags_are_unique_and_every_message_is_decoded() -> None:
    tags = [kind.__struct_config__.tag for kind in ALL_MESSAGES]
    assert len(set(tags)) == len(tags)
    declared = {
        value for value in vars(m).values()
        if inspect.isclass(value) and issubclass(value, m.Message) and value is not m.Message
    }
    assert declared == set(ALL_MESSAGES)


@given(st.binary(max_size=200))
def test_garbage_is_a_message_or_an_error_of_the_peer(data: bytes) -> None:
    try:
        m.decode(data)
    except RemoteProtocolError:
        pass


@given(MESSAGES, st.data())
def test_broken_message_is_a_message_or_an_error_of_the_peer(
    message: m.Message, data: st.DataObject
) -> None:
    broken = bytearray(m.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(broken)))
    try:
        m.decode(broken[:end])
    except RemoteProtocolError:
        pass


def hyper(value: bytes) -> bytes:
    """A SetOptimizer whose only hyper-parameter is this msgpack value."""
    return b"\x94\x1f\x01\xa1x\x81\xa1a" + value


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x91\x28x", b"\x91\xcc\xff", b"\x90", b"\x80", b"\x91\x1e",
        hyper(b"\x91" * 100_000), hyper(b"\x81\xa1a" * 100_000), hyper(b"\x81\x80\x01"),
        hyper(b"\xdd\xff\xff\xff\xff"), hyper(b"\xdf\xff\xff\xff\xff"),
        hyper(b"\xc6\xff\xff\xff\xff"), hyper(b"\xc7\x0c\xff" + b"\xff" * 12),
        hyper(b"\xa1\xff"), b"\x92\x3d\xdd\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff\x28",
    ],
    ids=[
        "nothing", "never used", "more behind it", "unknown tag", "no tag", "a map",
        "a field missing", "deep lists", "deep maps", "a map as key", "a list of 2**32",
        "a map of 2**32", "bytes of 2**32", "a time that never was", "no UTF-8",
        "a typed list of 2**32", "a message of 2**32 fields",
    ],
)
def test_known_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not a control message"):
        m.decode(data)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_error_keeps_class_and_details_across_the_wire(kind: type[AsyncPSError]) -> None:
    error = kind("it broke", key="w", rank=3, expected=(1, 2), got=[7])
    info = m.decode(m.encode(m.error_to_wire(error, "node7")))
    assert isinstance(info, m.ErrorInfo)
    found = m.error_from_wire(info)
    assert type(found) is kind
    details: dict[str, Any] = {
        "message": "it broke", "key": "w", "rank": 3, "host": "node7", "expected": "(1, 2)",
        "got": "[7]",
    }
    assert {name: getattr(found, name) for name in details} == details
    assert str(found) == "it broke (key 'w', rank 3, expected (1, 2), got [7]) [from node7]"


@given(
    st.sampled_from(ERRORS), st.text(max_size=30),
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9),
    st.none() | st.integers(0, 4096), st.none() | st.text(max_size=9),
)
def test_any_error_comes_back(
    kind: type[AsyncPSError], text: str, key: str | int | None, rank: int | None, host: str | None
) -> None:
    error = kind(text, key=key, rank=rank, host=host)
    info = m.decode(m.encode(m.error_to_wire(error)))
    assert isinstance(info, m.ErrorInfo)
    found = m.error_from_wire(info)
    assert (type(found), found.message, found.key, found.rank) == (kind, text, key, rank)
    assert str(found) == str(error)


def test_host_that_an_error_already_names_is_kept() -> None:
    error = AsyncPSError("x", host="first")
    assert m.error_to_wire(error, "second").host == "first"


def test_codes_of_errors_are_unique_and_told_by_each_class_itself() -> None:
    codes = [kind.__dict__["code"] for kind in ERRORS]
    assert len(set(codes)) == len(codes)
    assert [class_of_code(code) for code in codes] == ERRORS


def test_code_from_the_future_becomes_the_root() -> None:
    found = m.error_from_wire(m.ErrorInfo(65_000, "new"))
    assert type(found) is AsyncPSError
    assert found.message == "new"

