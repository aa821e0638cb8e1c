"""What a checkpoint says of row-sparse keys, in clusters and in stores of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

import asyncps
from asyncps import RowSparse
from asyncps.errors import (
    AsyncPSError,
    CheckpointError,
    DtypeMismatch,
    OptimizerError,
    ShapeMismatch,
)
from asyncps.initializer import Constant, Normal, One, Zero
from asyncps.roles import restoringrows, storingrows
from asyncps.tensor import checkpoint
from tests.support.cluster import on_cluster
from tests.test_cli import run

SHAPE = (30, 2)

both_kinds = pytest.mark.parametrize("kind", ["local", "dist_sync"])


def rows(ids: Any, value: float, shape: Any = SHAPE) -> RowSparse:
    return RowSparse(ids, np.full((len(ids), *shape[1:]), value, "f4"), shape)


def column(store: Any, ids: Any, key: str = "t") -> list[float]:
    return store.row_sparse_pull(key, ids).values[:, 0].tolist()  # type: ignore[no-any-return]


@both_kinds
@pytest.mark.parametrize("other", ["local", "dist_sync", "dist_async"])
def test_rows_that_are_not_in_it_are_what_the_initializer_says(
    tmp_path: Path, kind: str, other: str
) -> None:
    with asyncps.create(kind) as store:
        store.init("t", Constant(3), shape=SHAPE)
        store.set_optimizer("test")
        store.push("t", rows([4, 9], 2))
        store.save(tmp_path / "c")
        store.push("t", rows([4, 5], 50))
        store.load(tmp_path / "c")
        assert column(store, [4, 5, 9]) == [5, 3, 5]
    with asyncps.create(other) as store:
        store.load(tmp_path / "c")
        assert column(store, [4, 5, 9]) == [5, 3, 5]
        store.push("t", rows([5], 1)).wait()
        assert column(store, [4, 5, 9]) == [5, 4, 5]
        store.init("t", Constant(3), shape=SHAPE)  # it is that key
        assert column(store, [4, 5, 9]) == [5, 4, 5]


@both_kinds
def test_table_that_a_round_has_replaced_is_zero_elsewhere(tmp_path: Path, kind: str) -> None:
    with asyncps.create(kind) as store:
        store.init(["t", "d"], [Normal(), np.ones(3, "f4")], shape=SHAPE)
        store.push("t", rows([4], 2))
        store.save(tmp_path / "c")
    for other in ("local", "dist_sync"):
        with asyncps.create(other) as store:
            store.init("t", Normal(), shape=SHAPE)
            assert column(store, [5]) != [0]
            store.load(tmp_path / "c")
            assert column(store, [3, 4, 29]) == [0, 2, 0]
            store.init("t", Normal(), shape=SHAPE)
            assert (store.pull("d") == 1).all()


def test_files_are_told_by_safetensors_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with asyncps.create("dist_sync") as store:
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("sgd", learning_rate=1, momentum=0.5)
        store.push("t", rows([4, 9], 2))
        store.push("t", rows([9, 11], 2))
        store.save(tmp_path / "c")
        store.save_optimizer_states(tmp_path / "s")
    found = load_file(tmp_path / "c" / "tables.safetensors")
    assert found["t/rows"].tolist() == [4, 9, 11]
    assert found["t/values"].tolist() == [[-1, -1], [-4, -4], [-1, -1]]
    assert found["t/state.momentum"].tolist() == [[-2, -2], [-3, -3], [-2, -2]]
    assert load_file(tmp_path / "s" / "tables.safetensors").keys() == {"t/rows",
                                                                      "t/state.momentum"}
    assert run("checkpoint", "show", str(tmp_path / "c")) == 0
    shown = capsys.readouterr().out
    assert "'t'" in shown
    assert "(3, 2)" in shown
    assert "state.momentum" in shown
    assert "table 't': 3 rows of (30, 2), the others One()" in shown


@both_kinds
def test_states_are_saved_and_loaded_alone(tmp_path: Path, kind: str) -> None:
    with asyncps.create(kind) as store:
        store.init("t", Zero(), shape=SHAPE)
        store.set_optimizer("sgd", learning_rate=1, momentum=0.5)
        store.push("t", rows([4, 20], 2))
        store.save_optimizer_states(tmp_path / "s")
    for other in ("local", "dist_sync"):
        with asyncps.create(other) as store:
            store.init("t", Constant(7), shape=SHAPE)
            with pytest.raises(CheckpointError, match="first rows"):
                store.load_optimizer_states(tmp_path / "s")
        with asyncps.create(other) as store:
            store.init("t", Zero(), shape=SHAPE)
            store.set_optimizer("adam")
            store.push("t", rows([4, 5], 1))
            before = column(store, range(30))
            store.load_optimizer_states(tmp_path / "s")
            assert store.optimizer == "sgd"
            assert column(store, range(30)) == before
            store.push("t", rows([4, 5], 0))
            # The momentum of row 4 goes on: v = 0.5 * -2; row 5 has none.
            assert column(store, [4, 5, 20]) == [np.float32(before[4] - 1), before[5], 0]
            with pytest.raises(CheckpointError, match="lacks"):
                store.load(tmp_path / "s")


@pytest.mark.parametrize("dtype", ["f8", "f2", ml_dtypes.bfloat16, "i4", "u1"])
def test_every_dtype_of_a_table_is_saved_by_both_and_loaded_by_both(
    tmp_path: Path, dtype: Any
) -> None:
    values = np.arange(12).reshape(6, 2).astype(dtype)
    for kind in ("local", "dist_sync"):
        with asyncps.create(kind) as store:
            store.init("t", One(), shape=SHAPE, dtype=dtype)
            store.assign("t", RowSparse([1, 2, 3, 17, 20, 29], values, SHAPE))
            store.save(tmp_path / "c")
        for other in ("local", "dist_sync"):
            with asyncps.create(other) as store:
                store.load(tmp_path / "c")
                found = store.row_sparse_pull("t", [1, 2, 3, 17, 20, 29])
                assert found.values.dtype == np.dtype(dtype)
                assert found.values.tobytes() == values.tobytes()
                assert (store.row_sparse_pull("t", [0, 28]).values == 1).all()


@pytest.mark.parametrize("options", [{"type": "dist_async"}, {"type": "dist_ssp", "staleness": 2}])
def test_stores_without_rounds_count_each_push(tmp_path: Path, options: dict[str, Any]) -> None:
    def push(store: Any, turns: range) -> bytes:
        for turn in turns:
            store.push("t", rows([turn, 20], turn + 1)).wait()
        return store.row_sparse_pull("t", range(30)).values.tobytes()  # type: ignore[no-any-return]

    def first(store: Any) -> bytes:
        store.init("t", Normal(), shape=SHAPE)
        store.set_optimizer("adam", learning_rate=0.1)
        push(store, range(3))
        store.save(tmp_path / "c")
        return push(store, range(3, 6))

    def second(store: Any) -> bytes:
        store.load(tmp_path / "c")
        return push(store, range(3, 6))

    expected = on_cluster(first, workers=1, servers=2, **options)
    assert on_cluster(second, workers=1, servers=3, **options) == expected
    assert on_cluster(second, workers=1, servers=1) == expected


def test_rows_travel_in_pieces_and_pulls_go_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (storingrows, restoringrows):
        monkeypatch.setattr(module, "RANGE_BYTES", 64)
    shape = (1000, 3)
    whole = np.arange(3000, dtype="f4").reshape(shape)
    stream = storingrows.stream
    stores: list[Any] = []

    async def pulled(worker: Any, client: Any, tables: Any, disk: Any, writer: Any) -> None:
        assert tables[0].entries["rows"].shape == (500,)
        await disk.run(stores[0].row_sparse_pull, "t", [1, 333, 335, 999])
        await stream(worker, client, tables, disk, writer)

    monkeypatch.setattr(storingrows, "stream", pulled)

    def work(store: Any) -> None:
        store.init("t", One(), shape=shape)
        if store.rank == 0:
            stores.append(store)
            store.assign("t", RowSparse(range(0, 1000, 2), whole[::2], shape))
        store.barrier()
        store.save(tmp_path / "c")

    def again(store: Any) -> None:
        store.load(tmp_path / "c")
        found = store.row_sparse_pull("t", range(1000)).values
        assert np.array_equal(found[::2], whole[::2])
        assert (found[1::2] == 1).all()

    on_cluster(work, servers=3, transport="tcp")
    on_cluster(again, servers=2, transport="tcp")


MISFITS: dict[str, tuple[Callable[[Any], Any], type[AsyncPSError], str]] = {
    "shape": (lambda s: s.init("t", One(), shape=(31, 2)), ShapeMismatch, "31"),
    "dtype": (lambda s: s.init("t", One(), shape=SHAPE, dtype="f8"), DtypeMismatch, "float64"),
    "first rows": (lambda s: s.init("t", Zero(), shape=SHAPE), CheckpointError, "Zero"),
    "dense here": (lambda s: s.init("t", np.ones(SHAPE, "f4")), CheckpointError, "lacks|dense"),
    "dense there": (lambda s: s.init("d", One(), shape=3), CheckpointError, "lacks|row-sparse"),
    "one more": (lambda s: s.init("x", One(), shape=3), CheckpointError, "lacks"),
}


@both_kinds
@pytest.mark.parametrize("what", MISFITS)
def test_what_does_not_fit_changes_nothing(tmp_path: Path, kind: str, what: str) -> None:
    prepare, error, text = MISFITS[what]
    with asyncps.create("local") as store:
        store.init(["t", "d", "a", "b"], [One(), np.ones(3, "f4"), np.zeros(2, "f4"), Constant(2)],
                   shape=SHAPE)
        store.set_optimizer("test")
        store.push("t", rows([3], 1))
        store.save(tmp_path / "c")
    with asyncps.create(kind) as store:
        prepare(store)
        store.init(["a", "b"], [np.full(2, 7, "f4"), Constant(2)], shape=SHAPE)
        with pytest.raises(error, match=text):
            store.load(tmp_path / "c")
        assert store.optimizer is None
        assert (store.pull("a") == 7).all()
        assert column(store, [3], "b") == [2]
        store.push("b", rows([3], 5))
        assert column(store, [3, 4], "b") == [5, 0]


def change_ids(folder: Path) -> None:
    found = checkpoint.read(folder)
    found.tables["t"].rows[:] = [5, 3]
    checkpoint.write(folder, found.weights, found.state, found.meta, found.tables)


def change_range(folder: Path) -> None:
    found = checkpoint.read(folder)
    found.tables["t"].rows[:] = [5, 30]
    checkpoint.write(folder, found.weights, found.state, found.meta, found.tables)


def change_state(folder: Path) -> None:
    found = checkpoint.read(folder)
    found.tables["t"].state["x"] = np.zeros((2, 2), "f8")
    checkpoint.write(folder, found.weights, found.state, found.meta, found.tables)


def change_optimizer(folder: Path) -> None:
    said = json.loads((folder / "checkpoint.json").read_text())
    said["meta"]["optimizer"]["name"] = "nobody's"
    (folder / "checkpoint.json").write_text(json.dumps(said))


def change_clocks(folder: Path) -> None:
    said = json.loads((folder / "checkpoint.json").read_text())
    said["meta"]["clocks"] = []
    (folder / "checkpoint.json").write_text(json.dumps(said))


@both_kinds
@pytest.mark.parametrize(("change", "error"), [
    (change_ids, CheckpointError), (change_range, CheckpointError),
    (change_state, CheckpointError), (change_optimizer, OptimizerError),
    (change_clocks, CheckpointError),
])
def test_spoilt_checkpoint_is_a_typed_error_and_changes_nothing(
    tmp_path: Path, kind: str, change: Callable[[Path], None], error: type[AsyncPSError]
) -> None:
    with asyncps.create(kind) as store:
        store.init("t", One(), shape=SHAPE)
        store.set_optimizer("sgd", learning_rate=1, momentum=0.5)
        store.push("t", rows([3, 5], 1))
        store.save(tmp_path / "c")
        store.push("t", rows([3, 5], 1))
        change(tmp_path / "c")
        with pytest.raises(error):
            store.load(tmp_path / "c")
        store.push("t", rows([3], 0))
        assert column(store, [3, 5]) == [-2.25, -1.5]
