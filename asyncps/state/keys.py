"""Names of keys: which may be, and which was meant when there is none of that name."""

from __future__ import annotations

import difflib
from collections.abc import Collection

from asyncps.errors import TensorError, UnknownKey
from asyncps.protocol.messages import Key

MAX_KEY_BYTES = 1024  # length of a string key: protects the scheduler's memory
_LOOKED_AT = 1000  # names that a wrong one is compared with: about 20 ms
_COMPARED = 100  # characters of a name that is compared


def check_key(key: Key) -> None:
    """Check a key's name.

    Raises:
        TensorError: It is too long, or an integer of more than 64 bits.
    """
    if isinstance(key, str):
        if len(key) > MAX_KEY_BYTES or len(key.encode(errors="surrogatepass")) > MAX_KEY_BYTES:
            raise TensorError("key is too long", key=key[:64], got=f"{len(key)} characters",
                              expected=f"at most {MAX_KEY_BYTES} bytes")
    elif not -(1 << 63) <= key < 1 << 64:
        raise TensorError("key is too large", expected="64 bits", got=f"{key.bit_length()} bits")


def unknown_key(key: Key, known: Collection[Key]) -> UnknownKey:
    """Return the error of a key that is not there; it tells the one that was meant, if any."""
    text = "no such key: initialise it on every worker first"
    meant = _meant(key, known)
    if meant is not None:
        kind = f", of type {type(meant).__name__}" if type(meant) is not type(key) else ""
        text += f"; there is {meant!r}{kind}"
    return UnknownKey(text, key=key)


def _meant(key: Key, known: Collection[Key]) -> Key | None:
    if isinstance(key, int):
        return str(key) if str(key) in known else None
    if key.isdecimal() and len(key) <= 20 and int(key) in known:
        return int(key)
    if len(key) > _COMPARED:
        return None
    names = [name for name, _ in zip(known, range(_LOOKED_AT), strict=False)
             if isinstance(name, str) and len(name) <= _COMPARED]
    alike = [name for name in names if name.casefold() == key.casefold()]
    return next(iter(alike or difflib.get_close_matches(key, names, 1, 0.75)), None)
