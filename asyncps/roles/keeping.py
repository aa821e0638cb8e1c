"""What all workers have not sent, to a checkpoint: from each rank to the one that writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from asyncps.errors import CheckpointError
from asyncps.protocol.messages import Key
from asyncps.protocol.parcels import KeptKey
from asyncps.roles.carrying import Carrier, Stream
from asyncps.roles.client import Client
from asyncps.roles.coders import Kept
from asyncps.roles.fetching import Disk
from asyncps.roles.worker import Worker
from asyncps.tensor.checkpoint import KEPT, Writer
from asyncps.tensor.codecs import Floats


def kept_of(client: Client) -> dict[Key, Kept]:
    """Return what this worker has not sent, meant for the learning rates of now."""
    compression = client.compression
    if compression is None:
        return {}
    compression.rates.use(client.optimizer, client.hyper)
    compression.follow(client.keys)
    return compression.coders.kept()


async def give(worker: Worker, client: Client, leader: int, course: int) -> None:
    """Hand what this worker has not sent to the one that writes.

    Raises:
        AsyncPSError: It does not take it, or a server is gone.
    """
    kept = kept_of(client)
    keys = [each.told(key) for key, each in kept.items()]
    with Carrier(worker, client, leader, course, leads=False) as carrier:
        await carrier.give(keys, filler(keys, kept))


def filler(keys: Sequence[KeptKey], kept: Mapping[Key, Kept]) -> Any:
    """Return what fills views with the bytes of these arrays."""
    stream = Stream(keys)
    views = [(_bytes_of(kept[each.key].residual), _bytes_of(kept[each.key].extra))
             for each in keys]

    async def fill(begin: int, view: memoryview) -> None:
        for part in stream.parts(begin, len(view)):
            view[part.at : part.at + part.size] = (
                views[part.place][part.is_extra][part.begin : part.begin + part.size])

    return fill


def _bytes_of(array: Floats | None) -> memoryview:
    return memoryview(b"") if array is None else array.data.cast("B")


class Keeping:
    """The residuals of one save, at the worker that writes; `with` it.

    Args:
        worker, client: Whose.
        ranks: Who has come.
        course: What their parcels are called.
    """

    def __init__(self, worker: Worker, client: Client, ranks: Sequence[int], course: int) -> None:
        self._worker = worker
        self._client = client
        self._ranks = ranks
        self._course = course
        self._carriers: dict[int, Carrier] = {}
        self._stack = ExitStack()
        self._keys: dict[int, list[KeptKey]] = {}
        self._mine: dict[Key, Kept] = {}

    def __enter__(self) -> Keeping:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._stack.close()

    async def begin(self, elements: Mapping[Key, int], widths: Mapping[Key, int]) -> None:
        """Hear from all ranks what they have.

        Args:
            elements: Of each dense key that is saved.
            widths: The elements of a row, of each row-sparse one. What is said of other keys is
                left out.

        Raises:
            CheckpointError: A rank has another number of elements of a key.
            AsyncPSError: A rank does not answer, or a server is gone.
        """
        me = self._worker.node.rank
        for rank in self._ranks:
            if rank == me:
                self._mine = kept_of(self._client)
                self._keys[rank] = [each.told(key) for key, each in self._mine.items()]
                continue
            carrier = self._stack.enter_context(
                Carrier(self._worker, self._client, rank, self._course, leads=True))
            self._carriers[rank] = carrier
            self._keys[rank] = await carrier.begin()
        for rank, keys in self._keys.items():
            for each in keys:
                if each.width != widths.get(each.key, 0 if each.key in elements else each.width):
                    raise CheckpointError("a worker has kept other rows than there are",
                                          key=each.key, rank=rank, got=each.width,
                                          expected=widths.get(each.key, 0))
                if each.elements not in (0, elements.get(each.key, each.elements)):
                    raise CheckpointError(
                        "a worker has not sent another number of elements than there are",
                        key=each.key, rank=rank, expected=elements[each.key], got=each.elements)
        self._saved = elements.keys() | widths.keys()

    @property
    def entries(self) -> dict[Key, dict[int, int]]:
        """What there is to write of residuals: elements by key and rank."""
        return self._counted(lambda each: each.elements)

    @property
    def extras(self) -> dict[Key, dict[int, int]]:
        """What there is to write of what codecs keep beside: elements by key and rank."""
        return self._counted(lambda each: each.extra)

    def _counted(self, count: Callable[[KeptKey], int]) -> dict[Key, dict[int, int]]:
        found: dict[Key, dict[int, int]] = {}
        for rank, keys in self._keys.items():
            for each in keys:
                if count(each) and each.key in self._saved:
                    found.setdefault(each.key, {})[rank] = count(each)
        return found

    @property
    def meta(self) -> dict[str, Any]:
        """What the checkpoint says of them, if there are any."""
        pushes: dict[Key, int] = {}
        for keys in self._keys.values():
            for each in keys:
                pushes[each.key] = max(each.pushes, pushes.get(each.key, 0))
        told = [[key, count] for key, count in pushes.items() if key in self._saved]
        if not self.entries and not self.extras:
            return {}
        return {KEPT: {"ranks": sorted(self._ranks), "pushes": told, "codecs": self._codecs()}}

    def _codecs(self) -> list[list[Key]]:
        """Whose extras and pushes these are. As a rule all ranks say the same; where one has not
        pushed since another codec was set, they are no codec's, so that none takes them for its
        own."""
        names: dict[Key, str] = {}
        for keys in self._keys.values():
            for each in keys:
                if each.codec and each.key in self._saved:
                    known = names.setdefault(each.key, each.codec)
                    names[each.key] = known if known == each.codec else _SEVERAL
        return [[key, name] for key, name in names.items()]

    async def write(self, disk: Disk, writer: Writer) -> None:
        """Write all arrays, as they come."""
        entries, extras = self.entries, self.extras
        for rank, keys in self._keys.items():
            stream = Stream(keys)

            async def use(
                begin: int, view: memoryview, rank: int = rank, keys: list[KeptKey] = keys,
                stream: Stream = stream,
            ) -> None:
                for part in stream.parts(begin, len(view)):
                    key = keys[part.place].key
                    if rank in (extras if part.is_extra else entries).get(key, {}):
                        await disk.run(writer.write_kept, key, rank, part.is_extra, part.begin,
                                       view[part.at : part.at + part.size])

            if rank in self._carriers:
                await self._carriers[rank].rest(keys, use)
                continue
            begin = 0
            for each in keys:  # ours: views of what is kept, in pieces that the disk takes
                mine = self._mine[each.key]
                for array in (_bytes_of(mine.residual), _bytes_of(mine.extra)):
                    for first in range(0, len(array), _PIECE):
                        await use(begin + first, array[first : first + _PIECE])
                    begin += len(array)


_PIECE = 4 << 20
_SEVERAL = "several"
