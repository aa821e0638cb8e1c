"""A store of one process used from several threads loses nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncps
from asyncps.tensor.rowsparse import RowSparse
from tests.support.threads import together

THREADS, TURNS = 4, 200


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[], None]) -> None:
    def turns() -> None:
        for _ in range(TURNS):
            work()

    together(*[turns] * THREADS)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8"])
def test_no_push_is_lost(dtype: str) -> None:
    store = asyncps.create("local")
    store.set_optimizer("test")
    store.init(["a", "b"], [np.zeros(20_000, dtype), np.zeros(3, dtype)])
    in_threads(lambda: store.pushpull(
        ["a", "b"], [np.ones(20_000, dtype), np.ones(3, dtype)],
        out=[np.empty(20_000, dtype), np.empty(3, dtype)]))
    for value in store.pull(["a", "b"]):
        assert (value == THREADS * TURNS).all()


def test_no_row_is_lost_beside_pulls(tmp_path: Path) -> None:
    store = asyncps.create("local")
    store.set_optimizer("test")
    store.init("t", asyncps.initializer.Zero(), shape=(500, 4))
    ids = np.arange(0, 500, 5)

    def work() -> None:
        store.push("t", RowSparse(ids, np.ones((100, 4), "f4"), (500, 4)))
        store.row_sparse_pull("t", ids)

    in_threads(work)
    assert (store.row_sparse_pull("t", ids).values == THREADS * TURNS).all()
