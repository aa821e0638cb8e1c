"""A 64-bit seed out of several parts, the same on every machine."""

from __future__ import annotations

import hashlib

__all__ = ["seed_of"]


def seed_of(*parts: int | str | bytes) -> int:
    """Return a number from 0 to 2**64 - 1 that stands for these parts in this order.

    BLAKE2b with a digest of 8 bytes, read little-endian. It is taken over, for each part, `i` for
    an integer, `s` for text or `b` for bytes; the number of bytes that follow, as 8 bytes
    little-endian; and the decimal digits (with `-` where negative), the UTF-8 form or the bytes
    themselves. So no two lists of parts are written alike, and 5 is another part than "5".

    Raises:
        TypeError: A part is something else, bool included.
    """
    words = []
    for part in parts:
        if isinstance(part, bytes):
            kind, text = b"b", part
        elif isinstance(part, str):
            kind, text = b"s", part.encode("utf-8", "surrogatepass")
        elif isinstance(part, bool) or not isinstance(part, int):
            raise TypeError(f"a seed is made of int, str and bytes, not {type(part).__name__}")
        else:
            kind, text = b"i", str(part).encode()
        words += [kind, len(text).to_bytes(8, "little"), text]
    return int.from_bytes(hashlib.blake2b(b"".join(words), digest_size=8).digest(), "little")
