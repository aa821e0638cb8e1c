"""The encoding of what one call pushes of one row-sparse key, in the caller's thread.

The values of all rows that are pushed are one array for the codec: the scale of onebit is of all of
them, and topk chooses among all of them. Then they are cut: a payload for each server with rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from asyncps.protocol.frames import MAX_DECODED_BYTES
from asyncps.roles import seeding
from asyncps.roles.coded import Payload
from asyncps.roles.coding import Coding
from asyncps.roles.nonfinite import Count, is_told
from asyncps.roles.plan import KeyInfo
from asyncps.roles.tablework import Ids, cut, row_bytes
from asyncps.tensor import dtypes
from asyncps.tensor.codecs import Codec, Floats, Skip, Take
from asyncps.tensor.rowfeedback import AS_STORED, Gathered, RowCoder

if TYPE_CHECKING:
    from asyncps.roles.rules import Rule

_MOST = 1 << 32  # values of one push: indices are u32


class PushedRows(Protocol):
    """What a call pushes of a key.

    Attributes:
        info: The key.
        ids: Strictly ascending, in memory of its own.
        values: Bytes of the rows; the caller's.
        encoded: It is to be encoded; else it goes as it is.
        coded: What each server's part is sent as, None of one without rows; once encoded.
    """

    info: KeyInfo
    ids: Ids
    values: memoryview
    encoded: bool
    coded: list[Payload | memoryview | None] | None


class CodingRows:
    """One of them.

    Args:
        pushed: It.
        rule: By which it is encoded.
        coder: Of its key.
        seed: What random places are drawn for.
    """

    def __init__(
        self, pushed: PushedRows, rule: Rule, coder: RowCoder, seed: tuple[str, int]
    ) -> None:
        self._pushed = pushed
        self._rule = rule
        self._coder = coder
        self._seed = seed
        self._width = row_bytes(pushed.info) // pushed.info.dtype.itemsize
        self._dtype = dtypes.by_name(pushed.info.spec.dtype)
        if self._dtype.widen is None:
            self._g: Floats = np.frombuffer(pushed.values, np.float32)
        else:
            self._g = np.empty(pushed.ids.size * self._width, np.float32)
            self._dtype.widen(self._g, np.frombuffer(pushed.values, np.uint16))
        self._gathered: Gathered | None = None
        self._bad = False
        self._skipped: Count | None = None

    def check(self, rank: int) -> None:
        """Refuse a NaN or an infinity, or take note that it is to be skipped.

        What goes as the key stores it, since its compression has ended, may be anything.
        """
        rests = None
        if self._rule.feedback:
            self._gathered = self._coder.gather(self._pushed.ids)
            rests = self._gathered.rests
        bad, at = self._coder.count_nonfinite_rows(self._g, rests)
        self._bad = bool(bad)
        if self._bad and not self._rule.ends:
            self._skipped = is_told(self._coder, self._g, rests, bad, at, self._pushed.info.told,
                                    rank, skip=self._rule.skips)

    def encode(self, take: Take, coding: Coding) -> None:
        """Encode it: what is sent are the `coded` of what is pushed."""
        pushed, info, coder = self._pushed, self._pushed.info, self._coder
        number = seeding.number_of(self._rule.codec, coder, info.clock, coding.undo)
        if self._skipped is not None:  # all servers must hear of it, those of other rows too
            self._skipped()
            pushed.ids = pushed.ids[:0]
            pushed.coded = [Payload(Skip().head(0, 0), memoryview(b"")) for _ in info.pieces]
            return
        parts = [(unit, begin, end) for unit, begin, end in cut(info, pushed.ids)]
        full = [part for part in parts if part[2] > part[1]]
        pushed.coded = [None] * len(parts)
        if not full:
            return
        width, nbytes = self._width, len(pushed.values)
        codec, is_as_stored = self._codec(max(end - begin for _, begin, end in full))
        pieces = [(begin * width, end * width) for _, begin, end in full]
        heads, seeds = seeding.of_chunks(codec, number, self._seed, info.key,
                                         [unit.first for unit, _, _ in full])
        payloads = coder.encode_rows(
            codec, pushed.ids, self._g, nbytes, pieces, take, seeds, self._gathered)
        coding.undo.append(partial(
            coder.put_rows_back, codec, pushed.ids, nbytes, pieces, payloads, seeds,
            feedback=self._rule.feedback))
        if self._bad:
            coder.drop_nonfinite(pushed.ids)  # what a NaN leaves is one
        coding.sent_bytes += sum(payload.nbytes for payload in payloads)
        found = iter(zip(pieces, heads, payloads, strict=True))
        for place, (_, begin, end) in enumerate(parts):
            if end > begin:
                (first, stop), head, payload = next(found)
                pushed.coded[place] = payload.data if is_as_stored else Payload(
                    codec.head(stop - first, head), payload.data)

    def _codec(self, most_rows: int) -> tuple[Codec, bool]:
        """Return how it is encoded; and whether that is as the key stores it.

        Few values are, and so are more than indices can tell, or than a server would decode of one
        frame; with what was not sent of their rows before.
        """
        codec = self._rule.codec
        if (
            len(self._pushed.values) < self._rule.words["small_bytes"] or self._g.size > _MOST
            or (not codec.is_fixed and most_rows * self._width * 4 > MAX_DECODED_BYTES)
        ):
            return AS_STORED[self._dtype.name], True
        return codec, False
