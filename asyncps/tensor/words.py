"""Hyper-parameters as servers use them: factors by key and schedules, carried out at an update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from asyncps.optim import lr

Key = int | str | None
MASTER = "master"  # among state arrays: the f32 weights of f16 or bf16 values

# A count of updates is a factor of steps, so it is an integer that a double can hold.
MOST_UPDATES = 1 << 53

# State arrays that an optimizer of the user's own may keep for a key that is saved and loaded, and
# characters of a name: each may cost a server as much as the values.
MAX_STATES, MAX_STATE_NAME = 16, 100
# A key and its elements [begin, end) of a unit: a chunk has one span, a slab one for each row.
Span = tuple[Key, int, int]


class Words(dict[str, Any]):
    """Checked hyper-parameters, and what can be prepared of them once.

    Attributes:
        lr_mult, wd_mult: Factors by key.
        per_key: Whether two keys may need different steps.
        made: The optimizer object of the user's own that goes with them, once it is needed.
    """

    __slots__ = ("lr_mult", "made", "per_key", "scheduled", "wd_mult")

    def __init__(self, hyper: Mapping[str, Any]) -> None:
        super().__init__(hyper)
        self.lr_mult: dict[Key, float] = dict(hyper.get("lr_mult") or ())
        self.wd_mult: dict[Key, float] = dict(hyper.get("wd_mult") or ())
        self.per_key = bool(self.lr_mult or self.wd_mult)
        self.scheduled = isinstance(hyper.get("learning_rate"), dict)
        self.made: Any = None

    def factors(self, key: Key) -> tuple[float, float]:
        """Return the factors of a key: of its rate and of its weight decay."""
        return self.lr_mult.get(key, 1.0), self.wd_mult.get(key, 1.0)

    def at(self, t: int, factors: tuple[float, float] = (1.0, 1.0)) -> Mapping[str, Any]:
        """Return plain numbers for the `t`-th update of a key with these factors."""
        if not self.scheduled and factors == (1.0, 1.0):
            return self
        found = dict(self)
        if self.scheduled:
            found["learning_rate"] = lr.rate(self["learning_rate"], t)
        if "learning_rate" in found:
            found["learning_rate"] *= factors[0]
        if "wd" in found:
            found["wd"] *= factors[1]
        return found

    def groups(
        self, spans: Sequence[Span], each: bool
    ) -> Iterator[tuple[int, int, tuple[float, float]]]:
        """Cut a unit where the step changes.

        Args:
            spans: The keys, side by side.
            each: Cut between all keys.

        Yields:
            Begin and end in elements, and the factors.
        """
        begin, end, current = spans[0][1], spans[0][1], self.factors(spans[0][0])
        for key, first, last in spans:
            factors = self.factors(key)
            if first > begin and (each or factors != current):
                yield begin, end, current
                begin = first
            current, end = factors, last
        yield begin, end, current


def prepared(hyper: Mapping[str, Any]) -> Words:
    """Return hyper-parameters prepared; once is enough."""
    return hyper if isinstance(hyper, Words) else Words(hyper)
