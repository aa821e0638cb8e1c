"""What a call has still to encode: when it is sent, or when a later call of the same key comes.

Frames of one key leave in the order of their calls, and so must encodings, whose residual each
leaves to the next.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Bytes


class Waiting:
    """The chunks of one large value, each encoded once. Any thread.

    Args:
        coder: Of the key; it knows of this until all is encoded.
        count: How many chunks there are.
        encode: Encodes one, by its place.
    """

    def __init__(self, coder: KeyCoder, count: int, encode: Callable[[int], Bytes]) -> None:
        self._coder = coder
        self._encode = encode
        self._payloads: list[Bytes | None] = [None] * count
        self._missing = count
        self._lock = threading.Lock()
        self._dropped = False
        coder.waiting.append(self.finish)

    def payload(self, place: int) -> Bytes:
        """Return what a chunk became, encoded now if it was not yet."""
        with self._lock:
            found = self._payloads[place]
            if found is None:
                assert not self._dropped, "a call that is over is not sent"
                found = self._payloads[place] = self._encode(place)
                self._missing -= 1
                if not self._missing:
                    self._forget()
            return found

    def finish(self) -> None:
        """Encode what is not encoded yet: somebody comes who must not be before it."""
        for place in range(len(self._payloads)):
            with self._lock:
                if self._dropped:
                    return
            self.payload(place)

    def drop(self) -> list[tuple[int, Bytes]]:
        """Encode nothing more; return places and payloads of what was encoded."""
        with self._lock:
            self._dropped = True
            self._forget()
            return [(place, payload) for place, payload in enumerate(self._payloads)
                    if payload is not None]

    def _forget(self) -> None:
        with contextlib.suppress(ValueError):
            self._coder.waiting.remove(self.finish)
