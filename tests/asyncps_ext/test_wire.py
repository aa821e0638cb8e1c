"""Headers, checksums and rows, every variant of them, against golden bytes and the twins."""

from __future__ import annotations

import inspect
import struct
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps_ext import reference, wire
from tests.asyncps_ext.arrays import each_variant, unaligned

BODIES = pytest.mark.parametrize("body", [wire, reference.wire], ids=["chosen", "reference"])

# Field: smallest and largest value, in the order of pack_header.
FIELDS = {
    "kind": (0, 2**8 - 1),
    "flags": (0, 2**16 - 1),
    "incarnation": (0, 2**32 - 1),
    "store": (0, 2**32 - 1),
    "request": (0, 2**64 - 1),
    "unit": (0, 2**32 - 1),
    "priority": (-(2**31), 2**31 - 1),
    "clock": (0, 2**64 - 1),
    "table_bytes": (0, 2**64 - 1),
    "payload_bytes": (0, 2**64 - 1),
    "acked": (0, 2**64 - 1),
    "hyper": (0, 2**32 - 1),
}
HEADERS = st.tuples(*(st.integers(low, high) for low, high in FIELDS.values()))
VALUES = (1, 2, 3, 4, 5, 6, -7, 8, 9, 10, 11, 12)
GOLDEN = bytes.fromhex(
    "41505331 01 01 0200 03000000 04000000 0500000000000000 06000000 f9ffffff 0800000000000000"
    "0900000000000000 0a00000000000000 0b00000000000000 0c000000 d037d8a7"
)
F32 = np.dtype(np.float32)
BF16 = np.dtype(ml_dtypes.bfloat16)


variant = each_variant(wire)


# ----------------------------------------------------------------------------------------- headers


@BODIES
def test_a_header_has_these_bytes(body: ModuleType) -> None:
    assert body.HEADER_SIZE == len(GOLDEN) == 72
    assert body.pack_header(*VALUES) == GOLDEN
    assert body.parse_header(GOLDEN) == VALUES


@given(HEADERS)
def test_a_header_comes_back_as_it_was_packed(values: tuple[int, ...]) -> None:
    packed = wire.pack_header(*values)
    assert packed == reference.pack_header(*values)
    assert wire.parse_header(packed) == reference.parse_header(packed) == values


@BODIES
@pytest.mark.parametrize("end", [0, 1], ids=["least", "greatest"])
def test_every_field_takes_its_extremes_and_nothing_beyond(body: ModuleType, end: int) -> None:
    extremes = [limits[end] for limits in FIELDS.values()]
    assert body.parse_header(body.pack_header(*extremes)) == tuple(extremes)
    for i in range(len(extremes)):
        beyond = list(VALUES)
        beyond[i] = extremes[i] + (1 if end else -1)
        with pytest.raises(OverflowError):
            body.pack_header(*beyond)


@BODIES
@pytest.mark.parametrize("value", [1.5, "1", None, b"1"])
def test_fields_must_be_integers(body: ModuleType, value: object) -> None:
    for i in range(len(VALUES)):
        with pytest.raises(TypeError):
            body.pack_header(*VALUES[:i], value, *VALUES[i + 1 :])


@BODIES
def test_fields_can_be_given_by_name(body: ModuleType) -> None:
    assert body.pack_header(**dict(zip(FIELDS, VALUES, strict=True))) == GOLDEN


@BODIES
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.array])
def test_a_header_is_parsed_in_any_buffer_at_any_offset(body: ModuleType, kind: Any) -> None:
    for offset in (0, 1, 5, 64):
        around = bytes(offset) + GOLDEN + b"tail"
        buffer = np.frombuffer(around, np.uint8) if kind is np.array else kind(around)
        assert body.parse_header(buffer, offset) == VALUES


@BODIES
def test_a_short_buffer_is_told(body: ModuleType) -> None:
    for size in range(72):
        with pytest.raises(ValueError, match=r"^short"):
            body.parse_header(GOLDEN[:size])
    with pytest.raises(ValueError, match=r"^short"):
        body.parse_header(GOLDEN, 1)
    with pytest.raises(ValueError, match=r"^short"):
        body.parse_header(GOLDEN, -1)
    with pytest.raises(ValueError, match=r"^short"):
        body.parse_header(GOLDEN, 2**63 - 1)


@BODIES
def test_each_wrong_bit_of_a_header_is_told(body: ModuleType) -> None:
    for bit in range(8 * 72):
        broken = bytearray(GOLDEN)
        broken[bit // 8] ^= 1 << bit % 8
        text = "magic" if bit < 32 else "version" if bit < 40 else "crc"
        with pytest.raises(ValueError, match=f"^{text}"):
            body.parse_header(broken)


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_garbage_is_a_value_error(garbage: bytes, offset: int) -> None:
    for body in (wire, reference.wire):
        with pytest.raises(ValueError, match=r"^(short|magic)"):
            body.parse_header(garbage, offset)


@given(st.binary(min_size=72, max_size=72))
def test_garbage_with_a_true_checksum_but_another_version_is_a_value_error(garbage: bytes) -> None:
    body = GOLDEN[:4] + b"\x02" + garbage[5:68]
    with pytest.raises(ValueError, match=r"^version"):
        wire.parse_header(body + struct.pack("<I", wire.crc32c(body)))


# --------------------------------------------------------------------------------------- checksums


@BODIES
def test_crc32c_of_known_texts(body: ModuleType) -> None:
    # The check value of the CRC catalogue; then RFC 3720, B.4.
    assert body.crc32c(b"123456789") == 0xE3069283
    assert body.crc32c(b"") == 0
    assert body.crc32c(bytes(32)) == 0x8A9136AA
    assert body.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert body.crc32c(bytes(range(32))) == 0x46DD794E
    assert body.crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C


@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_crc32c_agrees_with_its_twin(data: bytes, seed: int) -> None:
    assert wire.crc32c(data, seed) == reference.crc32c(data, seed)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_crc32c_goes_on_where_it_stopped(first: bytes, second: bytes) -> None:
    assert wire.crc32c(second, wire.crc32c(first)) == wire.crc32c(first + second)


def test_crc32c_of_a_large_buffer_at_an_odd_address() -> None:
    data = np.random.default_rng(1).integers(0, 256, 70_001, dtype=np.uint8)
    assert wire.crc32c(unaligned(data)) == reference.crc32c(data)
    assert wire.crc32c(data.reshape(70_001, 1)) == reference.crc32c(data)


@BODIES
@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_has_32_bits(body: ModuleType, seed: int) -> None:
    with pytest.raises(OverflowError):
        body.crc32c(b"", seed)


@BODIES
def test_a_seed_is_an_integer(body: ModuleType) -> None:
    with pytest.raises(TypeError):
        body.crc32c(b"", 1.5)


@BODIES
def test_buffers_must_be_contiguous(body: ModuleType) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        body.crc32c(memoryview(bytes(8))[::2])
    with pytest.raises(ValueError, match="contiguous"):
        body.crc32c(np.zeros(8, np.uint8)[::2])
    with pytest.raises(TypeError):
        body.crc32c("text")


# -------------------------------------------------------------------------------------------- rows

SHAPES: list[tuple[int, ...]] = [(3,), (), (2, 5), (0,), (1, 1, 4), (7, 0, 2)]


def rows(dtype: np.dtype[Any], shapes: list[tuple[int, ...]] = SHAPES) -> list[Any]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, 100, shape).astype(dtype) for shape in shapes]


@BODIES
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "u1", "i4", "i8", "?", "c16", "bf16"])
@pytest.mark.parametrize("copies", [1, 200])
def test_rows_are_gathered_one_behind_the_other_and_scattered_again(
    body: ModuleType, dtype: str, copies: int
) -> None:
    kind = BF16 if dtype == "bf16" else np.dtype(dtype)
    shapes = SHAPES * copies
    values = rows(kind, shapes)
    expected = b"".join(value.tobytes() for value in values)
    out = np.empty(len(expected) + 1, np.uint8)[1:]
    assert body.gather_rows(values, kind, shapes, out) == -1
    assert out.tobytes() == expected
    back = [np.zeros_like(value) for value in values]
    assert body.scatter_rows(expected, kind, tuple(shapes), tuple(back)) == -1
    assert all(np.array_equal(a, b) for a, b in zip(values, back, strict=True))


@BODIES
def test_rows_larger_than_what_is_copied_under_the_gil(body: ModuleType) -> None:
    values = rows(F32, [(100, 200), (1,), (30_001,)])
    shapes = [value.shape for value in values]
    out = np.empty(4 * sum(value.size for value in values), np.uint8)
    assert body.gather_rows(values, F32, shapes, out) == -1
    back = [np.zeros_like(value) for value in values]
    assert body.scatter_rows(out, F32, shapes, back) == -1
    assert all(np.array_equal(a, b) for a, b in zip(values, back, strict=True))


@BODIES
def test_no_rows_at_all(body: ModuleType) -> None:
    assert body.gather_rows([], F32, [], np.empty(0, np.uint8)) == -1
    assert body.scatter_rows(b"", F32, [], []) == -1


class Subclass(np.ndarray[Any, Any]):
    """Stands for arrays that may behave in ways of their own."""


UNACCEPTABLE: dict[str, Any] = {
    "dtype": np.zeros((2, 3), np.float64),
    "bits": np.zeros((2, 3), np.int32),
    "foreign byte order": np.zeros((2, 3), F32.newbyteorder()),
    "shape": np.zeros((3, 2), F32),
    "more dimensions": np.zeros((2, 3, 1), F32),
    "fewer dimensions": np.zeros(6, F32),
    "strides": np.zeros((3, 2), F32).T,
    "steps": np.zeros((2, 6), F32)[:, ::2],
    "subclass": np.zeros((2, 3), F32).view(Subclass),
    "list": [[0, 0, 0], [0, 0, 0]],
    "scalar": np.float32(1),
    "none": None,
}


@BODIES
@pytest.mark.parametrize("what", UNACCEPTABLE)
def test_the_first_value_that_is_not_acceptable_is_named(body: ModuleType, what: str) -> None:
    good = np.ones((2, 3), F32)
    values, shapes = [good, good.copy(), UNACCEPTABLE[what], None], [(2, 3)] * 4
    buffer = np.zeros(4 * 24, np.uint8)
    assert body.gather_rows(values, F32, shapes, buffer) == 2
    assert body.scatter_rows(buffer, F32, shapes, values) == 2
    assert good.sum() == 6, "nothing is scattered unless all can be"


@BODIES
def test_bfloat16_and_integers_of_its_size_are_not_mixed_up(body: ModuleType) -> None:
    out = np.empty(8, np.uint8)
    assert body.gather_rows([np.zeros(4, np.uint16)], BF16, [(4,)], out) == 0
    assert body.gather_rows([np.zeros(4, BF16)], np.dtype(np.uint16), [(4,)], out) == 0
    assert body.gather_rows([np.zeros(4, BF16)], np.dtype(np.float16), [(4,)], out) == 0


@BODIES
def test_both_names_that_c_has_for_an_integer_are_one_dtype(body: ModuleType) -> None:
    values = [np.ones(2, np.longlong), np.ones(2, np.int_)]
    out = np.empty(32, np.uint8)
    assert body.gather_rows(values, np.dtype(np.int64), [(2,), (2,)], out) == -1


@BODIES
def test_read_only_arrays_are_gathered_but_not_scattered_into(body: ModuleType) -> None:
    value = np.ones(3, F32)
    value.flags.writeable = False
    buffer = np.zeros(12, np.uint8)
    assert body.gather_rows([value], F32, [(3,)], buffer) == -1
    assert body.scatter_rows(buffer, F32, [(3,)], [value]) == 0


@BODIES
def test_unaligned_rows_are_copied(body: ModuleType) -> None:
    value, out = unaligned(np.arange(5, dtype=F32)), np.zeros(20, np.uint8)
    assert body.gather_rows([value], F32, [(5,)], out) == -1
    value[:] = 0
    assert body.scatter_rows(out, F32, [(5,)], [value]) == -1
    assert value.tolist() == [0, 1, 2, 3, 4]


@BODIES
@pytest.mark.parametrize("off", [-12, -1, 1, 12])
def test_a_buffer_of_the_wrong_size_is_an_error(body: ModuleType, off: int) -> None:
    values, buffer = rows(F32, [(3,), (2,)]), np.zeros(20 + off, np.uint8)
    with pytest.raises(ValueError, match="not the size of the rows"):
        body.gather_rows(values, F32, [(3,), (2,)], buffer)
    with pytest.raises(ValueError, match="not the size of the rows"):
        body.scatter_rows(buffer, F32, [(3,), (2,)], values)


@BODIES
def test_there_must_be_as_many_arrays_as_shapes(body: ModuleType) -> None:
    with pytest.raises(ValueError, match="1 arrays for 2 shapes"):
        body.gather_rows(rows(F32, [(3,)]), F32, [(3,), (3,)], bytearray(24))
    with pytest.raises(ValueError, match="2 arrays for 1 shapes"):
        body.scatter_rows(bytes(12), F32, [(3,)], rows(F32, [(3,), (3,)]))


@BODIES
@pytest.mark.parametrize("shape", [(-1,), (2**62, 4), (-2, -2), (2**31, 2**31, 2**31)])
def test_shapes_that_no_array_has_are_errors(body: ModuleType, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not the shape of an array"):
        body.gather_rows([np.zeros(4, F32)], F32, [shape], bytearray(16))


@BODIES
@pytest.mark.parametrize("shape", [[4], 4, None, (1.5,), ("4",)])
def test_shapes_are_tuples_of_integers(body: ModuleType, shape: Any) -> None:
    with pytest.raises(TypeError):
        body.gather_rows([np.zeros(4, F32)], F32, [shape], bytearray(16))


@BODIES
@pytest.mark.parametrize("dtype", [np.dtype(object), F32.newbyteorder(), "f4", np.float32, None])
def test_dtypes_that_are_not_plain_bytes_are_errors(body: ModuleType, dtype: Any) -> None:
    with pytest.raises(TypeError):
        body.gather_rows([np.zeros(4, F32)], dtype, [(4,)], bytearray(16))
    with pytest.raises(TypeError):
        body.scatter_rows(bytes(16), dtype, [(4,)], [np.zeros(4, F32)])


@BODIES
def test_rows_are_not_gathered_into_what_is_read_only(body: ModuleType) -> None:
    fixed = np.zeros(16, np.uint8)
    fixed.flags.writeable = False
    for out in (bytes(16), fixed, memoryview(bytes(16))):
        with pytest.raises(ValueError, match="read-only"):
            body.gather_rows([np.zeros(4, F32)], F32, [(4,)], out)


@BODIES
def test_cast_takes_other_layouts_and_dtypes_of_the_same_kind(body: ModuleType) -> None:
    values = [
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(3, 2).T,
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6, dtype=np.int16).reshape(2, 3),
        np.arange(6, dtype=F32.newbyteorder()).reshape(2, 3),
    ]
    out = np.zeros(5 * 24 + 1, np.uint8)[1:]
    assert body.gather_rows(values, F32, [(2, 3)] * 5, out, cast=True) == -1
    assert out.tobytes() == b"".join(value.astype(F32).tobytes() for value in values)


@BODIES
def test_cast_refuses_another_kind_another_shape_and_subclasses(body: ModuleType) -> None:
    refused: list[Any] = [np.zeros(2), np.zeros((1, 4)), np.zeros(4).view(Subclass), [0, 0, 0, 0]]
    for value in (*refused, np.zeros(4, np.complex64)):
        assert body.gather_rows([value], F32, [(4,)], bytearray(16), cast=True) == 0
    i4 = np.dtype(np.int32)
    assert body.gather_rows([np.zeros(4, F32)], i4, [(4,)], bytearray(16), cast=True) == 0


@pytest.mark.parametrize(
    "name",
    ["pack_header", "parse_header", "crc32c", "look", "wake_at", "gather_rows", "scatter_rows",
     "distinct"],
)
def test_a_twin_has_the_parameters_of_its_kernel(name: str) -> None:
    ours, twin = (inspect.signature(getattr(body, name)) for body in (wire, reference.wire))
    assert list(ours.parameters) == list(twin.parameters)


def test_only_variants_that_exist_can_be_chosen(variant: str) -> None:
    with pytest.raises(ValueError, match="no variant 'mmx' here"):
        wire._set_variant("mmx")
    assert wire._set_variant(variant) == variant
