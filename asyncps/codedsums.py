"""Which sums between ranks travel in few bytes, and what each rank has not sent of them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from asyncps.codedfactors import Factored
from asyncps.codedsum import CodedSum, Gathered, Halves, Last, What
from asyncps.collectivecall import CollectiveHandle
from asyncps.errors import (
    AsyncPSError,
    ConfigError,
    Disagreement,
    ShapeMismatch,
)
from asyncps.fusing import Fusing
from asyncps.roles import momenta, rates
from asyncps.roles.compressing import Compression
from asyncps.roles.gains import gains
from asyncps.roles.plan import KeyInfo
from asyncps.roles.rules import Keys, Rule, Words
from asyncps.tensor import codecs
from asyncps.tensor.codecs import KINDS
from asyncps.tensor.codecs.powersgd import PowerSGD
from asyncps.tensor.dtypes import Array
from asyncps.values import Key, as_keys, check_text, key_spec

Gather = Callable[[Array], Array]  # of all ranks, one behind the other

_HALVES = ("f16", "bf16")  # of more than two ranks they are summed as such
_ENDED = Rule(None, codecs.checked(None), 1)  # what goes with what was kept, as it is


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
        rank, world: This rank, and how many there are.
        seed: What random places are drawn for, the same at all ranks: the job, and a number.
        threads: That may work on an array at once.
    """

    def __init__(
        self, fusing: Fusing, rank: int, world: int, seed: tuple[str, int], threads: int
    ) -> None:
        self._fusing = fusing
        self._rank = rank
        self._world = world
        self._seed = seed
        self._compression = Compression(rank, world, *seed, threads)
        self._infos: dict[Key, SummedKey] = {}
        self._told: dict[Key, Key] = {}
        self._hyper: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        # Of the keys of which a call has begun that the next waits for: what waits.
        self._turns: dict[Key, deque[Factored]] = {}

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
        refused: AsyncPSError | None = None
        said = b""
        try:
            named, words = self._checked(spec, keys, default=default)
            said = msgspec.json.encode((named, words, default), order="sorted")
        except AsyncPSError as error:
            refused = error  # the others shall hear of it, and not wait
        every = self._told_by_all(gather, said)
        if refused is not None:
            raise refused
        for rank, other in enumerate(every):
            if other != every[0]:
                raise Disagreement(f"ranks 0 and {rank} set different compressions", rank=rank,
                                   expected=_shown(every[0]), got=_shown(other))
        self._compression.add(named, words, default=default)

    def _checked(self, spec: object, keys: Any, *, default: bool) -> tuple[Keys, Words]:
        words = codecs.checked(spec)
        if words["pull"] is not None:
            raise ConfigError("pull of a compression: nothing is pulled without servers",
                              expected="None", got=words["pull"])
        self._check_hyper(self._hyper, words)
        named = keys
        if keys is not None and not isinstance(keys, str):
            named = list(as_keys(keys)[0])
        if named == []:
            raise ConfigError("compression of no keys", got="[]",
                              expected="a pattern, a key, a list of keys, or None for all")
        check_text([named] if isinstance(named, str) else named or [])
        if default:
            self._compression.check_default(words)
        return named, words

    @staticmethod
    def _told_by_all(gather: Gather, said: bytes) -> list[bytes]:
        sizes = gather(np.array([len(said)], np.int64))
        every = gather(np.frombuffer(said, np.uint8)).tobytes()
        ends = np.cumsum(sizes).tolist()
        return [every[end - size : end] for size, end in zip(sizes.tolist(), ends, strict=True)]

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

    def unsaved(self) -> list[Key]:
        """Return the keys, as users know them, of which something is kept here."""
        kept = self._compression.coders.kept()
        return [self._told.get(key, key) for key, each in kept.items()
                if each.residual is not None or each.extra is not None]

    def report(self) -> dict[Key, dict[str, Any]]:
        """Say of each key how it is sent, and what that came to."""
        return gains(self._compression, list(self._infos.values()))

    # ---- sums ----

    def know(self, key: Key, array: Array) -> None:
        """There is such a key."""
        self._info(key, array)

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

        Raises:
            ShapeMismatch: The array before had another shape or dtype.
        """
        if not self._compression.speaks_of(key):
            return None
        info = self._info(key, place.array)
        rule, _ = self._compression.rule_of(info)
        way: type[CodedSum]
        if rule is None:
            kept = self._compression.coder_of(key)
            if kept is None or self._compression.last_of(info) is None:
                info.dense_bytes += info.nbytes
                return None
            rule, coder, way = _ENDED, kept, Last
        else:
            coder, way = self._compression.coder(info, rule), self._way(rule)
        what = What(self._fusing, name, info, rule, coder, self._seed, self._rank, self._world,
                    place, mean, factor)
        if way is Factored:
            return self._in_turn(Factored(what, lambda: self._next(key)), key)
        call = way(what)
        call.begin()
        return call.handle

    def _way(self, rule: Rule) -> type[CodedSum]:
        if isinstance(rule.codec, PowerSGD):
            return Factored
        if rule.codec.name in _HALVES and self._world > 2:
            return Halves
        return Gathered

    def _in_turn(self, call: Factored, key: Key) -> CollectiveHandle:
        with self._lock:
            waiting = self._turns.get(key)
            if waiting is not None:
                waiting.append(call)
                return call.handle
            self._turns[key] = deque()
        try:
            call.begin()
        except BaseException:
            self._next(key)
            raise
        return call.handle

    def _next(self, key: Key) -> None:
        """A key's call has ended: begin the next. Any thread."""
        with self._lock:
            waiting = self._turns[key]
            if not waiting:
                del self._turns[key]
                return
            call = waiting.popleft()
        call.begin_later()

    def _info(self, key: Key, array: Array) -> SummedKey:
        info = self._infos.get(key)
        if info is None:
            info = SummedKey(key_spec(key, array), [])
            info.told = self._told.get(key, key)
            info = self._infos.setdefault(key, info)
        if info.shape != array.shape or info.dtype != array.dtype:
            raise ShapeMismatch("another array than was summed before, of which something may be "
                                "kept that was not sent", key=key,
                                expected=f"{info.dtype} of shape {info.shape}",
                                got=f"{array.dtype} of shape {array.shape}")
        return info


def _shown(said: bytes) -> str:
    return said.decode() if said else "something that was refused there"
