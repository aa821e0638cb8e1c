"""Which keys of a store are compressed at a worker, and the encoding of a call's values.

Runs in the caller's thread, when all that can refuse the call there has been asked. What can refuse
it later, before it has a clock, has its values put back into the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncps.errors import ConfigError, NotYetError
from asyncps.protocol.messages import Key
from asyncps.roles.coders import Coders
from asyncps.roles.coding import Coding, Large, Rows
from asyncps.roles.codingrows import CodingRows, PushedRows
from asyncps.roles.ending import Last, Place, lasts_of, send_lasts
from asyncps.roles.looking import Unsent, leave_out, look
from asyncps.roles.momenta import check_momentum
from asyncps.roles.rates import Rates
from asyncps.roles.rules import Keys, Rule, Words, differing
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Stateful, Take
from asyncps.tensor.feedback import KeyCoder
from asyncps.tensor.pool import SharedPool
from asyncps.tensor.rowfeedback import RowCoder

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo, Plan

_MOST = 1 << 32  # elements of a key: indices are u32
_MOST_FOUND = 1 << 16  # keys of which the rule is kept: collective calls may have a new name each


class Compression:
    """The rules of one store at one worker, and what each key has not sent.

    Args:
        rank: This worker's.
        workers: How many the job has.
        job: What random places are drawn for: the same at all workers.
        store: The store's number.
        threads: That may encode a key at once; see `kernel_threads`.

    Attributes:
        rates: What is known of the learning rates of its keys.
    """

    def __init__(
        self, rank: int, workers: int, job: str, store: int, threads: int = 1
    ) -> None:
        self._rank = rank
        self._workers = workers
        self._seed = (job, store)
        self.rates = Rates()
        self._rules: list[Rule] = []
        self._fresh: list[Rule] = []  # that nothing was pushed by yet
        self._by_key: dict[Key, Rule | None] = {}  # what was found of them
        self._coders = Coders(threads)

    def add(self, keys: Keys, words: Words, *, default: bool = False) -> None:
        """Add a rule; of several that name a key the last one counts.

        What a key has not sent stays, whatever its codec was.

        Args:
            keys, words: As `Rule` has them.
            default: It is of all keys, and all others go before it.
        """
        rule = Rule(keys, words, self._workers)
        if default and (self._of_all is None or self._of_all.words != words):
            self._rules = [rule, *[each for each in self._rules if each.keys is not None]]
        elif not default:
            # One of all keys is the last that names any: those before it count for nobody.
            others = [] if keys is None else [each for each in self._rules if each.keys != keys]
            self._rules = [*others, rule]
            self._fresh = [*[each for each in self._fresh if each in self._rules], rule]
        self._by_key = {}  # behind the rules, and another: callers' threads fill it

    @property
    def _of_all(self) -> Rule | None:
        return next((rule for rule in self._rules if rule.keys is None), None)

    def check_default(self, words: Words) -> None:
        """Refuse other words for all keys than those that there are.

        Raises:
            ConfigError: It names both.
        """
        there = self._of_all
        if there is not None and there.words != words:
            raise ConfigError(
                "compression_params of a trainer beside other words for all keys of its store",
                expected=f"{differing(there.words, words)}; or set_gradient_compression before, "
                "which changes them; or a rule by key, which goes before",
                got=differing(words, there.words))

    def look(self, infos: Mapping[Key, KeyInfo]) -> None:
        """Warn of words that no key is named by; to be called before the first push.

        Args:
            infos: All keys.
        """
        fresh, self._fresh = self._fresh, []
        for rule in fresh if self._rank == 0 else ():
            if rule in self._rules:
                # The loop may add keys meanwhile.
                rule.warn_of_nobody([info.told for info in list(infos.values())])

    @property
    def has_fresh(self) -> bool:
        """Whether a rule was added since `look` was called."""
        return bool(self._fresh)

    @property
    def is_set(self) -> bool:
        """Whether anything is compressed."""
        return bool(self._rules)

    def coder_of(self, key: Key) -> KeyCoder | None:
        """Return what a key is encoded with, if it was pushed or loaded."""
        return self._coders.get(key)

    def rule_of(self, info: KeyInfo) -> tuple[Rule | None, str]:
        """Return the rule by which a key is encoded; or None, and why it goes dense."""
        rule = self._rule(info.told)
        if rule is None or (rule.ends and not info.is_table):  # of rows each call asks `encodes`
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
        if isinstance(rule.codec, Stateful):
            why = rule.codec.unfit(info.shape, info.nbytes, info.cuts)
            return (None, why) if why else (rule, "")
        return rule, ""

    def looks_at(self, info: KeyInfo) -> Rule | None:
        """Return the rule that names a dense key: its gradients are to be finite, however sent."""
        rule = self._rule(info.told)
        is_float = dtypes.by_name(info.spec.dtype).sum == np.float32
        return rule if rule and not rule.ends and is_float and not info.is_table else None

    def unsent(
        self, plan: Plan, large: Sequence[Any], slabs: Sequence[Any]
    ) -> Sequence[Unsent]:
        """Return which of a call's values that travel as they are have to be skipped; see `look`.

        Raises:
            TensorError: A value that is NaN or infinite, of a key whose rule does not skip these.
        """
        if not plan.looked:
            return ()
        return look(plan, large, slabs, self._rank, lambda info: self._coders.of(
            info.key, info.nbytes // info.dtype.itemsize))

    def speaks_of(self, key: Key) -> bool:
        """Tell whether a rule names a key."""
        return self._rule(key) is not None

    def _rule(self, key: Key) -> Rule | None:
        found = self._by_key  # before the rules: what is found of old ones is not found again
        if key not in found:
            if len(found) >= _MOST_FOUND:
                found = self._by_key = {}
            found[key] = next((rule for rule in reversed(self._rules) if rule.names(key)), None)
        return found[key]

    def encodes(self, info: KeyInfo, rule: Rule | None) -> bool:
        """Tell whether a push of a row-sparse key is encoded now, by a rule that `rule_of` found.

        When its compression has ended it is as long as something is left of its rows, which takes
        many pushes; and something may come back at any time.
        """
        return rule is not None and (not rule.ends or self.keeps_rows(info))

    def keeps_rows(self, info: KeyInfo) -> bool:
        """Tell whether something is left of a row-sparse key's rows."""
        coder = self._coders.get(info.key)
        return isinstance(coder, RowCoder) and len(coder.rests) > 0

    @property
    def has_ended(self) -> bool:
        """Whether a rule ends the compression of some keys."""
        return any(rule.ends for rule in self._rules)

    def last_of(self, info: KeyInfo) -> Last | None:
        """Return what takes along what a dense key has kept, if its compression has ended."""
        rule, coder = self._rule(info.told), self._coders.get(info.key)
        if rule is None or not rule.ends or coder is None or info.is_table:
            return None
        return None if coder.residual is None else Last(info, coder)

    def sends(self, info: KeyInfo) -> bool:
        """Tell whether what is kept of a key goes with its next pushes, all of it or some."""
        rule = self._rule(info.told)
        return (rule is not None and rule.ends) or self.rule_of(info)[0] is not None

    def ends_some(self, plan: Plan) -> bool:
        """Tell whether a push of these keys takes along what one has kept."""
        return self.has_ended and any(self.last_of(info) is not None for info in plan.dense)

    def check_sums(self, infos: Sequence[KeyInfo]) -> None:
        """Refuse sums of gradients of which only changes are to be pulled.

        Raises:
            ConfigError: A sum has little to do with the one before; more, or less, than was pushed
                would be applied.
        """
        for info in infos:
            rule = self._rule(info.told)
            if rule is not None and rule.changes is not None:
                raise ConfigError(
                    f"pull=True of compression {rule.codec.name}, for key {info.told!r}, beside a "
                    "trainer that updates at the workers: what they pull are sums",
                    expected="pull=None, or update_on_kvstore=True", got="pull=True")

    def check_tables(self, infos: Sequence[KeyInfo]) -> None:
        """Refuse row-sparse keys that were asked for by name with a codec of dense keys.

        Raises:
            NotYetError: There is one.
        """
        for info in infos:
            rule = self._rule(info.told) if info.is_table else None
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
        coder.settle()
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

    def checked(
        self, plan: Plan, large: list[Any], slabs: list[Any], pool: SharedPool, *,
        tables: Sequence[PushedRows] = (), unsent: Sequence[Unsent] = (),
    ) -> Checked:
        """Look at what of a call's values is to be encoded; nothing is encoded yet.

        Args:
            plan: Where the keys live.
            large: Byte views of the large keys' values.
            slabs: Gathered rows.
            pool: Gives memory for a while.
            tables: What is pushed of the row-sparse keys.
            unsent: What is to be skipped of those that travel as they are.

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
        sparse = [
            CodingRows(each, rule, self._row_coder(each.info, rule), self._seed)
            for each, rule in zip(tables, plan.table_rules, strict=True)
            if rule is not None and each.encoded
        ]
        for _, one in jobs:
            one.check(self._rank)
        for _, some in rows:
            some.check(self._rank)
        for each in sparse:
            each.check(self._rank)
        lasts = lasts_of(plan, self.last_of) if self.has_ended else []
        return Checked(plan, large, slabs, jobs, rows, sparse, lasts, unsent, self._seed)


class Checked:
    """What is to be encoded of one call's values, all of which may be.

    Args:
        plan: Where the keys live.
        large: Byte views of the large keys' values; those encoded become `CodedKey`, those that
            will be as they are sent `LazyKey`.
        slabs: Gathered rows; those encoded become `CodedRows`.
        jobs, rows: What is encoded of them, and in which places.
        sparse: What is pushed of row-sparse keys; those encoded get their `coded`.
        lasts: What goes as it is, with what was kept of it.
        unsent: What would go as it is, and is skipped.
        seed: What random places are drawn for.
    """

    def __init__(
        self, plan: Plan, large: list[Any], slabs: list[Any], jobs: Sequence[tuple[int, Large]],
        rows: Sequence[tuple[int, Rows]], sparse: Sequence[CodingRows],
        lasts: Sequence[Place], unsent: Sequence[Unsent], seed: tuple[str, int],
    ) -> None:
        self._plan = plan
        self._large = large
        self._slabs = slabs
        self._jobs = jobs
        self._rows = rows
        self._sparse = sparse
        self._lasts = lasts
        self.unsent = unsent
        self._seed = seed

    def encode(self, take: Take, *, lent: bool = False) -> Coding:
        """Encode it, in its places.

        Args:
            take: Gives memory that stays until the call has ended.
            lent: The values stay as they are until the call has ended, so that a chunk can be
                encoded when it is sent.
        """
        coding = Coding()
        try:
            for place, one in self._jobs:
                self._large[place] = (
                    one.skip(coding) if one.skipped is not None
                    else one.later(take, coding) if lent and one.may_wait
                    else one.encode(take, coding)
                )
            for place, some in self._rows:
                self._slabs[place] = some.encode(take, coding, self._seed)
            for each in self._sparse:
                each.encode(take, coding)
            send_lasts(self._lasts, self._large, self._slabs, take, coding)
            leave_out(self._plan, self.unsent, self._large, self._slabs)
        except BaseException:
            coding.put_back()
            raise
        return coding
