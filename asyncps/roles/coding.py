"""The encoding of one call's values at a worker: large keys, rows of slabs, and how to undo it.

What is encoded in the caller's thread is put back if the call ends before it has a clock. What the
call lends may wait until it is sent: then the loop encodes it, and servers have work meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asyncps.roles import seeding
from asyncps.roles.coded import CodedKey, CodedRows, LazyKey, Payload, skipped_key
from asyncps.roles.nonfinite import Count, is_skipped
from asyncps.roles.operation import Operation
from asyncps.roles.waiting import Waiting
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Codec, Elementwise, Floats, Take, cut_room
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Bytes, SharedPool

if TYPE_CHECKING:
    from asyncps.roles.compressing import Compression
    from asyncps.roles.plan import KeyInfo, Plan, SlabPlan
    from asyncps.roles.rules import Rule


class Coding:
    """What one call has encoded, until it is known that it will be sent."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []
        self.sent_bytes = 0

    def watch(self, op: Operation) -> None:
        """Put all back if the call ends before it was given a clock."""
        op.on_end(lambda ended: None if ended.counted else self.put_back())

    def put_back(self) -> None:
        """Let what was encoded be in the residuals again, as what is not sent yet."""
        undo, self.undo = self.undo, []
        for each in undo:
            each()


class _Cuts(NamedTuple):
    """How a large key is cut.

    Attributes:
        places: The first byte of each chunk.
        pieces: The first element of each, and the one behind the last.
        heads, seeds: What random places of each are drawn from, as it travels and as it is used.
    """

    places: list[int]
    pieces: list[tuple[int, int]]
    heads: list[int]
    seeds: list[int]


class Large:
    """A large key of a call."""

    def __init__(
        self, info: KeyInfo, rule: Rule, coder: KeyCoder, view: memoryview, pool: SharedPool,
        seed: tuple[str, int],
    ) -> None:
        self.codec = rule.codec
        self._info = info
        self._rule = rule
        self._coder = coder
        self._view = view
        self._pool = pool
        self._seed = seed
        self.skipped: Count | None = None

    def check(self, rank: int) -> None:
        """Refuse a NaN or an infinity, or take note that it is to be skipped."""
        wide = self._widened()
        try:
            g = _floats(self._view) if wide is None else wide.view(np.float32)
            self.skipped = is_skipped(self._coder, g, self._info.told, rank,
                                      skip=self._rule.skips, codec=self.codec)
        finally:
            if wide is not None:
                self._pool.give(wide)

    def skip(self, coding: Coding) -> CodedKey:
        """Let all chunks say that there is no gradient."""
        self._number(coding)
        if self.skipped is not None:
            self.skipped()
        return skipped_key([piece for _, piece in self._info.pieces], self._info.dtype.itemsize)

    def encode(self, take: Take, coding: Coding) -> CodedKey:
        """Encode it."""
        self._coder.settle()  # another thread may have pushed it since it was looked at
        codec, info, cuts = self.codec, self._info, self._cuts(coding)
        payloads = self._encode_whole(take, cuts)
        coding.undo.append(partial(
            self._coder.put_back, codec, info.nbytes, cuts.pieces, payloads, cuts.seeds,
            feedback=self._rule.feedback))
        coding.sent_bytes += sum(payload.nbytes for payload in payloads)
        return CodedKey({
            place: Payload(codec.head(stop - begin, head), payload.data)
            for place, (begin, stop), head, payload in zip(
                cuts.places, cuts.pieces, cuts.heads, payloads, strict=True)
        })

    @property
    def may_wait(self) -> bool:
        """Whether it can be encoded on the loop, which has a few milliseconds at once."""
        elements = self._info.nbytes // self._info.dtype.itemsize
        return isinstance(self.codec, Elementwise) or 4 * elements <= self.codec.loop_bytes

    def later(self, take: Take, coding: Coding) -> LazyKey:
        """Encode it when it is sent, each chunk by itself or all with the first; or when the key's
        next value is to be encoded, if that is sooner.
        """
        self._coder.settle()
        cuts = self._cuts(coding)
        encode = (self._encoder_of_chunks(take, cuts) if isinstance(self.codec, Elementwise)
                  else self._encoder_of_all(take, cuts))
        waiting = Waiting(self._coder, len(cuts.pieces), encode)
        coding.undo.append(partial(self._drop, waiting, cuts))
        coding.sent_bytes += sum(self.codec.about(stop - begin) for begin, stop in cuts.pieces)

        def head(place: int) -> bytes:
            begin, stop = cuts.pieces[place]
            return self.codec.head(stop - begin, cuts.heads[place])

        return LazyKey(
            {begin: place for place, begin in enumerate(cuts.places)}, head, waiting.payload)

    def _drop(self, waiting: Waiting, cuts: _Cuts) -> None:
        """Put back what a later call has had encoded of one that will not be sent."""
        done = waiting.drop()
        if done:
            places = [place for place, _ in done]
            pieces = [cuts.pieces[place] for place in places]
            size = self._info.dtype.itemsize * sum(stop - begin for begin, stop in pieces)
            self._coder.put_back(self.codec, size, pieces, [payload for _, payload in done],
                                 [cuts.seeds[place] for place in places],
                                 feedback=self._rule.feedback)

    def _encoder_of_chunks(self, take: Take, cuts: _Cuts) -> Callable[[int], Bytes]:
        codec, size = self.codec, self._info.dtype.itemsize
        assert isinstance(codec, Elementwise)
        payloads = cut_room(take, [codec.nbytes(stop - begin) or 0 for begin, stop in cuts.pieces])

        def encode(place: int) -> Bytes:
            begin, stop = cuts.pieces[place]
            wide = self._widened(begin * size, stop * size)
            try:
                g = (_floats(self._view[begin * size : stop * size]) if wide is None
                     else wide.view(np.float32))
                self._coder.encode_piece(codec, g, begin, (stop - begin) * size, payloads[place],
                                         feedback=self._rule.feedback)
            finally:
                if wide is not None:
                    self._pool.give(wide)
            return payloads[place]

        return encode

    def _encoder_of_all(self, take: Take, cuts: _Cuts) -> Callable[[int], Bytes]:
        payloads: list[Bytes] = []

        def encode(place: int) -> Bytes:
            if not payloads:
                payloads.extend(self._encode_whole(take, cuts))
            return payloads[place]

        return encode

    def _number(self, coding: Coding) -> int:
        return seeding.number_of(self.codec, self._coder, self._info.clock, coding.undo)

    def _cuts(self, coding: Coding) -> _Cuts:
        """Return where the key is cut, and what each chunk's places are drawn from."""
        info = self._info
        pieces = info.cuts
        heads, seeds = seeding.of_chunks(self.codec, self._number(coding), self._seed, info.key,
                                         [begin for begin, _ in pieces])
        places = [piece.start for _, piece in info.pieces]
        return _Cuts(places, pieces, heads, seeds)

    def _encode_whole(self, take: Take, cuts: _Cuts) -> list[Bytes]:
        wide = self._widened()
        try:
            g = _floats(self._view) if wide is None else wide.view(np.float32)
            return self._coder.encode(self.codec, g, self._info.nbytes, cuts.pieces, take,
                                      cuts.seeds, feedback=self._rule.feedback,
                                      shape=self._info.shape)
        finally:
            if wide is not None:
                self._pool.give(wide)

    def _widened(self, begin: int = 0, stop: int | None = None) -> Bytes | None:
        """Return bytes of an f16 or bf16 value as f32, in memory of the pool; None for f32."""
        dtype = dtypes.by_name(self._info.spec.dtype)
        if dtype.widen is None:
            return None
        view = self._view[begin:stop]
        wide = self._pool.take(len(view) // dtype.itemsize * 4)
        dtype.widen(wide.view(np.float32), np.frombuffer(view, np.uint16))
        return wide


class Rows:
    """The keys of a call that live in one slab and have one rule."""

    def __init__(self, slab: SlabPlan, plan: Plan, owner: Compression, rows: Bytes) -> None:
        assert slab.rule is not None
        self._slab = slab
        self._infos = [plan.infos[index] for index in slab.indices]
        self._coders = [owner.coder(info, slab.rule) for info in self._infos]
        self._codec: Codec = slab.rule.codec
        self._rule = slab.rule
        self._skipped: dict[int, Count] = {}  # by place of rows
        dtype = dtypes.by_name(self._infos[0].spec.dtype)
        self._g: Floats = rows.view(np.float32) if dtype.widen is None else np.empty(
            rows.nbytes // dtype.itemsize, np.float32)
        if dtype.widen is not None:
            dtype.widen(self._g, rows.view(np.uint16))
        self._counts = [info.nbytes // dtype.itemsize for info in self._infos]

    def check(self, rank: int) -> None:
        """Refuse a NaN or an infinity, or take note of the rows that are to be skipped."""
        for place, (info, coder, row) in enumerate(
            zip(self._infos, self._coders, self._rows(), strict=True)
        ):
            count = is_skipped(coder, row, info.told, rank, skip=self._rule.skips,
                               codec=self._codec)
            if count is not None:
                self._skipped[place] = count

    def encode(self, take: Take, coding: Coding, seed: tuple[str, int]) -> CodedRows:
        """Encode them, one behind the other."""
        for coder in self._coders:
            coder.settle()
        codec, slab = self._codec, self._slab
        numbers = [seeding.number_of(codec, coder, info.clock, coding.undo)
                   for info, coder in zip(self._infos, self._coders, strict=True)]
        heads, seeds = seeding.of_rows(codec, numbers, seed, slab.unit.number, slab.rows,
                                       [info.key for info in self._infos])
        payloads: list[Bytes] = []
        for place, (info, coder, g, own) in enumerate(
            zip(self._infos, self._coders, self._rows(), seeds, strict=True)
        ):
            if place in self._skipped:
                self._skipped[place]()
                payloads.append(_new(0))
                continue
            pieces = ((0, g.size),)
            (payload,) = coder.encode(codec, g, info.nbytes, pieces, _new, (own,),
                                      feedback=self._rule.feedback, shape=info.shape)
            coding.undo.append(
                partial(coder.put_back, codec, info.nbytes, pieces, (payload,), (own,),
                        feedback=self._rule.feedback)
            )
            payloads.append(payload)
        room = take(sum(payload.nbytes for payload in payloads))
        np.concatenate(payloads, out=room)
        coding.sent_bytes += room.nbytes
        return CodedRows(codec, self._counts, payloads, room, heads, self._skipped.keys())

    def _rows(self) -> list[Floats]:
        found, begin = [], 0
        for count in self._counts:
            found.append(self._g[begin : begin + count])
            begin += count
        return found


def _new(size: int) -> Bytes:
    return np.empty(size, np.uint8)


def _floats(view: memoryview) -> Floats:
    return np.frombuffer(view, np.float32)
