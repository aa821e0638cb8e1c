"""A Hypothesis machine: what is kept of rows, against dense arrays in float64.

Rows are pushed in any codec and any number of pieces, put back, sent as they are stored; the rate
changes. What was sent and what is kept must come to what was pushed, row by row; and the memory is
that of rows with something left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncps.roles.keptrows import join_ids, split_ids
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec
from asyncps.tensor.feedback import Rate
from asyncps.tensor.rowfeedback import AS_STORED, RowCoder
from tests.tensor.test_rowfeedback import SPECS

ROWS, WIDTH = 12, 2
IDS = st.sets(st.integers(0, ROWS - 1), min_size=1)
CODECS: list[Codec] = [*(codecs.made(codecs.checked(spec)) for spec in SPECS),
                       *AS_STORED.values()]


def take(size: int) -> Any:
    return np.empty(size, np.uint8)


class Machine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.coder = RowCoder(WIDTH)
        self.kept = np.zeros((ROWS, WIDTH))  # as it must be, but for roundings
        self.touched: set[int] = set()
        self.rate = 1.0
        self.coder.follow(Rate("sgd", 1.0))
        self.undo: Callable[[], None] | None = None

    @rule(ids=IDS, seed=st.integers(0, 1 << 30), codec=st.sampled_from(CODECS),
          cut=st.integers(0, ROWS))
    def push(self, ids: set[int], seed: int, codec: Codec, cut: int) -> None:
        which = np.array(sorted(ids), np.int64)
        g = np.random.default_rng(seed).normal(size=which.size * WIDTH).astype("f4")
        pieces = [(0, g.size)]
        if 0 < cut < which.size:
            pieces = [(0, cut * WIDTH), (cut * WIDTH, g.size)]
        seeds = [seed + place for place in range(len(pieces))]
        gathered = self.coder.gather(which)
        assert np.allclose(gathered.rests.reshape(-1, WIDTH), self.kept[which], atol=1e-3)
        payloads = self.coder.encode_rows(
            codec, which, g, g.nbytes, pieces, take, seeds, gathered)
        sent = np.empty(g.size, "f4")
        for (begin, stop), payload, own in zip(pieces, payloads, seeds, strict=True):
            codec.decode(sent[begin:stop], payload, own)
        self.kept[which] += (g.astype("f8") - sent).reshape(-1, WIDTH)
        self.touched |= ids

        def undo() -> None:
            self.coder.put_rows_back(
                codec, which, g.nbytes, pieces, payloads, seeds, feedback=True)
            self.kept[which] += sent.reshape(-1, WIDTH)

        self.undo = undo

    @rule()
    def put_back(self) -> None:
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()

    @rule(rate=st.sampled_from([0.5, 1.0, 2.0]))
    def follow(self, rate: float) -> None:
        self.undo = None
        self.coder.follow(Rate("sgd", rate))
        self.kept *= self.rate / rate
        self.rate = rate

    @rule()
    def save_and_load(self) -> None:
        ids, rests = self.coder.rows()
        self.coder.restore_rows(join_ids(split_ids(ids)), rests, 0, Rate("sgd", self.rate))

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "coder"):
            return
        ids, rests = self.coder.rows()
        found = np.zeros((ROWS, WIDTH))
        found[ids] = rests.reshape(-1, WIDTH)
        assert np.allclose(found, self.kept, atol=1e-3)
        assert set(ids.tolist()) <= self.touched
        assert rests.reshape(-1, WIDTH).any(axis=1).all()
        assert np.isclose(self.coder.error_norm(), np.linalg.norm(self.kept), atol=1e-2)
        self.kept = found  # roundings do not add up


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
