"""What a worker has not sent of the keys of one store: to a checkpoint, and from one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asyncps.protocol.messages import Key
from asyncps.protocol.parcels import KeptKey
from asyncps.tensor.codecs import Floats
from asyncps.tensor.feedback import KeyCoder, Rate
from asyncps.tensor.rowfeedback import RowCoder


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a key: what was not sent (None: nothing), and how often it was encoded."""

    residual: Floats | None
    pushes: int

    def told(self, key: Key) -> KeptKey:
        """Return it without the array."""
        return KeptKey(key, 0 if self.residual is None else self.residual.size, self.pushes)


class Coders:
    """A coder for each key that was pushed, or of which something was loaded."""

    def __init__(self) -> None:
        self._by_key: dict[Key, KeyCoder] = {}
        self._pushes: dict[Key, int] = {}  # that were loaded, of keys that have no coder yet
        self._lock = threading.Lock()  # two threads may push a key for the first time

    def __getitem__(self, key: Key) -> KeyCoder:
        return self._by_key[key]

    def __iter__(self) -> Iterator[tuple[Key, KeyCoder]]:
        return iter(list(self._by_key.items()))

    def get(self, key: Key) -> KeyCoder | None:
        """Return the coder of a key, if there is one."""
        return self._by_key.get(key)

    def of(self, key: Key, elements: int) -> KeyCoder:
        """Return the coder of a key, made if need be."""
        coder = self._by_key.get(key)
        if coder is None:
            with self._lock:
                coder = self._by_key.get(key)
                if coder is None:
                    coder = KeyCoder(elements)
                    coder.pushes = self._pushes.pop(key, 0)
                    self._by_key[key] = coder
        return coder

    def of_rows(self, key: Key, width: int, rows: int) -> RowCoder:
        """Return the coder of a row-sparse key, made if need be.

        Args:
            key: Its name.
            width: Elements of a row.
            rows: Of the table.
        """
        with self._lock:
            coder = self._by_key.get(key)
            if coder is None:
                coder = self._by_key[key] = RowCoder(width, rows)
                coder.pushes = self._pushes.pop(key, 0)
            assert isinstance(coder, RowCoder)
            return coder

    def kept(self) -> dict[Key, Kept]:
        """Return what there is to save, of keys with something: views, while nothing is pushed."""
        found = {key: Kept(coder.residual, coder.pushes) for key, coder in self}
        return {key: kept for key, kept in found.items()
                if kept.residual is not None or kept.pushes}

    def take(self, found: Mapping[Key, Kept], rates: Mapping[Key, Rate | None]) -> None:
        """Let this be all that is kept.

        Args:
            found: By key; the arrays are ours from now on.
            rates: The learning rates that they are meant for.
        """
        nothing = Kept(None, 0)
        self._pushes = {key: kept.pushes for key, kept in found.items()}
        for key, kept in found.items():
            if kept.residual is not None:
                self.of(key, kept.residual.size)
        for key, coder in self:
            kept = found.get(key, nothing)
            coder.restore(kept.residual, kept.pushes, rates.get(key))
