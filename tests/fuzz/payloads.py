"""Payloads of every codec, true ones and what becomes of them on the way."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec, Stateful
from asyncps.tensor.feedback import KeyCoder

# Options that a type cannot do without.
_NEEDED: dict[str, dict[str, Any]] = {"threshold": {"threshold": 1}}
SPECS: list[dict[str, Any]] = [
    {"type": name, **_NEEDED.get(name, {}), **more}
    for name, kind in codecs.KINDS.items()
    for more in ([{}, {"values": "f16"}] if kind.has_half else [{}])
]
SEED = 11
_SHORTER = 32  # of so many values a payload is less than these are
# Ends of ranges; a NaN and an infinity.
WORDS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 0x7FC00000, 0x7F800000])


def made(spec: dict[str, Any]) -> Codec:
    """Return a codec as a user names it."""
    return codecs.made(codecs.checked(spec))


def _new(size: int) -> Any:
    return np.empty(size, np.uint8)


def true_payload(codec: Codec, values: Any, seed: int = SEED) -> bytes:
    """What a worker sends of float32 values; of a codec with a memory, as a part of a matrix."""
    if isinstance(codec, Stateful):
        return _of_matrix(codec, values, seed)
    coder = KeyCoder(values.size)
    (payload,) = coder.encode(codec, values, values.nbytes, [(0, values.size)], _new, [seed])
    return payload.tobytes()


def _of_matrix(codec: Stateful, values: Any, seed: int) -> bytes:
    """What is sent of a chunk that begins and ends within rows of a matrix, of zeros elsewhere."""
    columns = math.isqrt(values.size - 1) + 1
    begin = columns // 2
    stop = begin + values.size
    shape = (-(-stop // columns), columns)
    whole = np.zeros(math.prod(shape), np.float32)
    whole[begin:stop] = values
    cuts = (0, begin, stop, whole.size)
    pieces = [(first, end) for first, end in itertools.pairwise(cuts) if end > first]
    coder = KeyCoder(whole.size)
    payloads = coder.encode(codec, whole, whole.nbytes, pieces, _new, [seed] * len(pieces),
                            shape=shape)
    payload = payloads[pieces.index((begin, stop))]
    assert values.size < _SHORTER or payload.nbytes < values.nbytes
    return payload.tobytes()


def gradient(size: int, seed: int) -> Any:
    """Values of which some are sent whatever the codec."""
    return np.random.default_rng([seed, size]).normal(size=size).astype(np.float32) * 2


@st.composite
def mutated(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes changed in a few places: others, fewer, more, or exchanged."""
    found = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(found) - 1)))
        action = draw(st.sampled_from("sdiwx"))
        if action == "i" or not found:
            found[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif action == "s":
            found[at] = draw(st.integers(0, 255))
        elif action == "d":
            del found[at : at + draw(st.integers(1, 9))]
        elif action == "w":  # a whole word, such as an index, a scale or a size
            word = draw(WORDS)
            at -= at % 4
            found[at : at + 4] = word.to_bytes(4, "little")
        else:
            other = draw(st.integers(0, len(found) - 1))
            found[at], found[other] = found[other], found[at]
    return bytes(found)
