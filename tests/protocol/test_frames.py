"""The layout of a header and its limits."""

from __future__ import annotations

import pytest
from hypothesis import given

from asyncps.protocol.frames import (
    HEADER_SIZE,
    MAX_PAYLOAD_BYTES,
    MAX_TABLE_BYTES,
    Flag,
    Header,
    Kind,
)
from asyncps_ext import wire
from tests.protocol.streams import Frame, frames, raw_header

GOLDEN = Header(Kind.PUSH, Flag.ROWS, 7, 2, 2**40 + 1, 9, -7, 2**33, 1000, 2**20 + 5, 2**35, 4)
GOLDEN_BYTES = bytes.fromhex(
    "41505331 01 0c 0100 07000000 02000000 0100000000010000 09000000 f9ffffff"
    "0000000002000000 e803000000000000 0500100000000000 0000000008000000 04000000 32760f4c"
)


def test_header_has_its_golden_bytes() -> None:
    assert wire.pack_header(*GOLDEN) == GOLDEN_BYTES
    assert Header._make(wire.parse_header(GOLDEN_BYTES)) == GOLDEN
    assert len(GOLDEN_BYTES) == HEADER_SIZE == 72


@given(frames())
def test_any_header_comes_back(frame: Frame) -> None:
    assert Header._make(wire.parse_header(frame.data)) == frame.header


def test_published_layout_and_kernel_agree() -> None:
    data = raw_header(table_bytes=3, payload_bytes=5)
    assert wire.parse_header(data)[8:10] == (3, 5)


def test_kinds_and_flags_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        "CONTROL": 1, "HEARTBEAT": 2, "INIT": 10, "ASSIGN": 11, "PUSH": 12, "PULL": 13,
        "PUSHPULL": 14, "WAIT": 15, "REFUSE": 16, "RESTORE": 17, "ACK": 20, "DATA": 21,
        "ERROR": 22, "COLLECT": 30, "PART": 31, "COUNT": 32, "JOINED": 33, "PARTED": 34,
        "FAILED": 35,
    }
    assert Flag.ROWS == 1


def test_limits_hold_a_chunk_and_a_placement() -> None:
    assert MAX_PAYLOAD_BYTES == 2**30  # the largest chunk_bytes that the settings allow
    assert MAX_TABLE_BYTES == 2**26


@pytest.mark.parametrize("position", range(HEADER_SIZE))
def test_one_wrong_bit_anywhere_is_noticed(position: int) -> None:
    for bit in range(8):
        wrong = bytearray(GOLDEN_BYTES)
        wrong[position] ^= 1 << bit
        with pytest.raises(ValueError, match=r"magic|version|crc"):
            wire.parse_header(wrong)
