"""Which keys of a store are compressed at a worker, and the encoding of a call's values.

Runs in the caller's thread, when all that can refuse the call there has been asked. What can refuse
it later, before it has a clock, has its values put back into the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.errors import NotYetError
from asyncps.protocol.messages import Key
from asyncps.roles.coded import CodedKey, CodedRows, LazyKey, Payload
from asyncps.roles.coders import Coders
from asyncps.roles.coding import Coding
from asyncps.roles.codingrows import CodingRows, PushedRows
from asyncps.roles.momenta import check_momentum
from asyncps.roles.nonfinite import is_skipped
from asyncps.roles.rates import Rates
from asyncps.roles.rules import Keys, Rule, Words
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Codec, Elementwise, Floats, Skip, Stateful, Take, cut_room
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Bytes, SharedPool
from asyncps.tensor.rowfeedback import RowCoder
from asyncps_ext.seeds import seed_of

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo, Plan, SlabPlan

_MOST = 1 << 32  # elements of a key: indices are u32


class Compression:
    """The rules of one store at one worker, and what each key has not sent.

    Args:
        rank: This worker's.
        workers: How many the job has.
        job: What random places are drawn for: the same at all workers.
        store: The store's number.

    Attributes:
        rates: What is known of the learning rates of its keys.
    """

    def __init__(self, rank: int, workers: int, job: str, store: int) -> None:
        self._rank = rank
        self._workers = workers
        self._seed = (job, store)
        self.rates = Rates()
        self._rules: list[Rule] = []
        self._coders = Coders()

    def add(self, keys: Keys, words: Words) -> None:
        """Add a rule; of several that name a key the last one counts.

        What a key has not sent stays, whatever its codec was.
        """
        self._rules = [rule for rule in self._rules if rule.keys != keys]
        self._rules.append(Rule(keys, words, self._workers))

    @property
    def is_set(self) -> bool:
        """Whether anything is compressed."""
        return bool(self._rules)

    def coder_of(self, key: Key) -> KeyCoder | None:
        """Return what a key is encoded with, if it was pushed or loaded."""
        return self._coders.get(key)

    def rule_of(self, info: KeyInfo) -> tuple[Rule | None, str]:
        """Return the rule by which a key is encoded; or None, and why it goes dense."""
        rule = self._rule(info.key)
        if rule is None:
            return None, "no compression is set for it"
        dtype = dtypes.by_name(info.spec.dtype)
        if dtype.sum != np.float32:
            return None, f"its dtype is {dtype.name}"
        if info.is_table:  # that a push of it is small is seen when it comes
            is_there = not isinstance(rule.codec, Stateful)
            return (rule, "") if is_there else (None, f"{rule.codec.name} is of dense keys")
        if not info.nbytes:
            return None, "it has no elements"
        if info.nbytes < rule.words["small_bytes"]:
            return None, f"smaller than {rule.words['small_bytes']} bytes"
        if info.nbytes // dtype.itemsize > _MOST:
            return None, f"more than {_MOST} elements"
        return rule, ""

    def _rule(self, key: Key) -> Rule | None:
        return next((rule for rule in reversed(self._rules) if rule.names(key)), None)

    def check_tables(self, infos: Sequence[KeyInfo]) -> None:
        """Refuse row-sparse keys that were asked for by name with a codec of dense keys.

        Raises:
            NotYetError: There is one.
        """
        for info in infos:
            rule = self._rule(info.key) if info.is_table else None
            if rule and rule.keys is not None and isinstance(rule.codec, Stateful):
                raise NotYetError(f"{rule.codec.name} of row-sparse keys ({info.key!r}) is not "
                                  "there yet")

    @property
    def is_lr_scaled(self) -> bool:
        """Whether a rule is to follow the learning rate."""
        return any(rule.words["lr_scaled"] for rule in self._rules)

    def coder(self, info: KeyInfo, rule: Rule) -> KeyCoder:
        """Return what a key is encoded with, by its rule."""
        coder = self._coders.of(info.key, info.nbytes // info.dtype.itemsize)
        rule.follow(coder, self.rates.of(info.key))
        return coder

    def _row_coder(self, info: KeyInfo, rule: Rule) -> RowCoder:
        coder = self._coders.of_rows(info.key, math.prod(info.shape[1:]))
        rule.follow(coder, self.rates.of(info.key))
        return coder

    @property
    def coders(self) -> Coders:
        """What each key has not sent."""
        return self._coders

    def follow(self, infos: Mapping[Key, KeyInfo]) -> None:
        """Let what all keys have kept follow the learning rates of now."""
        for key, coder in self._coders:
            if key in infos and (rule := self.rule_of(infos[key])[0]):
                rule.follow(coder, self.rates.of(key))

    def check_momentum(self, hyper: Mapping[str, Any]) -> None:
        """Refuse an optimizer with a momentum where a rule that counts has one.

        Raises:
            ConfigError: It names both.
        """
        for rule in reversed(self._rules):
            if rule.codec.owns_momentum:
                check_momentum(hyper, rule.words)
            if rule.keys is None:
                return

    def encode(
        self, plan: Plan, large: list[Any], slabs: list[Any], take: Take, pool: SharedPool, *,
        lent: bool = False, tables: Sequence[PushedRows] = (),
    ) -> Coding:
        """Encode what of a call's values is compressed, in their places.

        Args:
            plan: Where the keys live.
            large: Byte views of the large keys' values; those encoded become `CodedKey`, those that
                will be as they are sent `LazyKey`.
            slabs: Gathered rows; those encoded become `CodedRows`.
            take: Gives memory that stays until the call has ended.
            pool: Gives memory for less long.
            lent: The values stay as they are until the call has ended, so that a chunk can be
                encoded when it is sent.
            tables: What is pushed of the row-sparse keys; those encoded get their `coded`.

        Raises:
            TensorError: A value that is NaN or infinite, of a key whose rule does not skip these:
                nothing was encoded, no residual changed.
        """
        jobs = [
            (place, _Large(info, rule, self.coder(info, rule), large[place], pool, self._seed))
            for place, ((_, info), rule) in enumerate(zip(plan.large, plan.rules, strict=True))
            if rule is not None
        ]
        rows = [
            (place, _Rows(slab, plan, self, slabs[place]))
            for place, slab in enumerate(plan.slabs) if slab.rule is not None
        ]
        sparse = [
            CodingRows(each, rule, self._row_coder(each.info, rule), self._seed)
            for each, rule in zip(tables, plan.table_rules, strict=True) if rule is not None
        ]
        for _, one in jobs:
            one.check(self._rank)
        for _, some in rows:
            some.check(self._rank)
        for each in sparse:
            each.check(self._rank)
        coding = Coding()
        try:
            for place, one in jobs:
                large[place] = (
                    one.skip() if one.skipped
                    else one.later(take, coding) if lent and isinstance(one.codec, Elementwise)
                    else one.encode(take, coding)
                )
            for place, some in rows:
                slabs[place] = some.encode(take, coding, self._seed)
            for each in sparse:
                each.encode(take, coding)
        except BaseException:
            coding.put_back()
            raise
        return coding


class _Large:
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
        self.skipped = False

    def check(self, rank: int) -> None:
        """Refuse a NaN or an infinity, or take note that it is to be skipped."""
        wide = self._widened()
        try:
            g = _floats(self._view) if wide is None else wide.view(np.float32)
            self.skipped = is_skipped(self._coder, g, self._info.key, rank,
                                      skip=self._rule.skips, codec=self.codec)
        finally:
            if wide is not None:
                self._pool.give(wide)

    def skip(self) -> CodedKey:
        """Let all chunks say that there is no gradient."""
        size = self._info.dtype.itemsize
        return CodedKey({piece.start: Payload(Skip().head(piece.size // size, 0), memoryview(b""))
                         for _, piece in self._info.pieces})

    def encode(self, take: Take, coding: Coding) -> CodedKey:
        """Encode it."""
        info, coder, codec = self._info, self._coder, self.codec
        size = info.dtype.itemsize
        places = [(piece.start, piece.start + piece.size) for _, piece in info.pieces]
        pieces = [(begin // size, stop // size) for begin, stop in places]
        heads, seeds = [0] * len(pieces), [0] * len(pieces)
        if codec.is_seeded:
            push = coder.next_push()
            heads = [seed_of(*self._seed, info.key, push, begin) for begin, _ in pieces]
            seeds = [seed_of(head, 0) for head in heads]
        wide = self._widened()
        try:
            g = _floats(self._view) if wide is None else wide.view(np.float32)
            payloads = coder.encode(codec, g, info.nbytes, pieces, take, seeds,
                                    feedback=self._rule.feedback, shape=info.shape)
        finally:
            if wide is not None:
                self._pool.give(wide)
        coding.undo.append(partial(coder.put_back, codec, info.nbytes, pieces, payloads, seeds))
        coding.sent_bytes += sum(payload.nbytes for payload in payloads)
        return CodedKey({
            begin: Payload(codec.head(stop - start, head), payload.data)
            for (begin, _), (start, stop), head, payload in zip(
                places, pieces, heads, payloads, strict=True)
        })

    def later(self, take: Take, coding: Coding) -> LazyKey:
        """Take memory for what it becomes, and encode each chunk when it is sent.

        Nothing can refuse a chunk any more then, so there is nothing to put back.
        """
        info, codec = self._info, self.codec
        assert isinstance(codec, Elementwise)
        size = info.dtype.itemsize
        pieces = [(piece.start, piece.start + piece.size) for _, piece in info.pieces]
        counts = [(stop - begin) // size for begin, stop in pieces]
        payloads = cut_room(take, [codec.nbytes(count) or 0 for count in counts])
        coding.sent_bytes += sum(payload.nbytes for payload in payloads)

        def encode(place: int) -> Bytes:
            begin, stop = pieces[place]
            wide = self._widened(begin, stop)
            try:
                g = _floats(self._view[begin:stop]) if wide is None else wide.view(np.float32)
                self._coder.encode_piece(codec, g, begin // size, stop - begin, payloads[place],
                                         feedback=self._rule.feedback)
            finally:
                if wide is not None:
                    self._pool.give(wide)
            return payloads[place]

        return LazyKey({begin: place for place, (begin, _) in enumerate(pieces)},
                       lambda place: codec.head(counts[place], 0), encode)

    def _widened(self, begin: int = 0, stop: int | None = None) -> Bytes | None:
        """Return bytes of an f16 or bf16 value as f32, in memory of the pool; None for f32."""
        dtype = dtypes.by_name(self._info.spec.dtype)
        if dtype.widen is None:
            return None
        view = self._view[begin:stop]
        wide = self._pool.take(len(view) // dtype.itemsize * 4)
        dtype.widen(wide.view(np.float32), np.frombuffer(view, np.uint16))
        return wide


class _Rows:
    """The keys of a call that live in one slab and have one rule."""

    def __init__(self, slab: SlabPlan, plan: Plan, owner: Compression, rows: Bytes) -> None:
        assert slab.rule is not None
        self._slab = slab
        self._infos = [plan.infos[index] for index in slab.indices]
        self._coders = [owner.coder(info, slab.rule) for info in self._infos]
        self._codec: Codec = slab.rule.codec
        self._rule = slab.rule
        self._skipped: set[int] = set()  # places of rows
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
            if is_skipped(coder, row, info.key, rank, skip=self._rule.skips, codec=self._codec):
                self._skipped.add(place)

    def encode(self, take: Take, coding: Coding, seed: tuple[str, int]) -> CodedRows:
        """Encode them, one behind the other."""
        codec, slab = self._codec, self._slab
        frame = 0
        seeds = [0] * len(self._coders)
        if codec.is_seeded:
            push = max(coder.next_push() for coder in self._coders)
            frame = seed_of(*seed, slab.unit.number, push)
            seeds = [seed_of(frame, row) for row in slab.rows]
        payloads: list[Bytes] = []
        for place, (info, coder, g, own) in enumerate(
            zip(self._infos, self._coders, self._rows(), seeds, strict=True)
        ):
            if place in self._skipped:
                payloads.append(_new(0))
                continue
            pieces = ((0, g.size),)
            (payload,) = coder.encode(codec, g, info.nbytes, pieces, _new, (own,),
                                      feedback=self._rule.feedback, shape=info.shape)
            coding.undo.append(
                partial(coder.put_back, codec, info.nbytes, pieces, (payload,), (own,))
            )
            payloads.append(payload)
        room = take(sum(payload.nbytes for payload in payloads))
        np.concatenate(payloads, out=room)
        coding.sent_bytes += room.nbytes
        return CodedRows(codec, self._counts, payloads, room, frame, self._skipped)

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
