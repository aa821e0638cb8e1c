"""What workers had not sent, from a checkpoint: from the one that reads to each rank.

A rank gets what it had. On another number of workers a rank that is not there any more leaves its
own to one that is, so the sum of all stays what it was. What codecs keep beside is nothing to be
summed: a rank gets its own, or that of the first of those that left it something.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from asyncps.errors import CheckpointError, RemoteProtocolError
from asyncps.protocol.messages import Key, KeySpec
from asyncps.protocol.parcels import MOST_NAME, KeptKey
from asyncps.roles import keptrows
from asyncps.roles.carrying import ITEM, Carrier, Part, Stream
from asyncps.roles.client import Client
from asyncps.roles.coders import Kept
from asyncps.roles.compressing import Compression
from asyncps.roles.fetching import Disk
from asyncps.roles.plan import KeyInfo
from asyncps.roles.worker import Worker
from asyncps.state.keyspecs import size_of
from asyncps.tensor.checkpoint import KEPT, Reader
from asyncps.tensor.codecs import Floats
from asyncps.tensor.safefile import Slot
from asyncps.tensor.threads import threads_of

log = logging.getLogger(__name__)

_PIECE = 1 << 20  # bytes that are looked at, or added, at once
_MOST_PUSHES = 1 << 62
_MOST_RANKS = 1024  # whose rows one worker gets
_MOST_EXTRA = 4  # times the elements of its key: no codec keeps more beside
_ASKED_AT_ONCE = 1000  # keys

Sources = dict[Key, tuple[int, list[int]]]  # by key: elements, and the ranks that they are of
_NONE: tuple[int, list[int]] = 0, []
_Views = tuple[memoryview, memoryview]  # of a residual and an extra


class Regiving:
    """The residuals of one load, at the worker that reads.

    Args:
        reader: The checkpoint.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._pushes = _pushes_of(reader.meta)
        self._codecs = _codecs_of(reader.meta)
        self._tables: dict[Key, KeySpec] = {}

    def compare(self, specs: Mapping[Key, KeySpec], path: str) -> None:
        """Compare with the keys as they will be; nothing changes.

        Raises:
            CheckpointError: Something is kept of a key that is not there, or is another size, or
                codecs keep more or less of it at one rank than at another, or more than any does.
        """
        self._pushes = {key: count for key, count in self._pushes.items() if key in specs}
        for key in self._reader.residuals | self._reader.extras:
            spec = specs.get(key)
            if spec is not None and spec.rows is not None:
                self._tables[key] = spec
                keptrows.compare(key, spec, self._reader.residuals.get(key, {}),
                                 self._reader.extras.get(key, {}))
        for key, ranks in self._reader.extras.items():
            if key in self._tables:
                continue
            if key not in specs:
                raise CheckpointError("what a codec keeps of a key that is not there", key=key,
                                      got=path)
            shapes = sorted({slot.entry.shape for slot in ranks.values()})
            most = _most_extra(specs[key])
            if len(shapes) > 1 or not 0 < shapes[0][0] <= most:
                raise CheckpointError("what a codec keeps of a key does not fit it", key=key,
                                      expected="as many elements at each rank, and some, at most "
                                               f"{most}", got=shapes)
        for key, ranks in self._reader.residuals.items():
            if key in self._tables:
                continue
            spec = specs.get(key)
            if spec is None:
                raise CheckpointError("what was not sent of a key that is not there", key=key,
                                      got=path)
            expected = size_of(spec) // spec.itemsize
            for rank, slot in ranks.items():
                if slot.entry.shape != (expected,):
                    raise CheckpointError("what was not sent does not fit its key", key=key,
                                          rank=rank, expected=expected, got=slot.entry.shape)

    def check_finite(self) -> None:
        """Read all: what is not finite would be in the way of every push. A thread for files.

        Raises:
            CheckpointError: It names key and rank.
        """
        buffer = np.empty(_PIECE // ITEM, np.float32)
        for key, rank, is_extra, slot in self._slots():
            for begin in range(0, slot.entry.nbytes, _PIECE):
                piece = buffer[: min(_PIECE, slot.entry.nbytes - begin) // ITEM]
                self._reader.read_kept(key, rank, is_extra, begin, piece.view(np.uint8).data)
                if not np.isfinite(piece).all():
                    what = "what a codec keeps" if is_extra else "what was not sent"
                    raise CheckpointError(f"{what} is not finite", key=key, rank=rank)
            if is_extra and key in self._tables:
                rows = self._tables[key].shape[0]
                keptrows.check_ids(self._reader, key, rank, slot, rows)

    def _slots(self) -> Iterator[tuple[Key, int, bool, Slot]]:
        for is_extra, found in ((False, self._reader.residuals), (True, self._reader.extras)):
            for key, ranks in found.items():
                for rank, slot in ranks.items():
                    yield key, rank, is_extra, slot

    async def carry_out(
        self, worker: Worker, client: Client, disk: Disk, ranks: Sequence[int], course: int
    ) -> dict[Key, Kept]:
        """Send each rank its own; return what is this worker's.

        Args:
            worker, client: Whose.
            disk: Where files are read.
            ranks: Who has come, ascending.
            course: What their parcels are called.
        """
        mine: dict[Key, Kept] = {}
        for place, rank in enumerate(ranks):
            sources = self._sources(place, len(ranks), self._reader.residuals)
            extras = self._sources(place, len(ranks), self._reader.extras)
            keys = [KeptKey(key, sources.get(key, _NONE)[0], self._pushes.get(key, 0),
                            extras.get(key, _NONE)[0], self._width(key),
                            self._codecs.get(key, ""))
                    for key in sources | extras | self._pushes]
            stream = Stream(keys)

            def read(
                begin: int, view: memoryview, sources: Sources = sources, extras: Sources = extras,
                keys: list[KeptKey] = keys, stream: Stream = stream,
            ) -> None:
                for part in stream.parts(begin, len(view)):
                    key = keys[part.place].key
                    target = view[part.at : part.at + part.size]
                    if key in self._tables:
                        self._read_joined(key, sources[key][1], part, target)
                    elif part.is_extra:
                        self._reader.read_kept(key, extras[key][1][0], True, part.begin, target)
                    else:
                        self._read(key, sources[key][1], part.begin, target)

            async def fill(begin: int, view: memoryview, read: Any = read) -> None:
                await disk.run(read, begin, view)

            if rank != worker.node.rank:
                with Carrier(worker, client, rank, course, leads=True) as carrier:
                    await carrier.give(keys, fill)
                continue
            mine, views = _room(keys)
            for at in range(0, stream.total, _PIECE):
                piece = memoryview(bytearray(min(_PIECE, stream.total - at)))
                await fill(at, piece)
                _put(stream, views, at, piece)
        return mine

    def _sources(
        self, place: int, count: int, kept: Mapping[Key, Mapping[int, Slot]]
    ) -> Sources:
        """Return what the worker at a place of `count` gets: elements, and of which ranks."""
        found: Sources = {}
        for key, ranks in kept.items():
            of = sorted(rank for rank in ranks if rank % count == place)
            if of:
                counted = of if key in self._tables else of[:1]
                found[key] = sum(ranks[rank].entry.shape[0] for rank in counted), of
        return found

    def _width(self, key: Key) -> int:
        spec = self._tables.get(key)
        return 0 if spec is None else keptrows.width_of(spec)

    def _read_joined(self, key: Key, ranks: Sequence[int], part: Part, view: memoryview) -> None:
        """Read what ranks have kept of rows, one behind the other."""
        slots = (self._reader.extras if part.is_extra else self._reader.residuals)[key]
        begin, stop, first = part.begin, part.begin + part.size, 0
        for rank in ranks:
            last = first + slots[rank].entry.nbytes
            low, high = max(begin, first), min(stop, last)
            if low < high:
                self._reader.read_kept(key, rank, part.is_extra, low - first,
                                       view[low - begin : high - begin])
            first = last

    def _read(self, key: Key, ranks: Sequence[int], begin: int, view: memoryview) -> None:
        self._reader.read_kept(key, ranks[0], False, begin, view)
        if len(ranks) == 1:
            return
        total = np.frombuffer(view, np.uint8)  # may begin anywhere
        values = total.view(np.float32)
        more = np.empty_like(values)
        for rank in ranks[1:]:
            self._reader.read_kept(key, rank, False, begin, more.view(np.uint8).data)
            with np.errstate(over="ignore"):
                values += more
            np.nan_to_num(values, copy=False)  # the largest number instead of an infinity


async def collect(worker: Worker, client: Client, leader: int, course: int) -> dict[Key, Kept]:
    """Return what is this worker's, from the one that reads.

    Raises:
        RemoteProtocolError: What it says that it sends does not fit the keys: no memory was taken.
        AsyncPSError: It does not come, or a server is gone.
    """
    with Carrier(worker, client, leader, course, leads=False) as carrier:
        keys = await carrier.begin()
        unknown = [each.key for each in keys if each.key not in client.keys]  # of a fresh store
        for begin in range(0, len(unknown), _ASKED_AT_ONCE):
            await worker.look_up(client, unknown[begin : begin + _ASKED_AT_ONCE])
        check_sizes(keys, client.keys)
        found, views = _room(keys)
        stream = Stream(keys)

        async def use(begin: int, view: memoryview) -> None:
            _put(stream, views, begin, view)

        await carrier.rest(keys, use)
    return found


def install(
    worker: Worker, client: Client, found: Mapping[Key, Kept], *, carried: bool
) -> None:
    """Let this be all that this worker has not sent, meant for the learning rates of now.

    Args:
        worker, client: Whose.
        found: What it got.
        carried: Some worker got something: then all have a place for it, and will save it.
    """
    compression = client.compression
    if compression is None:
        if not carried:
            return
        compression = client.compression = Compression(
            worker.node.rank, worker.node.num_workers, worker.config.job, client.number,
            threads_of(worker.config.kernel_threads))
    compression.rates.use(client.optimizer, client.hyper)
    clocks = {key: client.keys[key].clock for key in found if key in client.keys}
    compression.coders.take(found, {key: compression.rates.of(key) for key in found}, clocks)
    idle = [client.keys[key].told for key, kept in found.items() if kept.residual is not None
            and key in client.keys and not compression.sends(client.keys[key])]
    if idle:
        log.warning(
            "worker %d has what it had not sent of %d compressed keys, such as %r, from a "
            "checkpoint, and sends it when a compression is set for them "
            "(set_gradient_compression)",
            worker.node.rank, len(idle), idle[0])


def check_sizes(keys: Sequence[KeptKey], infos: Mapping[Key, KeyInfo]) -> None:
    """Refuse what another worker says that it sends, if it does not fit the keys.

    Args:
        keys: What it says.
        infos: All keys.

    Raises:
        RemoteProtocolError: It names the key, what would be right and what was said.
    """
    if len({each.key for each in keys}) != len(keys):
        raise RemoteProtocolError("what was not sent of a key, more than once")
    for each in keys:
        spec = infos[each.key].spec
        width, elements = keptrows.width_of(spec), size_of(spec) // spec.itemsize
        if spec.rows is not None:
            is_right = (each.width == width and each.elements <= elements * _MOST_RANKS) or not (
                each.width or each.elements or each.extra)
            expected = f"rows of {width} elements, 3 beside each, of at most {_MOST_RANKS} ranks"
        else:
            most = _most_extra(spec)
            is_right = (not each.width and each.elements in (0, elements) and each.extra <= most)
            expected = f"0 or {elements} elements, at most {most} beside them"
        if not is_right:
            raise RemoteProtocolError("what was not sent does not fit its key", key=each.key,
                                      expected=expected,
                                      got=(each.elements, each.extra, each.width))


def _most_extra(spec: KeySpec) -> int:
    return _MOST_EXTRA * (size_of(spec) // spec.itemsize)


def _room(keys: Sequence[KeptKey]) -> tuple[dict[Key, Kept], list[_Views]]:
    pairs: list[tuple[Floats, Floats]] = [
        (np.empty(each.elements, np.float32), np.empty(each.extra, np.float32)) for each in keys]
    found = {each.key: Kept(residual if residual.size else None, each.pushes,
                            extra if extra.size else None, each.width, each.codec)
             for each, (residual, extra) in zip(keys, pairs, strict=True)}
    return found, [(residual.view(np.uint8).data, extra.view(np.uint8).data)
                   for residual, extra in pairs]


def _put(stream: Stream, views: Sequence[_Views], begin: int, view: memoryview) -> None:
    for part in stream.parts(begin, len(view)):
        views[part.place][part.is_extra][part.begin : part.begin + part.size] = (
            view[part.at : part.at + part.size])


def _pushes_of(meta: Mapping[str, Any]) -> dict[Key, int]:
    return {key: count for key, count in _pairs(meta, "pushes")
            if _is(type(count) is int and 0 <= count < _MOST_PUSHES, count)}


def _codecs_of(meta: Mapping[str, Any]) -> dict[Key, str]:
    """Return whose extras and pushes these are; checkpoints from before do not say it."""
    return {key: name for key, name in _pairs(meta, "codecs")
            if _is(isinstance(name, str) and len(name) <= MOST_NAME, name)}


def _pairs(meta: Mapping[str, Any], name: str) -> list[tuple[Key, Any]]:
    told = meta.get(KEPT, {})
    pairs = told.get(name, []) if isinstance(told, dict) else None
    fits = isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int))
        for pair in pairs)
    return [(key, value) for key, value in pairs] if _is(fits, told) and pairs else []


def _is(fits: bool, got: Any) -> bool:
    """Return True; or raise CheckpointError."""
    if not fits:
        raise CheckpointError("a checkpoint that no store has written: what was not sent",
                              got=repr(got)[:100])
    return True
