"""Which keys of a store are compressed at a worker, and the encoding of a call's values.

Runs in the caller's thread, when all that can refuse the call there has been asked. What can refuse
it later, before it has a clock, has its values put back into the residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.errors import NotYetError
from asyncps.protocol.messages import Key, StoreConfig
from asyncps.roles.coders import Coders
from asyncps.roles.coding import Coding, Large, Rows
from asyncps.roles.landing import FLAGS
from asyncps.roles.plan import bound_of
from asyncps.roles.rates import Rates
from asyncps.tensor import codecs, dtypes
from asyncps.tensor.codecs import Stateful, Take
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import SharedPool

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo, Plan

_MOST = 1 << 32  # elements of a key: indices are u32

Words = dict[str, Any]  # as `codecs.checked` returns them
Keys = None | str | list[Key]  # all, a pattern of str keys, or these


def check_store(config: StoreConfig, words: Words) -> None:
    """Refuse what a store's type does not have.

    Raises:
        NotYetError: Changes of values are pulled in rounds only.
    """
    if words["pull"] is True and bound_of(config) != 0:
        raise NotYetError(f"pull=True in a store of type {config.type} is not there yet: it is of "
                          "dist_sync")


class Rule:
    """What was said once: these keys, with this codec."""

    def __init__(self, keys: Keys, words: Words) -> None:
        self.keys = keys
        self.words = words
        self.feedback = bool(words["error_feedback"])
        self.skips = words["nonfinite"] == "skip"
        self.codec = codecs.made(words)  # of all its keys: slabs of these travel as one
        self.pull = FLAGS.get(words["pull"], 0)  # how answers of its float32 keys travel
        self.amount = float(words.get(codecs.DELTAS.get(words["type"], ""), 0))

    def names(self, key: Key) -> bool:
        """Tell whether it speaks of a key."""
        if self.keys is None:
            return True
        if isinstance(self.keys, str):
            return isinstance(key, str) and fnmatchcase(key, self.keys)
        return any(type(key) is type(one) and key == one for one in self.keys)


class Compression:
    """The rules of one store at one worker, and what each key has not sent.

    Args:
        rank: This worker's.
        job: What random places are drawn for: the same at all workers.
        store: The store's number.
        threads: That may encode a key at once; see `kernel_threads`.

    Attributes:
        rates: What is known of the learning rates of its keys.
    """

    def __init__(self, rank: int, job: str, store: int, threads: int = 1) -> None:
        self._rank = rank
        self._seed = (job, store)
        self.rates = Rates()
        self._rules: list[Rule] = []
        self._coders = Coders(threads)

    def add(self, keys: Keys, words: Words) -> None:
        """Add a rule; of several that name a key the last one counts.

        What a key has not sent stays, whatever its codec was.
        """
        self._rules = [rule for rule in self._rules if rule.keys != keys]
        self._rules.append(Rule(keys, words))

    @property
    def is_set(self) -> bool:
        """Whether anything is compressed."""
        return bool(self._rules)

    def coder_of(self, key: Key) -> KeyCoder | None:
        """Return what a key is encoded with, if it was pushed or loaded."""
        return self._coders.get(key)

    def rule_of(self, info: KeyInfo) -> tuple[Rule | None, str]:
        """Return the rule by which a key is encoded; or None, and why it goes dense."""
        rule = next((rule for rule in reversed(self._rules) if rule.names(info.key)), None)
        if rule is None:
            return None, "no compression is set for it"
        if info.is_table:
            return None, "row-sparse"
        dtype = dtypes.by_name(info.spec.dtype)
        if dtype.sum != np.float32:
            return None, f"its dtype is {dtype.name}"
        if not info.nbytes:
            return None, "it has no elements"
        if info.nbytes < rule.words["small_bytes"]:
            return None, f"smaller than {rule.words['small_bytes']} bytes"
        if info.nbytes // dtype.itemsize > _MOST:
            return None, f"more than {_MOST} elements"
        if isinstance(rule.codec, Stateful):
            why = rule.codec.unfit(info.shape, info.nbytes, info.cuts)
            return (None, why) if why else (rule, "")
        return rule, ""

    def check_tables(self, infos: Sequence[KeyInfo]) -> None:
        """Refuse to compress row-sparse keys that were asked for by name.

        Raises:
            NotYetError: There is one.
        """
        for info in infos:
            if info.is_table and any(
                rule.keys is not None and rule.names(info.key) for rule in self._rules
            ):
                raise NotYetError(
                    f"compression of row-sparse keys ({info.key!r}) is not there yet")

    @property
    def is_lr_scaled(self) -> bool:
        """Whether a rule is to follow the learning rate."""
        return any(rule.words["lr_scaled"] for rule in self._rules)

    def coder(self, info: KeyInfo, rule: Rule) -> KeyCoder:
        """Return what a key is encoded with, by its rule."""
        coder = self._coders.of(info.key, info.nbytes // info.dtype.itemsize)
        if rule.words["lr_scaled"]:
            coder.follow(self.rates.of(info.key))
        return coder

    @property
    def coders(self) -> Coders:
        """What each key has not sent."""
        return self._coders

    def scaled_keys(self, infos: Mapping[Key, KeyInfo]) -> list[Key]:
        """Return the keys whose residuals follow the learning rate."""
        return [key for key, _ in self._coders if key in infos
                and (rule := self.rule_of(infos[key])[0]) and rule.words["lr_scaled"]]

    def encode(
        self, plan: Plan, large: list[Any], slabs: list[Any], take: Take, pool: SharedPool, *,
        lent: bool = False,
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

        Raises:
            TensorError: A value that is NaN or infinite, of a key whose rule does not skip these:
                nothing was encoded, no residual changed.
        """
        jobs = [
            (place, Large(info, rule, self.coder(info, rule), large[place], pool, self._seed))
            for place, ((_, info), rule) in enumerate(zip(plan.large, plan.rules, strict=True))
            if rule is not None
        ]
        rows = [
            (place, Rows(slab, plan, self, slabs[place]))
            for place, slab in enumerate(plan.slabs) if slab.rule is not None
        ]
        for _, one in jobs:
            one.check(self._rank)
        for _, some in rows:
            some.check(self._rank)
        coding = Coding()
        try:
            for place, one in jobs:
                large[place] = (
                    one.skip() if one.skipped
                    else one.later(take, coding) if lent and one.may_wait
                    else one.encode(take, coding)
                )
            for place, some in rows:
                slabs[place] = some.encode(take, coding, self._seed)
        except BaseException:
            coding.put_back()
            raise
        return coding
