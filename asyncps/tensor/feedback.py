"""Error feedback: what of a key was not sent yet is added to what comes next.

x = g + e is encoded, and e' = x - D(sent) is kept, in float32. So all that was sent and what is
kept come to the sum of all gradients.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from asyncps.tensor.codecs import Codec, Elementwise, Floats, Pieces, Stateful, Take
from asyncps.tensor.draws import Draws
from asyncps.tensor.pool import Bytes
from asyncps_ext import quantize, reduce

_BLOCK = 1 << 18  # elements whose squares are added at once
# A residual and a gradient that are smaller together have a finite sum, even when another thread
# adds one more in between.
SUMMABLE = 1e38


class Rate(NamedTuple):
    """A learning rate above 0, and the name of the optimizer whose it is."""

    optimizer: str | None
    value: float


class SumPush(NamedTuple):
    """A push that is under way, of which all ranks find out together what is sent.

    Attributes:
        whole: The gradient and what was not sent before, float32[size]; its user's.
        extra: What the codec keeps beside; only to be read.
        number: Of the push.
        kept: What was not sent before, None for nothing.
    """

    whole: Floats
    extra: Floats
    number: int
    kept: Floats | None


class KeyCoder:
    """One key at one worker: what it has not sent, whatever its codec, and what it has.

    Args:
        size: Its elements.
        threads: That may encode it at once.

    Attributes:
        residual: What was not sent, float32[size]; None before the first push, and without
            feedback.
        extra: What a `Stateful` codec keeps beside it, float32; None before its first push.
        codec: The name of the one by which it was encoded last, and whose `extra` and `pushes` are;
            "": none, or nobody knows.
        pushes: How often it was encoded by a `Stateful` codec.
        draws: What numbers pushes have for which something is drawn.
        before_bytes: Of the values that were encoded, as the key stores them.
        sent_bytes: Of what they became.
        encode_s: Seconds that it took.
        skipped: Pushes that were not finite, and that its rounds were skipped for.
        waiting: Of calls that have not encoded all yet, in their order: what finishes each, and
            takes it from here.
    """

    __slots__ = (
        "_bound", "_lock", "_rate", "before_bytes", "codec", "draws", "encode_s", "extra", "pushes",
        "residual", "sent_bytes", "size", "skipped", "threads", "waiting",
    )

    def __init__(self, size: int, threads: int = 1) -> None:
        self.size = size
        self.threads = threads
        self.residual: Floats | None = None
        self.extra: Floats | None = None
        self.codec = ""
        self.pushes = 0
        self.draws = Draws()
        self.before_bytes = 0
        self.sent_bytes = 0
        self.encode_s = 0.0
        self.skipped = 0
        self._rate: Rate | None = None  # that the residual is meant for
        self._bound = 0.0  # no magnitude of what is kept is larger
        self._lock = threading.Lock()  # two threads may push one key
        self.waiting: list[Callable[[], None]] = []

    def settle(self) -> None:
        """Encode what earlier calls have left for later: the next is encoded behind it."""
        while self.waiting:
            try:
                finish = self.waiting[0]
            except IndexError:  # another thread was faster
                return
            finish()

    def follow(self, rate: Rate | None, *, extra: bool = False) -> None:
        """Let the residual be worth at a rate what it was worth at the one before.

        Args:
            rate: The one of now. None: nobody knows, and nothing is changed now, nor when it is
                known again. Neither does the rate of one optimizer say anything of another's.
            extra: What its codec keeps beside is scaled alike.
        """
        if rate == self._rate:
            return
        with self._lock:
            before, self._rate = self._rate, rate
            if rate is None or before is None or before.optimizer != rate.optimizer:
                return
            if before.value == rate.value:
                return
            factor = min(before.value / rate.value, SUMMABLE)
            self._scale(factor, SUMMABLE / factor, extra=extra)

    def _scale(self, factor: float, most: float, *, extra: bool) -> None:
        """Multiply what is kept, cut to magnitudes of at most `most` before that."""
        for kept in (self.residual, self.extra if extra else None):
            if kept is None:
                continue
            if quantize.largest(kept) > most:  # else the next sum could be infinite
                np.clip(kept, -most, most, out=kept)
            kept *= np.float32(factor)
            self._bound = math.inf

    def restore(
        self, residual: Floats | None, pushes: int, rate: Rate | None,
        extra: Floats | None = None, codec: str = "", clock: int = 0,
    ) -> None:
        """Take what was saved, at a clock of the key; the arrays are ours from now on."""
        with self._lock:
            self.residual, self._rate = residual, rate
            self.extra, self.codec = extra, codec
            self.pushes = pushes
            self.draws.restore(pushes, clock)
            self._bound = 0.0 if residual is None and extra is None else math.inf

    def count_nonfinite(self, g: Floats, codec: Codec | None = None) -> tuple[int, int]:
        """Count where a gradient on top of what is kept is no finite number; and the first place.

        To be called before each push. As a rule one look at the gradient is enough: of what is
        kept it is known how large it can be, since no codec keeps more than twice what it was
        given, and one. (dgc: neither its momentum, below the old and the gradient, nor what is not
        sent, below that and the old again.)
        """
        most = quantize.largest(g)
        stateful = codec if isinstance(codec, Stateful) else None
        with self._lock:
            if math.isfinite(most) and most + self._bound > SUMMABLE:
                kept = (self.residual,
                        self.extra if stateful is not None and stateful.scales_extra else None)
                self._bound = max((quantize.largest(each) for each in kept if each is not None),
                                  default=0.0)
            if most + self._bound <= SUMMABLE:
                self._bound = 2 * (self._bound + most) + 1
                return 0, -1
            self._bound = math.inf
            if stateful is not None:
                extra = self.extra if self.codec in ("", stateful.name) else None
                return stateful.count_nonfinite(g, self.residual, extra)
            bad = quantize.count_nonfinite(g, self.residual)
            return bad, quantize.first_nonfinite(g, self.residual) if bad else -1

    def encode(
        self, codec: Codec, g: Floats, nbytes: int, pieces: Pieces, take: Take,
        seeds: Sequence[int], *, feedback: bool = True, shape: tuple[int, ...] = (),
    ) -> list[Bytes]:
        """Return what is sent, a payload a piece; see `Codec.encode`.

        Args:
            codec: How it is sent.
            g: float32[size], finite; only read.
            nbytes: Of the value as the key stores it.
            pieces, take, seeds: As `Codec.encode` has them.
            feedback: Whether what is not sent is kept; else it is dropped, that of earlier pushes
                too.
            shape: Of the key.
        """
        with self._lock:
            began = time.perf_counter()
            kept = self._kept(feedback)
            self._become(codec)
            if isinstance(codec, Stateful):
                payloads = self._encode_with(codec, g, kept, shape, pieces, take, seeds)
            elif isinstance(codec, Elementwise):
                payloads = codec.encode(g, kept, pieces, take, seeds, self.threads)
            else:
                payloads = codec.encode(g, kept, pieces, take, seeds)
            self._count(began, nbytes, sum(payload.nbytes for payload in payloads))
            return payloads

    def _encode_with(
        self, codec: Stateful, g: Floats, kept: Floats | None, shape: tuple[int, ...],
        pieces: Pieces, take: Take, seeds: Sequence[int],
    ) -> list[Bytes]:
        extra = self._extra_of(codec, shape)
        if kept is None:  # what is not sent is lost
            kept = np.zeros(self.size, np.float32)
        self.pushes += 1
        try:
            return codec.encode_with(g, kept, extra, shape, self.pushes, pieces, take, seeds)
        except BaseException:
            self.pushes -= 1
            self._bound = math.inf
            raise

    def _become(self, codec: Codec) -> None:
        """Forget what another codec has kept beside, and how often it was asked.

        A checkpoint from before does not say whose they are. But whoever counts pushes for what it
        keeps beside has kept something, and others have not.
        """
        if self.codec == codec.name:
            return
        if self.codec or not isinstance(codec, Stateful):
            self.extra = None
        if self.extra is None and isinstance(codec, Stateful):
            self.pushes = 0
        self.codec = codec.name

    def encode_piece(
        self, codec: Elementwise, g: Floats, begin: int, nbytes: int, payload: Bytes, *,
        feedback: bool = True,
    ) -> None:
        """Encode some elements, the first of which is the key's `begin`th, into `payload`.

        Args:
            codec, g, feedback: As `encode` has them; of these elements.
            begin: Where they are in the key.
            nbytes: Of their values as the key stores them.
            payload: As many bytes as the codec says.
        """
        with self._lock:
            began = time.perf_counter()
            kept = self._kept(feedback)
            self._become(codec)
            codec.write(payload, None if kept is None else kept[begin : begin + g.size], g)
            self._count(began, nbytes, payload.nbytes)

    @property
    def keeps_something(self) -> bool:
        """Whether anything would be lost with it."""
        return self.residual is not None or self.extra is not None

    def pushes_of(self, codec: Codec) -> int:
        """Return how often the key was encoded by a codec since it last became it."""
        with self._lock:
            return self.pushes if self.codec == codec.name else 0

    def begin_sum(
        self, codec: Stateful, g: Floats, shape: tuple[int, ...], *, feedback: bool = True
    ) -> SumPush:
        """Begin a push of which all ranks together find out what is sent.

        Args:
            codec, g, shape, feedback: As `encode` has them.
        """
        with self._lock:
            kept = self.residual if feedback else None
            whole = np.array(g, np.float32)
            if kept is not None:
                reduce.add(whole, kept)
            self._become(codec)
            extra = self._extra_of(codec, shape)
            self.residual, self._bound = None, 0.0
            self.pushes += 1
            return SumPush(whole, extra, self.pushes, kept)

    def end_sum(
        self, codec: Stateful, left: Floats | None, extra: Floats | None, nbytes: int, sent: int,
        took_s: float,
    ) -> None:
        """End such a push.

        Args:
            codec: As `begin_sum` had it; another one may be the key's now.
            left: What was not sent, ours from now on; None: nothing, or it is dropped.
            extra: What the codec keeps beside; None: what it has.
            nbytes, sent: Bytes of the value, and of what was sent.
            took_s: Seconds that computing took.
        """
        with self._lock:
            if extra is not None and self.codec == codec.name:
                self.extra = extra
            self.before_bytes += nbytes
            self.sent_bytes += sent
            self.encode_s += took_s
        if left is not None:
            self.put_in(left)

    def undo_sum(self, codec: Stateful, push: SumPush) -> None:
        """End such a push that was none: what was kept before is kept again."""
        with self._lock:
            if self.codec == codec.name:
                self.pushes -= 1
        if push.kept is not None:
            self.put_in(push.kept)

    def _extra_of(self, codec: Stateful, shape: tuple[int, ...]) -> Floats:
        """Return what a codec keeps beside: zeros at first, or for what a checkpoint had."""
        size = codec.extra_size(shape)
        if self.extra is None or self.extra.size != size:
            self.extra = np.zeros(size, np.float32)
        return self.extra

    def _kept(self, feedback: bool) -> Floats | None:
        """Return the residual to encode with: made if need be, dropped without feedback."""
        if not feedback:
            self.residual, self._bound = None, 0.0
        elif self.residual is None:
            self.residual = np.zeros(self.size, np.float32)
        return self.residual

    def _count(self, began: float, nbytes: int, sent: int) -> None:
        self.before_bytes += nbytes
        self.sent_bytes += sent
        self.encode_s += time.perf_counter() - began

    def put_back(
        self, codec: Codec, nbytes: int, pieces: Pieces, payloads: Sequence[Bytes],
        seeds: Sequence[int], *, feedback: bool = True,
    ) -> None:
        """Take note that these will not be sent: what they stand for is kept, for the next.

        Args:
            codec, nbytes, pieces, payloads, seeds: As they were encoded.
            feedback: As `encode` had it; without it nothing is kept. That nothing is kept now says
                nothing: what was may have been taken out meanwhile.
        """
        with self._lock:
            self.before_bytes -= nbytes
            self.sent_bytes -= sum(payload.nbytes for payload in payloads)
            if isinstance(codec, Stateful) and self.codec == codec.name:
                self.pushes -= 1
            if not feedback:
                return
            if self.residual is None:
                self.residual = np.zeros(self.size, np.float32)
            self._bound = math.inf
            for (begin, stop), payload, seed in zip(pieces, payloads, seeds, strict=True):
                codec.add(self.residual[begin:stop], payload, seed)

    def take_out(self) -> Floats | None:
        """Return what was not sent, None for nothing; nothing is kept any more.

        A codec that keeps something beside counts from the start, since that is gone.
        """
        with self._lock:
            kept, self.residual, self.extra = self.residual, None, None
            self.codec, self._bound = "", 0.0
            return kept

    def put_in(self, kept: Floats) -> None:
        """Keep what was taken out, beside what may have come since; it is ours from now on."""
        with self._lock:
            if self.residual is not None:
                kept += self.residual
            self.residual, self._bound = kept, math.inf

    @property
    def saved_pushes(self) -> int:
        """How often it was pushed, as a checkpoint says it."""
        return self.draws.number if self.extra is None else self.pushes

    def paid(self, link_bytes_s: float | None) -> bool | None:
        """Tell whether the bytes saved would have taken longer than encoding did.

        Args:
            link_bytes_s: Of the link, in bytes a second; None: unknown.

        Returns:
            None while nothing was encoded, or the link is unknown.
        """
        with self._lock:
            if link_bytes_s is None or not self.before_bytes:
                return None
            return self.before_bytes - self.sent_bytes > self.encode_s * link_bytes_s

    def error_norm(self) -> float:
        """Return the l2 norm of what was not sent."""
        with self._lock:
            if self.residual is None:
                return 0.0
            blocks = (self.residual[at : at + _BLOCK] for at in range(0, self.size, _BLOCK))
            return math.sqrt(sum(float(np.square(block, dtype=np.float64).sum())
                                 for block in blocks))
