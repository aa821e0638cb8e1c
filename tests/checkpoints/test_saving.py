"""What save writes, when it refuses, and that the job goes on whatever comes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

import asyncps
from asyncps.errors import (
    AsyncPSError,
    CheckpointError,
    ClosedError,
    ClusterError,
    ConfigError,
    Disagreement,
    OptimizerError,
)
from asyncps.kvstore import KVStore
from asyncps.tensor import checkpoint
from tests.checkpoints.runs import SHAPES, begin, train
from tests.support.cluster import on_cluster

BF16 = np.dtype(ml_dtypes.bfloat16)


def refusal(kind: type[AsyncPSError], verb: Any, *words: Any) -> AsyncPSError:
    with pytest.raises(kind) as caught:
        verb(*words)
    return caught.value


def still_works(store: KVStore) -> None:
    """Rounds complete, and a save succeeds."""
    store.init("still", np.zeros(3, "f4"))
    before = store.pull("still")
    store.pushpull("still", np.ones(3, "f4"))
    assert before.shape == (3,)
    store.barrier()


@pytest.mark.parametrize("dtype", ["f4", "f2", "bf16"])
def test_safetensors_alone_reads_the_weights(tmp_path: Path, dtype: str) -> None:
    real = BF16 if dtype == "bf16" else np.dtype(dtype)
    values = {"a": np.arange(6).reshape(2, 3).astype(real), "big": np.ones(300_000, real)}

    def work(store: KVStore) -> None:
        store.init(list(values), list(values.values()))
        store.save(tmp_path / "c")

    on_cluster(work, workers=2, servers=3)
    path = tmp_path / "c" / "weights.safetensors"
    if dtype != "bf16":
        for key, array in load_file(path).items():
            assert array.dtype == real
            assert np.array_equal(array, values[key])
        return
    with safe_open(path, framework="np") as file:
        assert {name: file.get_slice(name).get_dtype() for name in file.keys()} == {
            "a": "BF16", "big": "BF16"}
        assert file.get_slice("a").get_shape() == [2, 3]
    assert np.array_equal(checkpoint.read(tmp_path / "c").weights["a"], values["a"])


def test_states_clocks_and_words_are_those_of_a_local_store(tmp_path: Path) -> None:
    # The oracle is the store of one process, which saves what it has in its own memory.
    hyper = {"learning_rate": 0.1, "lr_mult": {5: 0.5}}
    with asyncps.create("local", multi_precision=True) as local:
        local.set_optimizer("adam", **hyper)
        begin(local, "f2")  # type: ignore[arg-type]
        train(local, range(4), "f2")  # type: ignore[arg-type]
        local.save(tmp_path / "local")

    def work(store: KVStore) -> None:
        store.set_optimizer("adam", **hyper)
        begin(store, "f2")
        train(store, range(4), "f2")
        store.save(tmp_path / "cluster")
        store.save_optimizer_states(tmp_path / "states")

    on_cluster(work, workers=1, servers=3, multi_precision=True)
    expected, found = (checkpoint.read(tmp_path / name) for name in ("local", "cluster"))
    states = checkpoint.read(tmp_path / "states")
    assert found.meta["store"] == "dist_sync"
    assert found.meta["optimizer"] == expected.meta["optimizer"] == states.meta["optimizer"]
    # A key of no elements has no unit, so servers count no updates of it.
    assert {tuple(each) for each in found.meta["clocks"]} == {
        (key, count if key != "none" else 0) for key, count in expected.meta["clocks"]}
    assert states.weights == {}
    for key in SHAPES:
        assert found.weights[key].tobytes() == expected.weights[key].tobytes()
        if key == "none":
            continue
        for name in ("mean", "variance", "master"):
            assert found.state[key][name].tobytes() == expected.state[key][name].tobytes(), key
            assert np.array_equal(states.state[key][name], found.state[key][name])


def test_local_stores_and_clusters_load_each_others(tmp_path: Path) -> None:
    def first(store: KVStore) -> Any:
        store.set_optimizer("sgd", learning_rate=0.1, momentum=0.9)
        begin(store)
        train(store, range(3))
        store.save(tmp_path / "cluster")
        return train(store, range(3, 5))

    expected = on_cluster(first, workers=1, servers=2)[0]
    with asyncps.create("local") as local:
        local.load(tmp_path / "cluster")
        local.save(tmp_path / "local")
        found = train(local, range(3, 5))  # type: ignore[arg-type]
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)

    def back(store: KVStore) -> Any:
        store.load(tmp_path / "local")
        return train(store, range(3, 5))

    for a, b in zip(on_cluster(back, workers=1, servers=3)[0], expected, strict=True):
        assert np.array_equal(a, b)


def test_different_words_are_a_disagreement_of_all(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        error = refusal(Disagreement, store.save, tmp_path / f"c{store.rank // 2}")
        assert "worker 0 said save" in str(error)
        assert "worker 2 said save" in str(error)
        verb = store.load if store.rank == 1 else store.save
        refusal(Disagreement, verb, tmp_path / "c")
        still_works(store)
        store.save(tmp_path / "c")

    on_cluster(work, workers=3)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("options", [{}, {"type": "dist_ssp", "staleness": 1}], ids=["sync", "ssp"])
def test_open_round_is_named_with_its_key_and_ranks(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    turns = 2 if options else 1  # dist_ssp applies what is within its bound

    def work(store: KVStore) -> None:
        store.set_optimizer("test")
        store.init(["a", "b"], [np.zeros(3, "f4"), np.zeros(90_000, "f4")])
        if store.rank == 1:
            for _ in range(turns):
                store.push("b", np.ones(90_000, "f4")).wait(5)
        for verb in (store.save, store.load):
            if verb == store.load and store.rank == 0:
                checkpoint.write(tmp_path / "x", {"a": np.zeros(3, "f4"),
                                                  "b": np.zeros(90_000, "f4")}, {},
                                 {"optimizer": None, "clocks": [["a", 0], ["b", 0]]})
            store.barrier()
            error = refusal(Disagreement, verb, tmp_path / "x")
            assert error.key == "b"
            assert "ranks [0]" in str(error)
        if store.rank == 0:
            for _ in range(turns):
                store.push("b", np.ones(90_000, "f4")).wait(5)
        store.barrier()
        assert (store.pull("b") == 2 * turns).all()
        store.save(tmp_path / "c")

    on_cluster(work, workers=2, **options)
    assert (checkpoint.read(tmp_path / "c").weights["b"] == 2 * turns).all()


@contextmanager
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; RLIMIT_FSIZE, in tests of the form, is for machines without."""
    import subprocess

    place = tmp_path / "disk"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system may be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, check=True)


def test_full_disk_is_an_error_of_all_and_the_old_one_stands(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:

        def work(store: KVStore) -> None:
            store.init("w", np.full(100, 7, "f4"))
            store.save(disk / "c")
            store.init("large", np.ones(200_000, "f4"))
            for path in (disk / "c", disk / "d"):
                error = refusal(CheckpointError, store.save, path)
                assert "could not be written" in str(error)
            still_works(store)

        on_cluster(work, workers=2)
        assert [path.name for path in disk.iterdir()] == ["c"]
        assert checkpoint.read(disk / "c").weights.keys() == {"w"}


def test_place_that_cannot_be_is_an_error_of_all(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").write_text("It")
    (tmp_path / "file").write_text("x")

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        for name in ("mine", "file", "no folder/c", "file/c"):
            refusal(CheckpointError, store.save, tmp_path / name)
        with pytest.raises(ConfigError):
            store.save(7)  # type: ignore[arg-type]
        refusal(OptimizerError, store.save_optimizer_states, tmp_path / "c")
        still_works(store)

    on_cluster(work, workers=2)
    assert (tmp_path / "mine" / "thesis").read_text() == "It"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "mine"]


def test_nothing_is_pushed_while_a_save_waits(tmp_path: Path) -> None:
    came = threading.Event()

    def work(store: KVStore) -> None:
        store.init("w", np.zeros(3, "f4"))
        store.barrier()
        if store.rank:
            assert came.wait(20)
            store.save(tmp_path / "c")
        else:
            saving = threading.Thread(target=store.save, args=(tmp_path / "c",))
            saving.start()
            while not store._core.client.still:
                pass
            for verb in (store.push, store.pushpull, store.assign):
                refusal(ClusterError, lambda verb=verb: finished(verb("w", np.ones(3, "f4"))))
            refusal(ClusterError, store.save, tmp_path / "d")
            assert store.pull("w").tolist() == [0, 0, 0]
            came.set()
            saving.join()
        assert store.pushpull("w", np.ones(3, "f4")).tolist() == [2, 2, 2]

    on_cluster(work, workers=2, transport="tcp")
    assert checkpoint.read(tmp_path / "c").weights["w"].tolist() == [0, 0, 0]


def finished(result: Any) -> None:
    if hasattr(result, "wait"):
        result.wait(5)


@pytest.mark.parametrize("options", [{"type": "dist_async"}, {"type": "dist_ssp", "staleness": 2}],
                         ids=["async", "ssp"])
def test_stores_that_apply_each_push_count_each(tmp_path: Path, options: dict[str, Any]) -> None:
    def work(store: KVStore) -> Any:
        store.set_optimizer("adam", learning_rate=0.1)
        begin(store)
        for _ in range(3):
            for key, shape in SHAPES.items():
                store.push(key, np.ones(shape, "f4"))
        store.save(tmp_path / "c")
        return store.pull("two")

    values = on_cluster(work, workers=2, servers=2, **options)
    found = checkpoint.read(tmp_path / "c")
    assert dict(map(tuple, found.meta["clocks"])) == {k: 6 if k != "none" else 0 for k in SHAPES}
    assert np.array_equal(found.weights["two"], values[0])

    def back(store: KVStore) -> Any:
        store.load(tmp_path / "c")
        store.barrier()
        value = store.pull("two")
        store.barrier()
        store.push("two", np.ones((700, 300), "f4")).wait(5)
        store.save(tmp_path / "d")
        return value

    assert np.array_equal(on_cluster(back, workers=3, servers=1, **options)[2], values[0])
    assert dict(map(tuple, checkpoint.read(tmp_path / "d").meta["clocks"]))["two"] == 9


def test_lowest_rank_that_is_there_writes(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.init("w", np.arange(3, dtype="f4"))
        store.barrier()
        if store.rank == 0:
            store.close()
            return
        try:
            store.save(tmp_path / "c")
        except ClusterError:  # it left while we waited for it
            store.save(tmp_path / "c")
        store.load(tmp_path / "c")
        checkpoint.write(tmp_path / f"more{store.rank}", {
            "w": np.zeros(3, "f4"), "new": np.zeros(3, "f4")}, {},
            {"optimizer": None, "clocks": [["w", 0], ["new", 0]]})
        store.barrier()
        refusal(ClusterError, store.load, tmp_path / "more1")

    on_cluster(work, workers=3)
    assert checkpoint.read(tmp_path / "c").weights["w"].tolist() == [0, 1, 2]


def test_empty_store_and_closed_store(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        store.save(tmp_path / "c")
        store.load(tmp_path / "c")
        store.close()
        refusal(ClosedError, store.save, tmp_path / "d")

    on_cluster(work, workers=2)
    assert checkpoint.read(tmp_path / "c").weights == {}


def test_await_face_saves_and_loads(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.set_optimizer("test", rescale_grad=2)
            await store.init("w", np.zeros(3, "f4"))
            await store.pushpull("w", np.ones(3, "f4"))
            await store.save(tmp_path / "c")
            await store.save_optimizer_states(tmp_path / "s")
            await store.pushpull("w", np.ones(3, "f4"))
            await store.load(tmp_path / "c")
            await store.load_optimizer_states(tmp_path / "s")
            assert (await store.pull("w")).tolist() == [2, 2, 2]

    asyncio.run(work())


def test_save_that_is_cancelled_leaves_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with asyncps.connect("dist_sync") as store:
            await store.init("w", np.zeros(4_000_000, "f4"))
            saving = asyncio.ensure_future(store.save(tmp_path / "c"))
            for _ in range(20):
                await asyncio.sleep(0)
            saving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await saving
            assert list(tmp_path.iterdir()) == []
            await store.pushpull("w", np.ones(4_000_000, "f4"))
            await store.save(tmp_path / "c")

    asyncio.run(work())
    assert (checkpoint.read(tmp_path / "c").weights["w"] == 1).all()
