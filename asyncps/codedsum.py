"""One all-reduce whose arrays travel in few bytes.

All ranks have the same bits afterwards: what each has encoded goes to all, and all add it in the
order of ranks; or numbers are summed where they are halves (f16, bf16 of more than two ranks) or
factors (powersgd), as any all-reduce sums them.

A rank whose gradient is not finite says so instead of an array. So all hear of it, nobody waits,
and what is not sent yet is at all ranks what it was before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from asyncps.codedframe import OK, REFUSED, SKIPPED, Frame, Words, common, framed, parsed
from asyncps.collectivecall import CollectiveHandle, Step
from asyncps.errors import AsyncPSError, TensorError
from asyncps.fusing import Fusing, Kind
from asyncps.roles import seeding
from asyncps.roles.made import Op, Verb
from asyncps.roles.nonfinite import is_skipped
from asyncps.roles.plan import KeyInfo
from asyncps.roles.rules import Rule
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Elementwise, Floats, Pieces
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import Bytes
from asyncps.tensor.threads import spread, threads_for

_PIECE = 1 << 18  # elements that a thread encodes, or adds, at once
_HALVES = {"f16": "float16", "bf16": "bfloat16"}


class What(NamedTuple):
    """What is to be summed, and how.

    Attributes:
        fusing: Makes calls.
        name: Of the call.
        info, rule, coder: Of the key.
        job: What random places are drawn for.
        rank, world: This rank among those that take part at most.
        place: Where the array is, and the sum is to be.
        mean: Divide by how many take part.
        factor: What the result is multiplied by.
    """

    fusing: Fusing
    name: str
    info: KeyInfo
    rule: Rule
    coder: KeyCoder
    job: seeding.Job
    rank: int
    world: int
    place: CollectiveHandle
    mean: bool
    factor: float


class CodedSum:
    """What all ways have in common.

    Attributes:
        handle: What users wait for; what `place` returns.
    """

    def __init__(self, what: What) -> None:
        self.what = what
        self.codec = what.rule.codec
        self.dtype = dtypes.by_name(dtypes.name_of(what.place.array.dtype))
        self.handle = CollectiveHandle(what.fusing, what.name, what.place.array, None, self._finish)
        self.size = what.place.array.size
        self.undo: Callable[[], None] | None = None

    def begin(self) -> None:
        """Encode, and make the call."""
        raise NotImplementedError

    def result(self, out: Floats, came: Any) -> int:
        """out = the sum of all; return of how many."""
        raise NotImplementedError

    # ---- for the ways ----

    def gradient(self) -> Floats:
        """Return this rank's values as float32[size]; only read."""
        flat = self.what.place.array.reshape(-1)
        return flat if self.dtype.widen is None else self.dtype.widened(flat)

    def look(self, g: Floats) -> tuple[int, str]:
        """Return whether it can be sent, and what is the matter with it."""
        what = self.what
        try:
            count = is_skipped(what.coder, g, what.info.told, what.rank, skip=what.rule.skips,
                               codec=self.codec)
        except TensorError as error:
            return REFUSED, str(error.got)
        if count is None:
            return OK, ""
        count()
        return SKIPPED, ""

    def pieces(self) -> Pieces:
        """Return where the array is cut: only what is encoded element by element."""
        step = _PIECE if isinstance(self.codec, Elementwise) else self.size
        return [(at, min(at + step, self.size)) for at in range(0, self.size, step)]

    def encode(
        self, g: Floats, pieces: Pieces, take: Callable[[int], Bytes], seeds: Sequence[int]
    ) -> list[Bytes]:
        """Encode, so that `put_back` undoes it."""
        what = self.what
        payloads = what.coder.encode(self.codec, g, what.info.nbytes, pieces, take, seeds,
                                     feedback=what.rule.feedback, shape=what.info.shape)
        self.undo = partial(self._undo_encoding, pieces, payloads, seeds)
        return payloads

    def _undo_encoding(
        self, pieces: Pieces, payloads: Sequence[Bytes], seeds: Sequence[int]
    ) -> None:
        """Let what is not sent be what it was before the call."""
        what = self.what
        what.coder.put_back(self.codec, what.info.nbytes, pieces, payloads, seeds,
                            feedback=what.rule.feedback)
        if what.rule.feedback:
            what.coder.put_in(-self.gradient())

    def post(
        self, kind: Kind, array: Any, then: Callable[[Any, AsyncPSError | None], None]
    ) -> None:
        """Make a call that leads to something."""
        what = self.what
        try:
            what.fusing.post(kind, Step(what.fusing, what.name, array, then), [])
        except BaseException:
            self.put_back()
            raise

    def put_back(self) -> None:
        """What was encoded will not be part of a sum: the call was none."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()

    def end(self, came: Any, error: AsyncPSError | None) -> None:
        """The call has ended. Any thread."""
        if error is not None:
            self.put_back()
        self.undo = None
        self.what.fusing.ended(self.handle, came, error)

    def check(self, codes: dict[int, int], texts: dict[int, str]) -> bool:
        """Tell whether there is a sum: nobody skips it.

        Raises:
            TensorError: A rank has refused its gradient.
        """
        for rank, code in codes.items():
            if code == REFUSED:
                raise TensorError(
                    "a gradient that is to be compressed is not finite", key=self.what.info.told,
                    rank=rank, expected="no NaN and no infinity", got=texts.get(rank))
        if SKIPPED in codes.values():
            self.put_back()
            return False
        return True

    def _finish(self, came: Any) -> Any:
        """Bring the sum to its place."""
        what, flat = self.what, self.what.place.array.reshape(-1)
        out = flat if self.dtype.widen is None else np.empty(self.size, np.float32)
        count = self.result(out, came)
        factor = what.factor / count if what.mean and count else what.factor
        if factor != 1.0:
            with np.errstate(all="ignore"):
                out *= np.float32(factor)
        if self.dtype.narrow is not None:
            self.dtype.narrow(flat.view(self.dtype.bits), out)
        return what.place.put()


class Gathered(CodedSum):
    """All ranks send all theirs, and all decode and add it."""

    def begin(self) -> None:
        """As `CodedSum.begin`."""
        what, pieces = self.what, self.pieces()
        heads, seeds = seeding.of_chunks(self.codec, what.coder, what.job, what.info.key,
                                         [begin for begin, _ in pieces])
        g = self.gradient()
        state, text = self.look(g)
        payloads: list[Bytes] = []
        if state == OK:
            payloads = self.encode(g, pieces, lambda size: np.empty(size, np.uint8), seeds)
        elif text:
            payloads = [np.frombuffer(text.encode(), np.uint8)]
        words = Words(int(Op.MEAN if what.mean else Op.SUM), what.factor, self.dtype.name,
                      what.place.array.shape)
        frame = framed(what.rank, state, words, self.codec.head(self.size, heads[0]), payloads)
        self.post((Verb.ALL_GATHER, Op.NONE, "uint8", 0, 1.0), frame, self._came)

    def _came(self, raw: Any, error: AsyncPSError | None) -> None:
        if error is not None:
            return self.end(None, error)
        try:
            frames = parsed(np.asarray(raw).reshape(-1).view(np.uint8))
            common(frames, self.what.name)
            is_sum = self.check({frame.rank: frame.state for frame in frames},
                                {frame.rank: frame.text for frame in frames})
        except AsyncPSError as failed:
            return self.end(None, failed)
        self.end(frames if is_sum else (), None)

    def result(self, out: Floats, came: Sequence[Frame]) -> int:
        """As `CodedSum.result`."""
        if not came:
            out[:] = 0
            return 0
        pieces = self.pieces()
        payloads = [_cut(frame, pieces, self.size) for frame in came]
        done = bytearray(len(pieces))

        def add(place: int) -> None:
            begin, stop = pieces[place]
            for at, frame in enumerate(came):
                codec, seed, payload = frame.codec, frame.seed, payloads[at][place]
                codec.check(stop - begin, payload, seed)
                act = codec.add if at else codec.decode
                act(out[begin:stop], payload, seed)

        spread(add, done, threads_for(out.nbytes, len(pieces), self.what.coder.threads))
        return len(came)


class Halves(CodedSum):
    """f16 and bf16: the sum of such numbers in float32, rounded to such numbers once more.

    Of two ranks `Gathered` takes as few bytes, and does not round again.
    """

    def begin(self) -> None:
        """As `CodedSum.begin`."""
        what = self.what
        self._half = dtypes.by_name(_HALVES[self.codec.name])
        # The sum of the largest float16 of all ranks is one again when it is divided by this.
        self._scale = float(1 << (what.world - 1).bit_length()) if what.world > 1 else 1.0
        halves = np.zeros(self.size + what.world, np.uint16)
        g = self.gradient()
        state, _ = self.look(g)
        if state == OK:
            pieces = self.pieces()
            payloads = self.encode(g, pieces, lambda size: np.empty(size, np.uint8),
                                   [0] * len(pieces))
            np.concatenate(payloads, out=halves[: self.size].view(np.uint8))
        assert self._half.narrow is not None
        slot = self.size + what.rank
        self._half.narrow(halves[slot : slot + 1], np.array([1 + state], np.float32))
        self._sent = halves
        self.post((Verb.ALL_REDUCE, Op.SUM, self._half.name, 0, 1.0 / self._scale), halves,
                  self._came)

    def _came(self, _: Any, error: AsyncPSError | None) -> None:
        if error is not None:
            return self.end(None, error)
        slots = self._half.widened(self._sent[self.size :])
        codes = codes_of(slots * np.float32(self._scale))
        try:
            is_sum = self.check(codes, {})
        except AsyncPSError as failed:
            return self.end(None, failed)
        self.end(len(codes) if is_sum else 0, None)

    def result(self, out: Floats, came: int) -> int:
        """As `CodedSum.result`."""
        if came:
            assert self._half.widen is not None
            self._half.widen(out, self._sent[: self.size])
            out *= np.float32(self._scale)
        else:
            out[:] = 0
        return came


def codes_of(slots: Floats) -> dict[int, int]:
    """Return what each rank has said that takes part: its slot has one more."""
    return {rank: int(slot) - 1 for rank, slot in enumerate(slots.tolist()) if slot}


def _cut(frame: Frame, pieces: Pieces, size: int) -> list[Bytes]:
    """Cut what a rank has sent where its array was cut."""
    if len(pieces) == 1:
        return [frame.payload]
    sizes = [frame.codec.nbytes(stop - begin) or 0 for begin, stop in pieces]
    if sum(sizes) != frame.payload.nbytes:
        raise frame.codec.refusal(f"{sum(sizes)} bytes of {size} values", frame.payload.nbytes)
    ends = np.cumsum(sizes).tolist()
    return [frame.payload[end - one : end] for one, end in zip(sizes, ends, strict=True)]


class Last(CodedSum):
    """The sum of arrays as they are, with what was kept while their key was compressed."""

    def begin(self) -> None:
        """As `CodedSum.begin`."""
        what = self.what
        flat = what.place.array.reshape(-1)
        self._kept = what.coder.take_out()
        if self._kept is not None:
            self._add(flat, self._kept)
        what.info.dense_bytes += what.info.nbytes
        op = Op.MEAN if what.mean else Op.SUM
        self.undo = self._undo
        self.post((Verb.ALL_REDUCE, op, self.dtype.name, 0, what.factor), what.place.array,
                  lambda _, error: self.end(None, error))

    def _undo(self) -> None:
        if self._kept is not None:
            self._add(self.what.place.array.reshape(-1), -self._kept)
            self.what.coder.put_in(self._kept)

    def _finish(self, came: Any) -> Any:
        return self.what.place.put()

    def _add(self, flat: Any, more: Floats) -> None:
        if self.dtype.narrow is None:
            flat += more
        else:
            wide = self.dtype.widened(flat)
            wide += more
            self.dtype.narrow(flat.view(self.dtype.bits), wide)
