"""What compressed keys have not sent is part of a checkpoint: a run goes on with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from asyncps.errors import CheckpointError
from asyncps.kvstore import KVStore
from asyncps.tensor import checkpoint
from tests.checkpoints.runs import begin, same, train
from tests.support.cluster import on_cluster

HYPER = {"learning_rate": 0.1, "momentum": 0.9}
SPECS: dict[str, dict[str, Any]] = {
    "2bit": {"type": "2bit", "threshold": 0.7},
    "topk": {"type": "topk", "ratio": 0.1, "small_bytes": 0},
    "randomk": {"type": "randomk", "ratio": 0.3, "small_bytes": 0, "values": "f16"},
    "int8": {"type": "int8", "small_bytes": 0, "lr_scaled": True},
}


def ready(store: KVStore, spec: Any) -> None:
    store.set_optimizer("sgd", **HYPER)
    store.set_gradient_compression(spec)
    begin(store)


def run(spec: Any, turns: int, *, workers: int = 3, saves: Path | None = None) -> list[Any]:
    """Train; save at the end, if a path is given."""

    def work(store: KVStore) -> list[Any]:
        ready(store, spec)
        found = train(store, range(turns))
        if saves is not None:
            store.save(saves)
        return found

    return on_cluster(work, workers=workers, servers=2, order="rank")[0]


def residuals(store: KVStore) -> dict[Any, Any]:
    return {key: coder.residual for key, coder in store._core.client.compression.coders
            if coder.residual is not None}


@pytest.mark.parametrize(("name", "first"), [
    *((name, "load") for name in SPECS if name != "randomk"),
    *((name, "compression") for name in SPECS),
])  # fmt: skip
def test_a_run_goes_on_as_if_uninterrupted(tmp_path: Path, name: str, first: str) -> None:
    spec = SPECS[name]
    run(spec, 5, saves=tmp_path / "c")
    expected = run(spec, 9)

    def go_on(store: KVStore) -> list[Any]:
        if first == "load":
            store.load(tmp_path / "c")
            store.set_gradient_compression(spec)
        else:
            ready(store, spec)
            train(store, range(100, 103))  # what was there before is gone
            store.load(tmp_path / "c")
        return train(store, range(5, 9))

    # The places of randomk are drawn by where a key lives: on other servers, or made in another
    # order, it lives elsewhere.
    servers = 2 if name == "randomk" else 3
    for found in on_cluster(go_on, workers=3, servers=servers, order="rank"):
        same(found, expected)


@pytest.mark.parametrize("transport", ["memory", "tcp"])
def test_the_job_that_saves_goes_on_and_may_go_back(tmp_path: Path, transport: str) -> None:
    spec = SPECS["2bit"]
    expected = run(spec, 8)

    def work(store: KVStore) -> None:
        ready(store, spec)
        for turn in range(5):
            train(store, range(turn, turn + 1))
            store.save(tmp_path / "c")
        kept = {key: array.copy() for key, array in residuals(store).items()}
        same(train(store, range(5, 8)), expected)
        store.load(tmp_path / "c")
        assert {key: array.tolist() for key, array in residuals(store).items()} == {
            key: array.tolist() for key, array in kept.items()}
        same(train(store, range(5, 8)), expected)

    on_cluster(work, workers=3, servers=2, order="rank", transport=transport)


def test_files_say_what_each_rank_had_not_sent(tmp_path: Path) -> None:
    def work(store: KVStore) -> dict[Any, Any]:
        store.init(["a/b", 5, "dense"], [np.zeros((2, 3), "f4")] * 3)
        store.set_gradient_compression({"type": "2bit"}, keys=["a/b", 5])
        store.push(["a/b", 5, "dense"], [np.full((2, 3), 0.1 * (store.rank + 1), "f4")] * 3)
        store.save(tmp_path / "c")
        return residuals(store)

    kept = on_cluster(work)
    file = load_file(tmp_path / "c" / "residuals.safetensors")
    assert {name: array.tolist() for name, array in file.items()} == {
        f"{name}/{rank}": kept[rank][key].tolist()
        for name, key in (("a/b", "a/b"), ("5", 5)) for rank in (0, 1)}
    assert np.allclose(file["a/b/1"], 0.2)
    items, meta = checkpoint.show(tmp_path / "c")
    assert meta["residuals"] == {"ranks": [0, 1], "pushes": []} or meta["residuals"]["pushes"]
    assert [item.state for item in items if item.key == 5] == [
        None, "residual of rank 0", "residual of rank 1"]


def test_a_store_that_has_kept_nothing_writes_no_such_file(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.save(tmp_path / "dense")
        store.set_gradient_compression({"type": "2bit"})
        store.save(tmp_path / "unused")
        store.push("w", np.full(5, 0.3, "f4"))
        store.barrier()
        store.load(tmp_path / "unused")  # and what is kept is forgotten
        assert residuals(store) == {}
        store.set_optimizer("sgd", learning_rate=1.0)
        store.push("w", np.full(5, 0.3, "f4"))
        store.save_optimizer_states(tmp_path / "states")

    on_cluster(work)
    for name in ("dense", "unused", "states"):
        assert not (tmp_path / name / "residuals.safetensors").exists()
        assert "residuals" not in checkpoint.show(tmp_path / name)[1]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_sum_is_kept_on_another_number_of_workers(tmp_path: Path, workers: int) -> None:
    sizes = {"small": 7, "large": 1_500_001, "none": 0}

    def save(store: KVStore) -> dict[Any, Any]:
        store.init(list(sizes), [np.zeros(size, "f4") for size in sizes.values()])
        store.set_gradient_compression({"type": "2bit", "threshold": 0.5})
        chance = np.random.default_rng(store.rank)
        store.push(list(sizes), [chance.uniform(-1, 1, n).astype("f4") for n in sizes.values()])
        store.save(tmp_path / "c")
        return residuals(store)

    def load(store: KVStore) -> dict[Any, Any]:
        store.load(tmp_path / "c")
        return residuals(store)

    saved = on_cluster(save, workers=3)
    loaded = on_cluster(load, workers=workers, servers=3)
    for key in ("small", "large"):
        total = sum(each[key].astype("f8") for each in saved)
        found = [each[key] for each in loaded if key in each]
        assert len(found) == min(3, workers)
        assert np.allclose(sum(each.astype("f8") for each in found), total, atol=1e-6)
        if workers >= 3:
            assert all(np.array_equal(a, b[key]) for a, b in zip(found, saved, strict=True))


def test_a_worker_that_got_nothing_saves_what_others_got(tmp_path: Path) -> None:
    def save(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression({"type": "2bit"}, keys=["w"])
        store.push("w", np.full(5, 0.1 * (store.rank + 1), "f4"))
        store.save(tmp_path / "c")

    def again(store: KVStore) -> Any:
        store.load(tmp_path / ("c" if store.num_workers == 3 else "d"))
        store.save(tmp_path / "d")
        return residuals(store)

    on_cluster(save, workers=2)
    found = on_cluster(again, workers=3)
    assert [list(each) for each in found] == [["w"], ["w"], []]
    (whole,) = on_cluster(again, workers=1)
    assert np.allclose(whole["w"], 0.3)


def test_a_local_store_loads_the_weights_of_it(tmp_path: Path) -> None:
    import asyncps

    run(SPECS["2bit"], 2, saves=tmp_path / "c")
    with asyncps.create("local") as store:
        store.load(tmp_path / "c")
        assert store.pull(5).shape == (3,)


@pytest.mark.parametrize("harm", ["nan", "size", "rank", "gone", "pushes"])
def test_what_cannot_be_is_refused_and_nothing_changes(tmp_path: Path, harm: str) -> None:
    import json

    from safetensors.numpy import save_file

    path = tmp_path / "c"

    def save(store: KVStore) -> None:
        store.init("w", np.zeros(5, "f4"))
        store.set_gradient_compression({"type": "2bit"})
        store.push("w", np.full(5, 0.3, "f4"))
        store.save(path)

    on_cluster(save)
    file = path / "residuals.safetensors"
    arrays = load_file(file)
    if harm == "nan":
        arrays["w/1"][3] = np.nan
    elif harm == "size":
        arrays["w/1"] = arrays["w/1"][:4].copy()
    elif harm == "rank":
        arrays["w/-1"] = arrays.pop("w/1")
    save_file(arrays, file)
    if harm == "gone":
        file.unlink()
    elif harm == "pushes":
        told = json.loads((path / "checkpoint.json").read_text())
        told["meta"]["residuals"]["pushes"] = [["w", -1]]
        (path / "checkpoint.json").write_text(json.dumps(told))

    def load(store: KVStore) -> None:
        store.init("w", np.ones(5, "f4"))
        store.set_gradient_compression({"type": "2bit"})
        store.push("w", np.full(5, 0.7, "f4"))
        store.barrier()
        with pytest.raises(CheckpointError):
            store.load(path)
        assert np.allclose(residuals(store)["w"], 0.2)
        assert (store.pull("w") == 1).all()

    on_cluster(load)
