"""Where updates happen: ACCEPTANCE K9, as a decision and as a trainer."""

from __future__ import annotations

import pytest

import asyncps
from asyncps import cluster
from asyncps.errors import ConfigError, NotYetError
from asyncps.kvstore import KVStore
from asyncps.updating import update_on_store
from tests.support.cluster import on_cluster
from tests.trainer.params import ones

SYNC = ("local", "device", "dist", "dist_sync", "dist_sync_device", "dist_device_sync")
ASYNC = ("dist_async", "dist_async_device", "dist_ssp")
NEVER = ("p3", "allreduce", "horovod", None)


@pytest.mark.parametrize("kind", SYNC)
def test_a_sync_store_updates_unless_told_not_to(kind: str) -> None:
    assert update_on_store(kind) is True
    assert update_on_store(kind, True) is True
    assert update_on_store(kind, False) is False


@pytest.mark.parametrize("kind", ASYNC)
def test_a_store_that_has_no_sums_always_updates(kind: str) -> None:
    assert update_on_store(kind) is True
    assert update_on_store(kind, True) is True
    with pytest.raises(ValueError, match=kind):
        update_on_store(kind, False)


@pytest.mark.parametrize("kind", NEVER)
def test_without_servers_workers_update(kind: str | None) -> None:
    assert update_on_store(kind) is False
    assert update_on_store(kind, False) is False
    with pytest.raises(ValueError, match=kind or "no store"):
        update_on_store(kind, True)


@pytest.mark.parametrize("kind", [*SYNC, *ASYNC, *NEVER])
def test_sparse_gradients_are_never_updated_at_the_worker_on_demand(kind: str | None) -> None:
    with pytest.raises(ValueError, match="update_on_kvstore"):
        update_on_store(kind, False, sparse_gradient=True)
    assert update_on_store(kind, sparse_gradient=True) is (kind not in NEVER)


def test_every_store_type_has_its_place_and_a_typo_has_none() -> None:
    known = {*cluster.LOCAL_TYPES, *cluster.DIST_TYPES, *cluster.ALLREDUCE_TYPES,
             *cluster.LATER_TYPES}
    assert known == {*SYNC, *ASYNC, *NEVER} - {None}
    with pytest.raises(ConfigError, match="dist_sync"):
        update_on_store("dist_sink")


@pytest.mark.parametrize(("wanted", "place"), [(None, True), (True, True), (False, False)])
def test_k9_a_trainer_on_a_sync_store(wanted: bool | None, place: bool) -> None:
    def work(store: KVStore) -> None:
        trainer = asyncps.Trainer([ones(3)], "sgd", kvstore=store, update_on_kvstore=wanted)
        assert trainer.update_on_kvstore is place
        assert trainer.kvstore is store

    on_cluster(work)
    with asyncps.create("local") as store:
        trainer = asyncps.Trainer([ones(3)], "sgd", kvstore=store, update_on_kvstore=wanted)
        assert trainer.update_on_kvstore is place


@pytest.mark.parametrize(("kind", "wanted"), [
    ("dist_async", False), ("p3", True), ("allreduce", True), ("horovod", True),
    (None, True), ("dist_sink", None),
])  # fmt: skip
def test_k9_what_a_store_cannot_do_is_a_value_error(kind: str | None, wanted: bool | None) -> None:
    with pytest.raises(ValueError, match="expected"):
        asyncps.Trainer([ones(3)], "sgd", kvstore=kind, update_on_kvstore=wanted)


@pytest.mark.parametrize("kind", cluster.LATER_TYPES)
def test_a_store_type_of_a_later_version_says_so(kind: str) -> None:
    with pytest.raises(NotYetError, match=kind):
        asyncps.Trainer([ones(3)], "sgd", kvstore=kind)


@pytest.mark.parametrize(("kind", "wanted", "made"), [
    ("device", None, False), ("local", False, False), ("local", True, True), (None, None, False),
])  # fmt: skip
def test_one_local_device_needs_no_store(kind: str | None, wanted: bool | None, made: bool) -> None:
    trainer = asyncps.Trainer([ones(3)], "sgd", kvstore=kind, update_on_kvstore=wanted)
    assert (trainer.kvstore is not None) is made
    assert trainer.update_on_kvstore is made


def test_a_store_that_the_trainer_made_is_closed_with_it_and_another_is_not() -> None:
    with asyncps.Trainer({"w": ones(3)}, "sgd", {"lr": 1}, kvstore="dist_sync") as trainer:
        trainer.step(1)
        store = trainer.kvstore
        assert store.pull("w").tolist() == [0, 0, 0]
    with pytest.raises(asyncps.errors.ClosedError):
        store.pull("w")
    with asyncps.create("local") as mine:
        asyncps.Trainer({"w": ones(3)}, "sgd", {"lr": 1}, kvstore=mine).close()
        assert mine.pull("w").tolist() == [1, 1, 1]
