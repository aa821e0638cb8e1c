"""Save and load beside an optimizer of the user's own that is still at work on a round."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asyncps import optim
from asyncps.errors import Disagreement
from asyncps.kvstore import KVStore
from asyncps.roles import saving
from tests.support.cluster import on_cluster

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer that ends its first update only when a server was asked about it by a save."""
    asked = threading.Event()
    check = saving.check_closed

    def watched(keeper: Any) -> bool:
        at_work = check(keeper)
        if at_work:
            asked.set()
        return at_work

    monkeypatch.setattr(saving, "check_closed", watched)

    class Slow(optim.Optimizer):
        def update(self, weight: Any, grad: Any, state: Any, hyper: Any) -> None:
            assert asked.wait(20.0)
            weight += grad


@pytest.mark.parametrize("options", [{}, {"type": "dist_ssp", "staleness": 2}])
def test_save_waits_for_a_round_that_is_being_applied(
    tmp_path: Path, slow: None, options: dict[str, Any]
) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.ones(3, "f4"))
        store.set_optimizer("slow")
        store.push("w", np.full(3, 2, "f4"))
        store.save(tmp_path / "c")
        assert (store.pull("w") == 5).all()

    on_cluster(work, **options)
    found = load_file(tmp_path / "c" / "weights.safetensors")
    assert (found["w"] == 5).all()


def test_open_round_is_a_disagreement_beside_one_that_is_being_applied(
    tmp_path: Path, slow: None
) -> None:
    def work(store: KVStore) -> None:
        store.init(["w", "v"], [np.ones(3, "f4"), np.ones(3, "f8")])
        store.set_optimizer("slow")
        store.push("w", np.full(3, 2, "f4"))
        if store.rank:
            store.push("v", np.ones(3, "f8"))
        with pytest.raises(Disagreement, match=r"ranks \[0\]"):
            store.save(tmp_path / "c")
        if not store.rank:
            store.push("v", np.ones(3, "f8"))
        store.save(tmp_path / "c")
        assert (store.pull("v") == 3).all()

    on_cluster(work, servers=1)
