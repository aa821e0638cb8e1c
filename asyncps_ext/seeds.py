"""A 64-bit seed out of several parts, the same on every machine."""

from __future__ import annotations

import hashlib

__all__ = ["seed_of"]

_MOST_DIGITS = 4300  # of the integers that Python writes out, where nothing else was set
_LIMIT = 10**_MOST_DIGITS


def seed_of(*parts: int | str | bytes) -> int:
    """Return a number from 0 to 2**64 - 1 that stands for these parts in this order.

    BLAKE2b with a digest of 8 bytes, read little-endian. It is taken over, for each part, `i` for
    an integer, `s` for text or `b` for bytes; the number of bytes that follow, as 8 bytes
    little-endian; and the decimal digits (with `-` where negative), the UTF-8 form (a surrogate
    that stands alone in the three bytes that UTF-8's rule gives for its number, which strict UTF-8
    has not) or the bytes themselves. So no two lists of parts are written alike, and 5 is another
    part than "5". A subclass of int, str or bytes, such as an enumeration's, counts by what it
    holds, whatever its own methods make of that.

    Raises:
        TypeError: A part is something else; also a bool, which would be the same part as 0 or 1.
        ValueError: An integer has more than 4300 digits, or more than
            `sys.set_int_max_str_digits` allows.
    """
    words = []
    for part in parts:
        if isinstance(part, bytes):
            kind, text = b"b", bytes(memoryview(part))
        elif isinstance(part, str):
            kind, text = b"s", str.encode(part, "utf-8", "surrogatepass")
        elif isinstance(part, bool) or not isinstance(part, int):
            raise TypeError(f"a seed is made of int, str and bytes, not {type(part).__name__}")
        else:
            number = int.__index__(part)
            if not -_LIMIT < number < _LIMIT:
                raise ValueError(
                    f"an integer of a seed has at most {_MOST_DIGITS} digits, "
                    f"not one of {number.bit_length()} bits"
                )
            kind, text = b"i", int.__repr__(number).encode()
        words += [kind, len(text).to_bytes(8, "little"), text]
    return int.from_bytes(hashlib.blake2b(b"".join(words), digest_size=8).digest(), "little")
