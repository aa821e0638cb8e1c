"""One all-reduce whose arrays travel in few bytes.

First all ranks tell each other what the call is, and whether their arrays can be encoded: see
`codedframe`. When all agree each encodes its own, beside the loop. All ranks have the same bits
afterwards: what each has encoded goes to all, and all add it in the order of ranks; or numbers are
summed where they are halves (f16, bf16 of more than two ranks) or factors (powersgd), as any
all-reduce sums them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from asyncps.aside import Aside, Work
from asyncps.codedframe import Frame, State, Word, agree, framed, frames_of, word_bytes
from asyncps.collectivecall import CollectiveHandle, Step
from asyncps.errors import AsyncPSError, TensorError
from asyncps.fusing import Fusing, Kind
from asyncps.roles import seeding
from asyncps.roles.made import Op, Verb
from asyncps.roles.nonfinite import is_skipped
from asyncps.roles.plan import KeyInfo
from asyncps.roles.rules import Rule
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Elementwise, Floats
from asyncps.tensor.feedback import KeyCoder, Rate
from asyncps.tensor.pool import Bytes
from asyncps.tensor.threads import spread, threads_for
from asyncps_ext import quantize
from asyncps_ext.seeds import seed_of

log = logging.getLogger(__name__)

_GATHER: Kind = (Verb.ALL_GATHER, Op.NONE, "uint8", 0, 1.0)
_LARGEST_F16 = 65504.0
_MOST_TEXT = 200
_PIECE = 1 << 18  # elements that a thread encodes, or adds, at once
HALVES = {"f16": "float16", "bf16": "bfloat16"}


class What(NamedTuple):
    """What is to be summed, and how.

    Attributes:
        fusing: Makes calls.
        aside: Where arrays are encoded.
        handle: Of the call.
        info, rule, coder: Of the key.
        rate: The learning rate that what is not sent is to be worth.
        before: What the key's array was before, if it was another one.
        job: What random places are drawn for.
        ranks: Of the job, that take part at most.
        place: Where the array is, and the sum is to be.
        mean: Divide by how many take part.
        factor: What the result is multiplied by.
        agreed: Called when all ranks have agreed on the call.
        over: Called when it has ended: the key's next may begin.
    """

    fusing: Fusing
    aside: Aside
    handle: CollectiveHandle
    info: KeyInfo
    rule: Rule
    coder: KeyCoder
    rate: Rate | None
    before: str
    job: seeding.Job
    ranks: Sequence[int]
    place: CollectiveHandle
    mean: bool
    factor: float
    agreed: Callable[[], None]
    over: Callable[[], None]


class CodedSum:
    """What all ways have in common.

    Attributes:
        handle: What users wait for; what `place` returns.
    """

    def __init__(self, what: What) -> None:
        self.what = what
        self.codec = what.rule.codec
        self.dtype = dtypes.by_name(dtypes.name_of(what.place.array.dtype))
        self.size: int = what.place.array.size
        self.handle = what.handle
        self.handle.finish_by(self._finish)
        self.count = 0  # of those that take part
        self.is_whole = False  # nothing may be factored
        self.most = 0.0  # no magnitude of the sum is larger, where that was told
        self._drawn = 0  # the largest number of a push of this key that any of them has had
        self._has_ended = False
        self.failed: AsyncPSError | None = None  # this rank, since all have agreed

    def say(self) -> None:
        """Tell all ranks of the call, which they make too."""
        what = self.what
        state, text, largest = State.ANOTHER, what.before, 0.0
        if not what.before:
            try:
                g = self.gradient()
                what.rule.follow(what.coder, what.rate)  # what is told is what will be encoded
                state, text = self.look(g)
                largest = self.largest(g) if state == State.THERE else 0.0
            except Exception as error:  # such as no memory: the others wait
                log.exception("the array of the sum %r cannot be looked at", self.handle.name)
                state, text = State.FAILED, repr(error)[:_MOST_TEXT]
        word = Word(what.fusing.rank, state, "mean" if what.mean else "sum", what.factor,
                    self.dtype.name, what.place.array.shape,
                    f"{self.codec.name} ({self.codec.parameter:g}"
                    f"{', halves' if self.codec.half else ''})", text, largest,
                    what.coder.draws.number)
        what.fusing.post(_GATHER, self.step(word_bytes(word), self._told), [])

    def say_later(self) -> None:
        """As `say`, beside the loop: the call before has ended. Any thread."""

        def say() -> None:
            self.say()
            self.what.fusing.flush_soon()

        self.aside(say)

    def largest(self, g: Floats) -> float:
        """Return the largest magnitude that may be encoded, where the others must know it."""
        return 0.0

    def look(self, g: Floats) -> tuple[State, str]:
        """Return whether this rank's array can be encoded, and what is the matter with it."""
        what = self.what
        try:
            count = is_skipped(what.coder, g, what.info.told, what.fusing.rank,
                               skip=what.rule.skips, codec=self.codec)
        except TensorError as error:
            return State.REFUSED, str(error.got)
        if count is None:
            return State.THERE, ""
        count()
        return State.SKIPPED, ""

    def _told(self, raw: Any) -> None:
        """All have told. On the loop."""
        what = self.what
        words = agree(raw, self.handle.name, what.info.told, what.ranks)
        what.agreed()
        states = {word.state for word in words}
        if State.SKIPPED in states:
            self.end(None, None)
            return
        self.count, self.is_whole = len(words), State.WHOLE in states
        self.most = sum(word.largest for word in words)
        self._drawn = max(word.drawn for word in words)
        what.fusing.agreed(self.handle)
        self.aside(self.move)

    # ---- the ways ----

    def move(self) -> None:
        """Encode this rank's array, and make the call that moves it. Beside the loop."""
        raise NotImplementedError

    def result(self, out: Floats, came: Any) -> None:
        """out = the sum of all."""
        raise NotImplementedError

    def put_back(self) -> None:
        """Let what was encoded be not sent yet: it is part of no sum."""

    # ---- for the ways ----

    def gradient(self) -> Floats:
        """Return this rank's values as float32[size]; only read."""
        flat = self.what.place.array.reshape(-1)
        return flat if self.dtype.widen is None else self.dtype.widened(flat)

    def step(self, array: Any, then: Callable[[Any], None]) -> Step:
        """Return a call that leads to something, unless it fails."""

        def ended(result: Any, error: AsyncPSError | None) -> None:
            if error is not None:
                self.end(None, error)
            else:
                self._guard(lambda: then(result))

        return Step(self.what.fusing, self.handle.name, array, ended)

    def post(self, kind: Kind, array: Any, then: Callable[[Any], None]) -> None:
        """Make such a call. Beside the loop."""
        self.what.fusing.post(kind, self.step(array, then), [])
        self.what.fusing.flush_soon()

    def tried(self, make: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Return what is made, or what tells the others that this rank has failed."""
        try:
            return make()
        except Exception as error:
            log.exception("an array of the sum %r cannot be encoded", self.handle.name)
            self.failed = self._failure(error)  # such as no memory; the others wait
            return otherwise()

    def check_all(self, has_failed: bool) -> None:
        """Go on only if nobody has failed.

        Raises:
            AsyncPSError: Somebody has.
        """
        if self.failed is not None:
            raise self.failed
        if has_failed:
            raise AsyncPSError(f"a rank has failed in the sum {self.handle.name!r}; its own log "
                               "and error say why")

    def aside(self, work: Work) -> None:
        """Do something beside the loop."""
        self.what.aside.do(lambda: self._guard(work))

    def _guard(self, work: Work) -> None:
        """Let what fails end the call, and nothing else."""
        try:
            work()
        except AsyncPSError as error:
            self.end(None, error)
        except Exception as error:
            log.exception("the sum %r failed", self.handle.name)
            self.end(None, self._failure(error))

    def _failure(self, error: Exception) -> AsyncPSError:
        return AsyncPSError(f"the sum {self.handle.name!r} failed: {error!r}")

    def end(self, came: Any, error: AsyncPSError | None) -> None:
        """The call has ended. Any thread."""
        if error is not None:
            try:
                self.put_back()
            except Exception:
                log.exception("what the sum %r has encoded is lost", self.handle.name)
        ended, self._has_ended = self._has_ended, True
        if not ended:
            try:
                self.what.fusing.ended(self.handle, came, error)
            finally:
                self.what.over()

    def _finish(self, came: Any) -> Any:
        """Bring the sum to its place."""
        what, flat = self.what, self.what.place.array.reshape(-1)
        out = flat if self.dtype.widen is None else np.empty(self.size, np.float32)
        if came is None:
            out[:] = 0
        else:
            self.result(out, came)
            factor = what.factor / self.count if what.mean else what.factor
            if factor != 1.0:
                with np.errstate(all="ignore"):
                    out *= np.float32(factor)
        if self.dtype.narrow is not None:
            self.dtype.narrow(flat.view(self.dtype.bits), out)
        return what.place.put()


class Encoded(CodedSum):
    """A sum of payloads of a codec."""

    def __init__(self, what: What) -> None:
        super().__init__(what)
        step = _PIECE if isinstance(self.codec, Elementwise) else self.size
        self.pieces = [(at, min(at + step, self.size)) for at in range(0, self.size, step)]
        self.payloads: list[Bytes] = []  # what was encoded, until all is well

    def encode(self) -> int:
        """Encode this rank's array; return the seed that travels."""
        what = self.what
        what.rule.follow(what.coder, what.rate)
        number = what.coder.draws.next(self._drawn) if self.codec.is_seeded else 0
        heads, self._seeds = seeding.of_chunks(self.codec, number, what.job, what.info.key,
                                               [begin for begin, _ in self.pieces])
        self.payloads = what.coder.encode(
            self.codec, self.gradient(), what.info.nbytes, self.pieces,
            lambda size: np.empty(size, np.uint8), self._seeds, feedback=what.rule.feedback,
            shape=what.info.shape)
        return heads[0]

    def put_back(self) -> None:
        """As `CodedSum.put_back`."""
        payloads, self.payloads = self.payloads, []
        if payloads:
            self.what.coder.put_back(self.codec, self.what.info.nbytes, self.pieces, payloads,
                                     self._seeds, feedback=self.what.rule.feedback)


class Gathered(Encoded):
    """All ranks send all theirs, and all decode and add it."""

    def move(self) -> None:
        """As `CodedSum.move`."""
        self.post(_GATHER, self.tried(self._framed, lambda: framed(0, None)), self._came)

    def _framed(self) -> Bytes:
        seed = self.encode()
        return framed(seed, self.payloads)

    def _came(self, raw: Any) -> None:
        frames = frames_of(np.asarray(raw).reshape(-1).view(np.uint8), self.count)
        self.check_all(any(frame.has_failed for frame in frames))
        parts = [self._cut(frame) for frame in frames]
        self.payloads = []
        self.end((parts, [self._seed(frame) for frame in frames]), None)

    def _seed(self, frame: Frame) -> int:
        return seed_of(frame.seed, 0) if self.codec.is_seeded else 0

    def _cut(self, frame: Frame) -> list[Bytes]:
        """Cut what a rank has sent where its array was cut, and see that it can be decoded."""
        sizes = [frame.payload.nbytes]
        if len(self.pieces) > 1:
            sizes = [self.codec.nbytes(stop - begin) or 0 for begin, stop in self.pieces]
        if sum(sizes) != frame.payload.nbytes:
            raise self.codec.refusal(f"{sum(sizes)} bytes of {self.size} values",
                                     frame.payload.nbytes)
        ends = np.cumsum(sizes).tolist()
        parts = [frame.payload[end - size : end] for size, end in zip(sizes, ends, strict=True)]
        for (begin, stop), part in zip(self.pieces, parts, strict=True):
            self.codec.check(stop - begin, part, self._seed(frame))
        return parts

    def result(self, out: Floats, came: tuple[list[list[Bytes]], list[int]]) -> None:
        """As `CodedSum.result`."""
        done = bytearray(len(self.pieces))

        def add(place: int) -> None:
            begin, stop = self.pieces[place]
            for at, (parts, seed) in enumerate(zip(*came, strict=True)):
                act = self.codec.add if at else self.codec.decode
                act(out[begin:stop], parts[place], seed)

        spread(add, done, threads_for(out.nbytes, len(self.pieces), self.what.coder.threads))


class Halves(Encoded):
    """f16 and bf16: the sum of such numbers in float32, rounded to such numbers once more.

    Of two ranks `Gathered` takes as few bytes, and does not round again.
    """

    def __init__(self, what: What) -> None:
        super().__init__(what)
        self._half = dtypes.by_name(HALVES[self.codec.name])
        self._scale = 1.0  # that the sum is divided by on the wire, so that it is no infinity

    def largest(self, g: Floats) -> float:
        """As `CodedSum.largest`."""
        if self.codec.name != "f16":
            return 0.0
        kept = self.what.coder.residual
        most = quantize.largest(g) + (0.0 if kept is None else quantize.largest(kept))
        return min(most, _LARGEST_F16)

    def move(self) -> None:
        """As `CodedSum.move`."""
        while self.most > _LARGEST_F16 * self._scale:
            self._scale *= 2
        halves = self.tried(self._halves, self._none)
        self.post((Verb.ALL_REDUCE, Op.SUM, self._half.name, 0, 1.0 / self._scale), halves,
                  lambda _: self._came(halves))

    def _halves(self) -> Any:
        self.encode()
        halves = np.zeros(self.size + 1, np.uint16)  # the last: how many have failed
        np.concatenate(self.payloads, out=halves[:-1].view(np.uint8))
        return halves

    def _none(self) -> Any:
        halves = np.zeros(self.size + 1, np.uint16)
        assert self._half.narrow is not None
        self._half.narrow(halves[-1:], np.ones(1, np.float32))
        return halves

    def _came(self, halves: Any) -> None:
        self.check_all(halves[-1] != 0)
        self.payloads = []
        self.end(halves[:-1], None)

    def result(self, out: Floats, came: Any) -> None:
        """As `CodedSum.result`."""
        assert self._half.widen is not None
        self._half.widen(out, came)
        out *= np.float32(self._scale)
