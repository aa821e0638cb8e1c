"""Which sums between ranks travel in few bytes, and what each rank has not sent of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from asyncps.aside import Aside
from asyncps.codedfactors import Factored
from asyncps.codedsum import HALVES, CodedSum, Gathered, Halves, What
from asyncps.collectivecall import CollectiveHandle, Step
from asyncps.errors import AsyncPSError, ClusterError, ConfigError, Disagreement
from asyncps.fusing import Fusing
from asyncps.roles import momenta, rates
from asyncps.roles.coding import Coding
from asyncps.roles.compressing import Compression
from asyncps.roles.ending import Last
from asyncps.roles.gains import gains
from asyncps.roles.made import Op, Verb
from asyncps.roles.plan import KeyInfo
from asyncps.roles.rules import Keys, Rule, Words
from asyncps.tensor import codecs
from asyncps.tensor.codecs import KINDS
from asyncps.tensor.codecs.powersgd import PowerSGD
from asyncps.tensor.dtypes import Array
from asyncps.tensor.pool import Bytes
from asyncps.values import Key, key_spec, named_keys

Gather = Callable[[Array], Array]  # of all ranks, one behind the other

_MOST_INFOS = 1 << 16  # keys that are told of; names of calls may be new each time


class SummedKey(KeyInfo):
    """An array that all ranks sum, again and again, under one name."""

    __slots__ = ()

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """It is not cut between servers."""
        return [(0, self.nbytes // self.dtype.itemsize)]


class CodedSums:
    """The compressed sums of one communicator, or of one store. Any thread.

    Args:
        fusing: Makes calls.
        ranks: Of the job, that take part.
        seed: What random places are drawn for, the same at all ranks: the job, and a number.
        threads: That may work on an array at once.
    """

    def __init__(
        self, fusing: Fusing, ranks: Sequence[int], seed: tuple[str, int], threads: int
    ) -> None:
        self._fusing = fusing
        self._ranks = ranks
        self._seed = seed
        self._aside = Aside()
        self._compression = Compression(fusing.rank, len(ranks), *seed, threads)
        self._infos: dict[Key, SummedKey] = {}
        self._told: dict[Key, Key] = {}
        self._hyper: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        # Of the keys of which a call has begun that the next waits for: what waits.
        self._turns: dict[Key, deque[CodedSum]] = {}

    # ---- rules ----

    def set(self, spec: object, keys: Any, gather: Gather, *, default: bool = False) -> None:
        """Encode the sums of some keys from now on; all ranks say the same.

        Args:
            spec, keys: As users say it.
            gather: Brings what all ranks say.
            default: It is of all keys, and all other words go before it.

        Raises:
            ConfigError: What is said cannot be.
            Disagreement: Another rank says something else.
        """
        refused: Exception | None = None
        said = b""
        try:
            named, words = self._checked(spec, keys, default=default)
            said = msgspec.json.encode((named, words, default), order="sorted")
        except Exception as error:  # noqa: BLE001 - raised when the others have heard of it
            refused = error
        every = self._told_by_all(gather, self._fusing.rank, said)
        if refused is not None:
            raise refused
        if len(every) < len(self._ranks):
            raise ClusterError("a compression is set by all ranks, and some have joined",
                               expected=len(self._ranks), got=len(every))
        first = min(every)
        for rank, other in every.items():
            if other != every[first]:
                raise Disagreement(f"ranks {first} and {rank} set different compressions",
                                   rank=rank, expected=_shown(every[first]), got=_shown(other))
        self._compression.add(named, words, default=default)

    def _checked(self, spec: object, keys: Any, *, default: bool) -> tuple[Keys, Words]:
        words = codecs.checked(spec)
        if words["pull"] is not None:
            raise ConfigError("pull of a compression: nothing is pulled without servers",
                              expected="None", got=words["pull"])
        self._check_hyper(self._hyper, words)
        named = named_keys(keys)
        if default:
            self._compression.check_default(words)
        return named, words

    @staticmethod
    def _told_by_all(gather: Gather, rank: int, said: bytes) -> dict[int, bytes]:
        told = gather(np.array([[rank, len(said)]], np.int64)).tolist()
        every, found, begin = gather(np.frombuffer(said, np.uint8)).tobytes(), {}, 0
        for other, size in told:
            found[other] = every[begin : begin + size]
            begin += size
        return found

    def _check_hyper(self, hyper: Mapping[str, Any], words: Words | None = None) -> None:
        if self._compression.is_lr_scaled or (words is not None and words["lr_scaled"]):
            rates.check_rate(hyper.get("learning_rate"))
        kind = None if words is None else KINDS.get(words["type"])
        if words is not None and kind is not None and kind.owns_momentum:
            momenta.check_momentum(hyper, words)
        self._compression.check_momentum(hyper)

    @property
    def is_set(self) -> bool:
        """Whether anything is compressed."""
        return self._compression.is_set

    def use_own(self, hyper: Mapping[str, Any]) -> None:
        """A trainer steps, with these hyper-parameters.

        Raises:
            ConfigError: They do not go together with a compression.
        """
        self._check_hyper(hyper)
        self._hyper = hyper
        self._compression.rates.use_own(hyper.get("learning_rate"))

    def let_stand(self, names: Mapping[Key, Key]) -> None:
        """Let each of these keys stand for one of the user's own."""
        self._told.update(names)
        for key in names.keys() & self._infos.keys():
            self._infos[key].told = names[key]

    def unsent(self) -> list[Key]:
        """Return the keys, as users know them, of which something is kept here."""
        return [self._told.get(key, key) for key in self._compression.coders.unsent()]

    def report(self) -> dict[Key, dict[str, Any]]:
        """Say of each key how it is sent, and what that came to."""
        return gains(self._compression, list(self._infos.values()), looks=False)

    # ---- sums ----

    def know(self, key: Key, array: Array) -> None:
        """There is such a key."""
        self._infos.setdefault(key, self._info(key, array))

    def look(self) -> None:
        """Warn of words that no key is named by."""
        if self._compression.has_fresh:
            self._compression.look(self._infos)

    def begin(
        self, key: Key, name: str, place: CollectiveHandle, *, mean: bool, factor: float
    ) -> CollectiveHandle | None:
        """Begin a sum in few bytes.

        Args:
            key: Whose.
            name: Of the call.
            place: The array, and the way to where the sum is to be.
            mean: Divide by how many take part.
            factor: What the result is multiplied by.

        Returns:
            The call's handle; None if this array is to travel as it is.
        """
        if not self._compression.speaks_of(self._told.get(key, key)):
            return None
        info = self._info(key, place.array)
        rule, _ = self._compression.rule_of(info)
        if rule is None:
            kept = self._last_of(info)
            if kept is None:
                self._count_dense(info)
                return None
            return self._begin_last(info, kept, name, place, mean=mean, factor=factor)
        handle = CollectiveHandle(self._fusing, name, place.array, None)
        self._fusing.begin_several(handle)  # its name is ours, before anything changes
        try:
            self._begin(key, self._what(info, rule, handle, place, mean=mean, factor=factor))
        except BaseException:
            self._fusing.forget(handle)
            raise
        return handle

    def _what(
        self, info: SummedKey, rule: Rule, handle: CollectiveHandle, place: CollectiveHandle, *,
        mean: bool, factor: float,
    ) -> What:
        key, before = info.key, ""
        coder, known = self._compression.coder_of(key), self._infos.get(key)
        if coder is not None and (
            coder.size != place.array.size or (known is not None and known.shape != info.shape)
        ):
            if coder.keeps_something:
                before = f"{coder.size} elements" if known is None else f"shape {known.shape}"
            else:
                self._compression.coders.forget(key)
        if coder is None or not before:
            coder = self._compression.coders.of(key, place.array.size)
        return What(self._fusing, self._aside, handle, info, rule, coder,
                    self._compression.rates.of(key), before, self._seed, self._ranks, place, mean,
                    factor, lambda: self._learn(info), lambda: self._next(key))

    def _learn(self, info: SummedKey) -> None:
        """All ranks have summed such an array."""
        if info.key in self._infos or len(self._infos) < _MOST_INFOS:
            self._infos[info.key] = info

    def _begin(self, key: Key, what: What) -> None:
        call: CodedSum
        if isinstance(what.rule.codec, PowerSGD):
            call = Factored(what)
        elif what.rule.codec.name in HALVES and len(self._ranks) > 2:
            call = Halves(what)
        else:
            call = Gathered(what)
        # The calls of one key go one after the other: each knows what the one before has kept.
        with self._lock:
            waiting = self._turns.get(key)
            if waiting is not None:
                waiting.append(call)
                return
            self._turns[key] = deque()
        try:
            call.say()
        except BaseException:
            self._next(key)
            raise

    def _next(self, key: Key) -> None:
        """A key's call has ended: begin the next. Any thread."""
        with self._lock:
            waiting = self._turns.get(key)
            if not waiting:
                self._turns.pop(key, None)
                return
            call = waiting.popleft()
        call.say_later()

    def _last_of(self, info: SummedKey) -> Last | None:
        """Return what takes along what a key has kept, if its compression has ended."""
        coder = self._compression.coder_of(info.key)
        known = self._infos.get(info.key)
        fits = coder is not None and coder.size * info.dtype.itemsize == info.nbytes and (
            known is None or known.shape == info.shape)
        return self._compression.last_of(info) if fits else None

    def _begin_last(
        self, info: SummedKey, last: Last, name: str, place: CollectiveHandle, *, mean: bool,
        factor: float,
    ) -> CollectiveHandle:
        """Begin the sum of an array as it is, with what was kept of it."""
        array, coding = place.array, Coding()
        room = np.empty_like(array)

        def finish(_: Any) -> Any:
            np.copyto(array, room)
            return place.put()

        handle = CollectiveHandle(self._fusing, name, room, None, finish)

        def ended(_: Any, error: AsyncPSError | None) -> None:
            if error is not None:
                coding.put_back()
            self._fusing.ended(handle, None, error)

        self._fusing.begin_several(handle)
        try:
            last.write(_bytes(room), _bytes(array), coding)
            op = Op.MEAN if mean else Op.SUM
            self._fusing.post((Verb.ALL_REDUCE, op, info.spec.dtype, 0, factor),
                              Step(self._fusing, name, room, ended), [])
        except BaseException:
            coding.put_back()
            self._fusing.forget(handle)
            raise
        self._count_dense(info)
        return handle

    def _count_dense(self, info: SummedKey) -> None:
        """Take note of an array that travels as it is; of names without end not of all."""
        known = self._infos.get(info.key)
        if known is None and len(self._infos) < _MOST_INFOS:
            known = self._infos.setdefault(info.key, info)
        if known is not None:
            known.dense_bytes += info.nbytes

    def _info(self, key: Key, array: Array) -> SummedKey:
        info = self._infos.get(key)
        if info is None or info.shape != array.shape or info.dtype != array.dtype:
            before, info = info, SummedKey(key_spec(key, array), [])
            info.told = self._told.get(key, key)
            info.dense_bytes = 0 if before is None else before.dense_bytes
        return info


def _bytes(array: Array) -> Bytes:
    found: Bytes = array.reshape(-1).view(np.uint8)
    return found


def _shown(said: bytes) -> str:
    return said.decode() if said else "something that was refused there"
