"""A push that was encoded, and is refused when its key's compression has ended: nothing is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster

TWO = {"type": "2bit", "threshold": 0.5}
NONE = {"type": "none"}


def pushed(store: KVStore, key: Any, value: Any, *, copy: bool = True) -> Any:
    """Encode a push as another thread would; it has not begun."""
    return store._core.push(store._core.plan((key,)), key, value, 0, copy)


@pytest.mark.parametrize("size", [5, 50_000], ids=["small", "large"])
@pytest.mark.parametrize("feedback", [True, False])
def test_what_was_encoded_is_kept_again(size: int, feedback: bool) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(size, "f4"))
        store.set_optimizer("test")
        store.set_gradient_compression({**TWO, "error_feedback": feedback})
        call = pushed(store, "w", np.full(size, 0.625, "f4"))
        store.set_gradient_compression(NONE)
        # What is kept goes: of 0.625 a half is on its way in that call.
        there = 0.125 if feedback else 0
        assert (store.pushpull("w", np.zeros(size, "f4")) == there).all()
        store._let_go(call)
        assert (store.pushpull("w", np.zeros(size, "f4")) == (0.625 if feedback else 0)).all()

    on_cluster(work, workers=1)
