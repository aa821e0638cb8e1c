"""Seeds out of several parts: the bytes that are hashed, what a part may be."""

from __future__ import annotations

import enum
import hashlib

import numpy as np
import pytest

from asyncps_ext.seeds import seed_of

WORD = 1 << 64


def test_a_seed_is_the_hash_of_its_parts_as_written() -> None:
    written = b"s" + (3).to_bytes(8, "little") + b"job" + b"i" + (2).to_bytes(8, "little") + b"-7"
    written += b"b" + (0).to_bytes(8, "little")
    digest = hashlib.blake2b(written, digest_size=8).digest()
    assert seed_of("job", -7, b"") == int.from_bytes(digest, "little")


def test_no_two_lists_of_parts_are_written_alike() -> None:
    lists: list[tuple[int | str | bytes, ...]] = [
        (), (0,), ("",), (b"",), ("0",), (b"0",), (0, 0), ("ab", "c"), ("a", "bc"), ("abc",),
        (1, 23), (12, 3), (-1,), (1 << 64,), (1,), ("\udcff",), ("si",), ("s", "i"),
    ]  # fmt: skip
    seeds = [seed_of(*parts) for parts in lists]
    assert len(set(seeds)) == len(lists)
    assert all(0 <= seed < WORD for seed in seeds)


@pytest.mark.parametrize("part", [True, None, 1.5, ("a",), bytearray(b"a"), np.int64(3)])
def test_a_part_is_an_integer_text_or_bytes(part: object) -> None:
    with pytest.raises(TypeError, match=f"int, str and bytes, not {type(part).__name__}"):
        seed_of("job", part)  # type: ignore[arg-type]


class Level(enum.IntEnum):
    """Written as a name by format and repr."""

    LOW = 5


class Odd(int):
    """An integer that shows itself as something else in every way there is."""

    def __str__(self) -> str:
        return "6"

    __repr__ = __str__

    def __index__(self) -> int:
        return 6

    __int__ = __index__

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__


class Word(enum.StrEnum):
    """Text with a name."""

    A = "a"


class Text(str):
    """Text that encodes itself as something else."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return b"other"


class Raw(bytes):
    """Bytes that give something else."""

    def __bytes__(self) -> bytes:
        return b"other"

    def __len__(self) -> int:
        return 99


def test_a_subclass_counts_by_what_it_holds() -> None:
    assert seed_of(Level.LOW) == seed_of(Odd(5)) == seed_of(5)
    assert seed_of(Word.A) == seed_of(Text("a")) == seed_of("a")
    assert seed_of(Raw(b"a")) == seed_of(b"a")


def test_an_integer_may_have_4300_digits() -> None:
    most = 10**4300 - 1
    written = b"i" + (4300).to_bytes(8, "little") + b"9" * 4300
    digest = hashlib.blake2b(written, digest_size=8).digest()
    assert seed_of(most) == int.from_bytes(digest, "little")
    assert seed_of(-most) != seed_of(most)
    for number in (most + 1, -most - 1, 1 << 100_000):
        with pytest.raises(ValueError, match="an integer of a seed has at most 4300 digits, not"):
            seed_of("job", number)


def test_a_surrogate_that_stands_alone_has_the_bytes_of_its_number() -> None:
    written = b"s" + (3).to_bytes(8, "little") + b"\xed\xb3\xbf"  # U+DCFF: 1101 110011 111111
    digest = hashlib.blake2b(written, digest_size=8).digest()
    assert seed_of("\udcff") == int.from_bytes(digest, "little")
