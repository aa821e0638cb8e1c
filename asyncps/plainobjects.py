"""Plain objects as bytes, by msgspec: what other ranks send is never code."""

from __future__ import annotations

from typing import Any

import msgspec

from asyncps.errors import TensorError

_MOST_BYTES = 1 << 30


def packed(value: Any) -> bytes:
    try:
        packed = msgspec.msgpack.encode(value)
        msgspec.msgpack.decode(packed)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TensorError(f"an object that cannot travel: {error}",
                          expected="plain data", got=type(value).__name__) from None
    check_size(len(packed))
    return packed


def check_size(size: int) -> int:
    if not 0 <= size <= _MOST_BYTES:
        raise TensorError("an object that is too large", expected=f"at most {_MOST_BYTES}",
                          got=size)
    return int(size)


def unpacked(data: Any) -> Any:
    """Return the object that bytes stand for."""
    return msgspec.msgpack.decode(memoryview(data))
