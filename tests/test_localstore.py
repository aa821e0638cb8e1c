"""The store of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncps
from asyncps import optim
from asyncps.errors import (
    CheckpointError,
    ConfigError,
    DtypeMismatch,
    KeyExists,
    OptimizerError,
    ShapeMismatch,
    TensorError,
    UnknownKey,
)
from asyncps.localstore import LocalStore

SHAPE = (4, 4)


@pytest.fixture(params=["local", "device"])
def store(request: pytest.FixtureRequest) -> Any:
    with asyncps.create(request.param) as made:
        yield made


def test_k13_without_an_updater_a_push_replaces(store: LocalStore) -> None:
    store.init(3, np.ones(SHAPE, "f4") * 4)
    out = np.zeros(SHAPE, "f4")
    store.pull(3, out=out)
    assert np.all(out == 4)
    store.push(3, np.ones(SHAPE, "f4"))
    assert np.all(store.pull(3) == 1)
    store.push(3, [np.ones(SHAPE, "f4") for _ in range(4)])
    outs = [np.zeros(SHAPE, "f4") for _ in range(4)]
    assert store.pull(3, out=outs) is outs
    assert all(np.all(o == 4) for o in outs)
    keys = [5, "5", 9]
    store.init(keys, [np.ones(SHAPE, "f4")] * 3)
    store.push(keys, [np.full(SHAPE, i, "f4") for i in range(3)])
    assert [float(v[0, 0]) for v in store.pull(keys)] == [0, 1, 2]


def test_values_are_copies_both_ways(store: LocalStore) -> None:
    mine = np.ones(3, "f4")
    store.init("w", mine)
    mine[:] = 9
    got = store.pull("w")
    assert got.tolist() == [1, 1, 1]
    got[:] = 8
    store.push("w", mine)
    mine[:] = 7
    assert store.pull("w").tolist() == [9, 9, 9]
    mine[:] = 6
    store.assign("w", mine)
    mine[:] = 5
    assert store.pull("w").tolist() == [6, 6, 6]


def test_init_of_a_key_that_exists_checks_and_changes_nothing(store: LocalStore) -> None:
    store.init("w", np.ones(3, "f4"))
    store.init("w", np.zeros(3, "f4"))
    assert store.pull("w").tolist() == [1, 1, 1]
    with pytest.raises(ShapeMismatch, match=r"'w'.*\(3,\).*\(4,\)"):
        store.init("w", np.zeros(4, "f4"))
    with pytest.raises(DtypeMismatch, match=r"'w'.*float32.*float64"):
        store.init("w", np.zeros(3, "f8"))


def test_mistakes_raise_typed_errors_and_change_nothing(store: LocalStore) -> None:
    store.init(["w", "v"], [np.ones(3, "f4"), np.ones(3, "f4")])
    good = np.full(3, 5, "f4")
    for kind, verb in (
        (UnknownKey, lambda: store.pull("z")), (UnknownKey, lambda: store.push("z", good)),
        (ShapeMismatch, lambda: store.push("w", np.ones(4, "f4"))),
        (DtypeMismatch, lambda: store.push("w", np.ones(3, "f8"))),
        (DtypeMismatch, lambda: store.push("w", np.ones(3, ">f4"))),
        (ShapeMismatch, lambda: store.push(["w", "v"], [good, np.ones(4, "f4")])),
        (ShapeMismatch, lambda: store.assign(["w", "v"], [good, np.ones(4, "f4")])),
        (KeyExists, lambda: store.push(["w", "w"], [good, good])),
        (TensorError, lambda: store.push(["w", "v"], [good])),
        (TensorError, lambda: store.push("w", [])),
        (TensorError, lambda: store.push("w", "text")),
        (TensorError, lambda: store.pull("w", out=[1.0])),
        (TensorError, lambda: store.pull("w", out=[])),
        (ShapeMismatch, lambda: store.pushpull("w", good, out=np.ones(4, "f4"))),
        (TensorError, lambda: store.pushpull("w", [5.0, 5.0, 5.0])),
        (TensorError, lambda: store.pushpull("w", np.broadcast_to(np.float32(1), (3,)))),
        (ShapeMismatch, lambda: store.init(["n", "w"], [good, np.ones(4, "f4")])),
    ):
        with pytest.raises(kind):
            verb()
        assert store.pull("w").tolist() == store.pull("v").tolist() == [1, 1, 1]
    with pytest.raises(UnknownKey):
        store.pull("n")


def test_f16_values_of_devices_are_summed_in_f32(store: LocalStore) -> None:
    store.init("h", np.zeros(5, "f2"))
    store.push("h", [np.full(5, 1e-3, "f2") for _ in range(64)])
    assert np.allclose(store.pull("h").astype("f8"), 0.06402588, atol=1e-8)


def test_pushpull_without_out_writes_into_the_value(store: LocalStore) -> None:
    store.init("w", np.full(3, 5, "f4"))
    store.set_optimizer("test", rescale_grad=2)
    value = np.ones(3, "f4")
    assert store.pushpull("w", value) is value
    assert value.tolist() == [7, 7, 7]
    handle = store.pushpull("w", np.ones(3, "f4"), async_op=True)
    assert handle.done()
    assert handle.exception() is None
    assert handle.wait(0).tolist() == [9, 9, 9]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_optimizer_gives_what_the_servers_give(store: LocalStore, name: str) -> None:
    hyper: dict[str, Any] = {"learning_rate": 0.1, "wd": 0.01}
    if name == "sgd":
        hyper["momentum"] = 0.9
    with asyncps.create("dist_sync") as other:
        for each in (store, other):
            for key, dtype in (("a", "f4"), ("h", "f2")):
                each.init(key, np.ones(50, dtype))
            each.set_optimizer(name, **hyper)
        for turn in range(6):
            if turn == 3:
                for each in (store, other):
                    each.set_hyperparameters(lr=0.01)
            for key, dtype in (("a", "f4"), ("h", "f2")):
                g = np.random.default_rng(turn).standard_normal(50).astype(dtype)
                one, two = store.pushpull(key, g.copy()), other.pushpull(key, g.copy())
                assert one.tobytes() == two.tobytes()


def test_hyper_parameters_change_this_store_and_not_the_callers_optimizer(
    store: LocalStore,
) -> None:
    mine = optim.Test(rescale_grad=1.0)
    store.set_optimizer(mine)
    store.set_hyperparameters(rescale_grad=5.0)
    store.init("w", np.zeros(3, "f4"))
    store.push("w", np.ones(3, "f4"))
    assert store.pull("w").tolist() == [5, 5, 5]
    assert mine.hyper == {"rescale_grad": 1.0}


def test_integers_refuse_what_they_cannot_do(store: LocalStore) -> None:
    store.init("i", np.ones(3, "i4"))
    store.set_optimizer("sgd")
    with pytest.raises(OptimizerError, match=r"'i'.*int32"):
        store.push("i", np.ones(3, "i4"))
    assert store.pull("i").tolist() == [1, 1, 1]
    with asyncps.create("local", reduce="mean") as mean, pytest.raises(DtypeMismatch, match="'i'"):
        mean.init("i", np.ones(3, "i4"))


def test_sizes_0_and_shapes_without_dimensions(store: LocalStore) -> None:
    for key, shape in (("none", (0, 3)), ("scalar", ()), ("five", (1, 2, 1, 2, 1))):
        store.init(key, np.ones(shape, "f4"))
        store.push(key, np.full(shape, 3, "f4"))
        got = store.pull(key)
        assert got.shape == shape
        assert np.all(got == 3)
    assert store.pull([]) == []


@pytest.mark.parametrize("name", ["_set_updater", "set_updater"])
def test_k13_an_updater_changes_the_stored_value_in_place(store: LocalStore, name: str) -> None:
    def updater(key: Any, given: Any, stored: Any) -> None:
        seen.append(key)
        stored += given * 2
        given[:] = -99  # it is the updater's own

    seen: list[Any] = []
    keys = [3, "3", 7]
    store.init(keys, [np.ones(SHAPE, "f4") * 4] * 3)
    getattr(store, name)(updater)
    mine = np.ones(SHAPE, "f4")
    store.push(3, mine)
    assert np.all(store.pull(3) == 6)
    assert np.all(mine == 1)
    store.push(keys, [[np.ones(SHAPE, "f4") for _ in range(4)]] * 3)
    outs = [[np.zeros(SHAPE, "f4") for _ in range(4)] for _ in keys]
    store.pull(keys, out=outs)
    for expected, devices in zip((14, 12, 12), outs, strict=True):
        assert all(np.all(out == expected) for out in devices)
    assert seen == [3, 3, "3", 7]
    assert [type(key) for key in seen[1:]] == [int, str, int]


def test_updater_and_optimizer_take_each_others_place(store: LocalStore) -> None:
    store.init("w", np.ones(3, "f4"))
    store.set_optimizer("sgd", lr=1, momentum=0.5)
    store.push("w", np.ones(3, "f4"))
    store.set_updater(lambda key, given, stored: np.copyto(stored, given * 10))
    assert store.optimizer is None
    store.push("w", np.ones(3, "f4"))
    assert store.pull("w").tolist() == [10] * 3
    store.set_optimizer("sgd", lr=1, momentum=0.5)
    store.push("w", np.ones(3, "f4"))
    assert store.pull("w").tolist() == [9] * 3  # without the momentum of before
    store.set_updater(None)
    store.push("w", np.ones(3, "f4"))
    assert store.pull("w").tolist() == [1] * 3
    with pytest.raises(ConfigError, match="function"):
        store.set_updater(5)  # type: ignore[arg-type]


def pushes(store: LocalStore, turns: range) -> None:
    for turn in turns:
        rng = np.random.default_rng(turn)
        store.push([5, "5"], [rng.standard_normal(9).astype("f4"),
                              rng.standard_normal((2, 2)).astype("f2")])


def initialised() -> LocalStore:
    store = asyncps.create("local")
    assert isinstance(store, LocalStore)
    store.init([5, "5"], [np.ones(9, "f4"), np.ones((2, 2), "f2")])
    return store


def test_a_saved_store_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole, first = initialised(), initialised()
    for store in (whole, first):
        store.set_optimizer("adam", lr=0.5)
    pushes(whole, range(6))
    pushes(first, range(3))
    first.save(tmp_path / "step-3")
    fresh = asyncps.create("local")
    again = initialised()
    for store in (fresh, again):
        store.load(tmp_path / "step-3")
        assert store.optimizer == "adam"
        pushes(store, range(3, 6))
        for one, two in zip(store.pull([5, "5"]), whole.pull([5, "5"]), strict=True):
            assert one.tobytes() == two.tobytes()


def test_optimizer_states_are_saved_and_loaded_alone(tmp_path: Path) -> None:
    one, two = initialised(), initialised()
    one.set_optimizer("adam", lr=0.5)
    pushes(one, range(3))
    with pytest.raises(OptimizerError, match="no optimizer"):
        two.save_optimizer_states(tmp_path / "s")
    one.save_optimizer_states(tmp_path / "s", dump_optimizer=False)
    two.load_optimizer_states(tmp_path / "s")
    assert two.pull(5).tolist() == [1] * 9
    two.assign([5, "5"], one.pull([5, "5"]))
    for store in (one, two):
        pushes(store, range(3, 5))
    assert one.pull(5).tobytes() == two.pull(5).tobytes()


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    other = asyncps.create("local")
    other.init([5, "5"], [np.ones(8, "f4"), np.ones((2, 2), "f2")])
    other.save(tmp_path / "another shape")
    other = asyncps.create("local")
    other.init(5, np.zeros(9, "f4"))
    other.save(tmp_path / "lacks a key")
    store = initialised()
    store.set_optimizer("sgd", lr=0.5, momentum=0.5)
    pushes(store, range(2))
    before = store.pull([5, "5"])
    for kind, name in ((ShapeMismatch, "another shape"), (CheckpointError, "lacks a key"),
                       (CheckpointError, "is not there")):
        with pytest.raises(kind):
            store.load(tmp_path / name)
    with pytest.raises(OptimizerError, match="without an optimizer"):
        store.load_optimizer_states(tmp_path / "another shape")
    for one, two in zip(before, store.pull([5, "5"]), strict=True):
        assert one.tobytes() == two.tobytes()
    assert store.optimizer == "sgd"
