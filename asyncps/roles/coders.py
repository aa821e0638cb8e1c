"""What a worker has not sent of the keys of one store: to a checkpoint, and from one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asyncps.protocol.messages import Key
from asyncps.protocol.parcels import KeptKey
from asyncps.roles.keptrows import join_ids, split_ids, summed
from asyncps.tensor.codecs import Floats
from asyncps.tensor.feedback import KeyCoder, Rate
from asyncps.tensor.rowfeedback import RowCoder


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a key: what was not sent (None: nothing), how often it was encoded, and
    what its codec keeps beside (None: nothing); or, of a row-sparse key, which rows it is of. Such
    a key has a width, the elements of a row. And the name of the codec that both are of, "": nobody
    knows."""

    residual: Floats | None
    pushes: int
    extra: Floats | None = None
    width: int = 0
    codec: str = ""

    def told(self, key: Key) -> KeptKey:
        """Return it without the arrays."""
        return KeptKey(key, _size(self.residual), self.pushes, _size(self.extra),
                       self.width, self.codec)


_NOTHING = Kept(None, 0)


class Coders:
    """A coder for each key that was pushed, or of which something was loaded.

    Args:
        threads: That may encode a key at once.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._by_key: dict[Key, KeyCoder] = {}
        # Was loaded, and at which clock, of keys that have no coder yet.
        self._waiting: dict[Key, tuple[Kept, int]] = {}
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
                    coder = KeyCoder(elements, self._threads)
                    loaded, clock = self._waiting.pop(key, (_NOTHING, 0))
                    coder.restore(loaded.residual, loaded.pushes, None, loaded.extra, loaded.codec,
                                  clock)
                    self._by_key[key] = coder
        return coder

    def of_rows(self, key: Key, width: int) -> RowCoder:
        """Return the coder of a row-sparse key with so many elements in a row, made if need be."""
        with self._lock:
            coder = self._by_key.get(key)
            if coder is None:
                coder = self._by_key[key] = RowCoder(width)
                loaded, clock = self._waiting.pop(key, (_NOTHING, 0))
                coder.restore(None, loaded.pushes, None, clock=clock)
            assert isinstance(coder, RowCoder)
            return coder

    def forget(self, key: Key) -> None:
        """Make another coder when this key comes again."""
        self._by_key.pop(key, None)

    def kept(self) -> dict[Key, Kept]:
        """Return what there is to save, of keys with something: views, while nothing is pushed.

        Of row-sparse keys copies.
        """
        found = {key: kept for key, (kept, _) in self._waiting.items()}
        found |= {key: _kept(coder) for key, coder in self}
        return {key: kept for key, kept in found.items()
                if kept.pushes or kept.residual is not None or kept.extra is not None}

    def unsent(self) -> list[Key]:
        """Return the keys of which something is kept that was not sent, or a momentum."""
        return [key for key, each in self.kept().items()
                if each.residual is not None or each.extra is not None]

    def take(
        self, found: Mapping[Key, Kept], rates: Mapping[Key, Rate | None], clocks: Mapping[Key, int]
    ) -> None:
        """Let this be all that is kept.

        Args:
            found: By key; the arrays are ours from now on.
            rates: The learning rates that they are meant for.
            clocks: Of these keys, as this worker knows them.
        """
        self._waiting = {key: (kept, clocks.get(key, 0)) for key, kept in found.items()}
        for key, kept in found.items():
            if kept.width:
                self.of_rows(key, kept.width)
            elif kept.residual is not None:
                self.of(key, kept.residual.size)
        for key, coder in self:
            self._waiting.pop(key, None)
            kept = found.get(key, _NOTHING)
            if isinstance(coder, RowCoder) and kept.residual is not None:
                assert kept.extra is not None
                ids, rests = summed(join_ids(kept.extra), kept.residual, coder.width)
                coder.restore_rows(ids, rests, kept.pushes, rates.get(key), clocks.get(key, 0))
            else:
                coder.restore(kept.residual, kept.pushes, rates.get(key), kept.extra, kept.codec,
                              clocks.get(key, 0))


def _kept(coder: KeyCoder) -> Kept:
    if not isinstance(coder, RowCoder):
        return Kept(coder.residual, coder.saved_pushes, coder.extra, codec=coder.codec)
    ids, rests = coder.rows()
    if not ids.size:
        return Kept(None, coder.saved_pushes, None, coder.width)
    return Kept(rests, coder.saved_pushes, split_ids(ids), coder.width)


def _size(array: Floats | None) -> int:
    return 0 if array is None else array.size
