"""Gradients that a rule names and that travel as they are, such as small ones: they are looked at.

Where all are finite the call goes on as if nobody had looked, on a lane too. One that is to be
skipped says so in its place, beside rows of its slab that travel as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from asyncps.protocol.messages import Key
from asyncps.roles.coded import CodedKey, PlainRows, skipped_key
from asyncps.roles.nonfinite import Count, is_told
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Floats
from asyncps.tensor.feedback import KeyCoder
from asyncps_ext import quantize

if TYPE_CHECKING:
    from asyncps.roles.plan import KeyInfo, Plan


class Unsent(NamedTuple):
    """A gradient that is to be skipped.

    Attributes:
        key: Whose.
        note: Counts it, when its call is sent.
        place: Of the large key, or of the slab.
        row: Its place in that slab; None of a large key.
    """

    key: Key
    note: Count
    place: int
    row: int | None


def look(
    plan: Plan, large: Sequence[Any], slabs: Sequence[Any], rank: int,
    coder_of: Callable[[KeyInfo], KeyCoder],
) -> list[Unsent]:
    """Return what of a call's values is to be skipped.

    Args:
        plan: Where the keys live, and which of those that travel as they are have a rule.
        large: Byte views of the large keys' values.
        slabs: Gathered rows.
        rank: This worker's.
        coder_of: What counts the skipped gradients of a key.

    Raises:
        TensorError: One that is not finite, and its rule does not skip these.
    """
    found: list[Unsent] = []

    def tell(index: int, g: Floats, place: int, row: int | None) -> None:
        bad = quantize.count_nonfinite(g, None)
        if bad:
            info = plan.infos[index]
            at = quantize.first_nonfinite(g, None)
            note = is_told(coder_of(info), g, None, bad, at, info.told, rank,
                           skip=plan.looked[index].skips)
            found.append(Unsent(info.key, note, place, row))

    for place, (index, info) in enumerate(plan.large):
        if index in plan.looked:
            g = _floats(large[place], info)
            if not math.isfinite(quantize.largest(g)):
                tell(index, g, place, None)
    for place, slab in enumerate(plan.slabs):
        if slab.rule is not None or not any(index in plan.looked for index in slab.indices):
            continue
        g = _floats(slabs[place], plan.infos[slab.indices[0]])
        if math.isfinite(quantize.largest(g)):
            continue
        begin = 0
        for row, index in enumerate(slab.indices):
            end = begin + _elements(plan.infos[index])
            if index in plan.looked:
                tell(index, g[begin:end], place, row)
            begin = end
    return found


def leave_out(plan: Plan, unsent: Sequence[Unsent], large: list[Any], slabs: list[Any]) -> None:
    """Let these places say that there is no gradient.

    Args:
        plan: Where the keys live.
        unsent: Which.
        large, slabs: What is sent.
    """
    rows: dict[int, set[int]] = {}
    for each in unsent:
        each.note()
        if each.row is None:
            large[each.place] = _without(plan.large[each.place][1])
        else:
            rows.setdefault(each.place, set()).add(each.row)
    for place, skipped in rows.items():
        infos = [plan.infos[index] for index in plan.slabs[place].indices]
        slabs[place] = PlainRows(slabs[place], [_elements(info) for info in infos],
                                 infos[0].dtype.itemsize, skipped)


def _without(info: KeyInfo) -> CodedKey:
    return skipped_key([piece for _, piece in info.pieces], info.dtype.itemsize)


def _elements(info: KeyInfo) -> int:
    return info.nbytes // info.dtype.itemsize


def _floats(values: Any, info: KeyInfo) -> Floats:
    dtype = dtypes.by_name(info.spec.dtype)
    found: Floats = (np.frombuffer(values, np.float32) if dtype.widen is None
                     else dtype.widened(np.frombuffer(values, dtype.bits)))
    return found
