"""Connections that are cut while rows of a table are saved or loaded: all are there once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import RowSparse
from asyncps.initializer import Normal
from asyncps.roles import restoringrows, storingrows
from tests.faults.proxied import proxied
from tests.faults.test_cuts import cuts_of

SHAPE = (4000, 8)
IDS = np.arange(0, 4000, 3)


@pytest.mark.parametrize("seed", range(5))
async def test_cuts_while_rows_are_saved_and_loaded_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for module in (storingrows, restoringrows):
        monkeypatch.setattr(module, "RANGE_BYTES", 4096)
    chance = random.Random(seed)

    def rows(store: Any, turn: int) -> RowSparse:
        rng = np.random.default_rng([store.rank, turn])
        return RowSparse(IDS, rng.standard_normal((IDS.size, 8)).astype("f4"), SHAPE)

    async with proxied(workers=2, servers=2, order="rank") as cluster:
        await cluster.all(lambda store: store.init("t", Normal(), shape=SHAPE))
        await cluster.all(lambda store: store.set_optimizer("adam", learning_rate=0.1))

        async def train(turn: int) -> bytes:
            async def one(store: Any) -> bytes:
                await store.push("t", rows(store, turn))
                await store.barrier()
                found = await store.row_sparse_pull("t", range(SHAPE[0]))
                await store.barrier()
                return found.values.tobytes()  # type: ignore[no-any-return]

            first, second = await cluster.all(one)
            assert first == second
            return first

        def cut(direction: Any) -> None:
            # Each server's rows are some 70 kB either way.
            for proxy in cluster.members[0].data:
                proxy.cut_after(chance.randrange(1, 60_000), direction,
                                reset=chance.random() < 0.5)

        await train(0)
        cut("down")
        await cluster.all(lambda store: store.save(tmp_path / "c"))
        expected = [await train(turn) for turn in (1, 2)]
        cut("up")
        await cluster.all(lambda store: store.load(tmp_path / "c"))
        assert [await train(turn) for turn in (1, 2)] == expected
        assert cuts_of(cluster) >= 4
