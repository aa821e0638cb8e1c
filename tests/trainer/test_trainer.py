"""Trainer on stores of clusters and of one process: what counts, what changes, what is refused."""

from __future__ import annotations

from collections import OrderedDict
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
    OptimizerError,
    ShapeMismatch,
    TensorError,
)
from asyncps.kvstore import KVStore
from tests.support.cluster import on_cluster, on_processes
from tests.support.processes import ProcessGroup
from tests.trainer.params import Param, ones

both_places = pytest.mark.parametrize("on_store", [True, False])
both_transports = pytest.mark.parametrize("transport", ["memory", "tcp"])


def k8(store: KVStore) -> None:
    """K8: one parameter of ones, sgd of rate 1, gradient rank+1, step(1); small and large keys."""
    n = store.num_workers
    for on_store in (False, True):  # afterwards the store has an optimizer
        for shape in ((2, 3), (300, 300)):
            param = Param(np.ones(shape, "f4"), np.full(shape, store.rank + 1, "f4"))
            key = f"{shape} {on_store}"
            trainer = asyncps.Trainer({key: param}, "sgd", {"learning_rate": 1}, kvstore=store,
                                      update_on_kvstore=on_store)
            trainer.step(1)
            assert np.all(param.data == 1 - n * (n + 1) / 2)
            assert np.all(param.grad == (store.rank + 1 if on_store else n * (n + 1) / 2))


def changing_batches(store: KVStore) -> None:
    """A last batch of another size, and a changed rate, with momentum: as one optimizer alone."""
    n = store.num_workers
    params = {"a": Param(np.full(3, 50, "f4")), "b": Param(np.full((200, 100), 50, "f4"))}
    trainer = asyncps.Trainer(params, "sgd", {"lr": 0.5, "momentum": 0.5}, kvstore=store)
    w, m, lr = 50.0, 0.0, 0.5
    for batch, rate in ((4, 0.5), (4, 0.5), (2, 0.5), (4, 0.25), (8, 0.25)):
        if rate != lr:
            trainer.set_learning_rate(rate)
        lr = rate
        for param in params.values():
            param.grad = np.full(param.data.shape, store.rank + 1, "f4")
        trainer.step(batch)
        m = 0.5 * m - lr * (n * (n + 1) / 2) / batch
        w += m
        for param in params.values():
            assert np.all(param.data == w), (batch, rate)  # exact: all are dyadic fractions
    assert trainer.learning_rate == 0.25


@both_transports
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_k8_and_changing_batches(workers: int, transport: str) -> None:
    on_cluster(k8, workers=workers, transport=transport)
    on_cluster(changing_batches, workers=workers, transport=transport)


@pytest.mark.slow
def test_k8_seven_workers_and_seven_servers() -> None:
    on_cluster(k8, workers=7, servers=7, settings={"round_s": 120.0, "answer_s": 60.0})


@pytest.mark.slow
@pytest.mark.launch
def test_k8_and_changing_batches_on_real_processes(processes: ProcessGroup) -> None:
    on_processes(processes, k8, workers=3, servers=2)
    on_processes(processes, changing_batches, workers=2, servers=2)


def test_weights_are_rank_0s_before_the_first_step() -> None:
    def work(store: KVStore) -> None:
        param = Param(np.full(5, store.rank + 7, "f4"), np.zeros(5, "f4"))
        fixed = Param([np.full(5, store.rank + 1, "f4") for _ in range(1)], None, "null")
        asyncps.Trainer([param, fixed], "sgd", kvstore=store).step(1)
        assert param.data.tolist() == [7] * 5
        assert fixed.data[0].tolist() == [1] * 5

    on_cluster(work)


@both_places
def test_a_trainer_that_is_made_again_goes_on_from_the_stores_weights(on_store: bool) -> None:
    def work(store: KVStore) -> None:
        for turn in range(2):
            param = Param(np.full(3, 10, "f4"), np.ones(3, "f4"))
            trainer = asyncps.Trainer({"w": param}, "sgd", {"lr": 1}, kvstore=store,
                                      update_on_kvstore=on_store)
            before = 10 - 2 * turn if on_store else 10  # at workers: what rank 0 began with
            assert param.data.tolist() == [before] * 3
            trainer.step(1)
            assert param.data.tolist() == [before - 2] * 3
            store.barrier()

    on_cluster(work)


def test_layers_go_by_their_place_and_small_ones_together() -> None:
    class Spy(asyncps.LocalStore):
        def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0,
                     async_op: bool = False) -> Any:  # fmt: skip
            log.append((key, priority))
            return super().pushpull(key, value, out, priority, async_op)

    log: list[Any] = []
    params = OrderedDict([
        ("z", ones(9000)), ("bias", ones(3)), ("a", ones(9000)), ("scale", ones(3)),
        ("b", ones(9000)),
    ])  # fmt: skip
    trainer = asyncps.Trainer(params, "sgd", kvstore=Spy("local"))
    trainer.step(1)
    assert log == [(["z"], 0), (["bias", "scale"], -1), (["a"], -2), (["b"], -4)]


@both_places
def test_a_gradient_that_is_missing_is_an_error_or_counts_as_zeros(on_store: bool) -> None:
    def work(store: KVStore) -> None:
        params = {"a": ones(3), "b": ones(3)}
        trainer = asyncps.Trainer(params, "sgd", {"lr": 1}, kvstore=store,
                                  update_on_kvstore=on_store)
        params["b"].grad = None if store.rank == 1 else np.full(3, 5, "f4")
        if store.rank == 1:
            with pytest.raises(TensorError, match=r"no gradient.*'b'.*ignore_stale_grad"):
                trainer.step(1)
        trainer.step(1, ignore_stale_grad=True)
        assert params["a"].data.tolist() == [-1] * 3
        assert params["b"].data.tolist() == [-4] * 3

    on_cluster(work)
    params = {"a": ones(3), "b": Param(np.ones(3, "f4"))}
    with asyncps.create("local") as local:
        trainer = asyncps.Trainer(params, "sgd", {"lr": 1, "wd": 0.5}, kvstore=local,
                                  update_on_kvstore=on_store)
        trainer.step(1, ignore_stale_grad=True)
    assert params["a"].data.tolist() == [-0.5] * 3
    assert params["b"].data.tolist() == [1] * 3  # left alone, weight decay included


def test_gradients_may_be_changed_between_the_sum_and_the_update() -> None:
    def work(store: KVStore) -> None:
        param = Param(np.ones(3, "f4"), np.full(3, 4, "f4"))
        trainer = asyncps.Trainer([param], "sgd", {"lr": 1}, kvstore=store, update_on_kvstore=False)
        trainer.allreduce_grads()
        assert param.grad.tolist() == [8] * 3
        np.clip(param.grad, -1, 1, out=param.grad)
        trainer.update(2)
        assert param.data.tolist() == [0.5] * 3

    on_cluster(work)
    with asyncps.create("local") as store:
        trainer = asyncps.Trainer([ones(3)], "sgd", kvstore=store)
        for verb in (trainer.allreduce_grads, lambda: trainer.update(1)):
            with pytest.raises(ConfigError, match="update_on_kvstore=False"):
                verb()


def test_a_wrong_gradient_is_refused_before_anything_is_sent() -> None:
    def work(store: KVStore) -> None:
        params = {"a": ones(3), "b": ones(3)}
        trainer = asyncps.Trainer(params, "sgd", {"lr": 1}, kvstore=store)
        good = params["b"].grad
        for kind, bad in ((ShapeMismatch, np.ones(4, "f4")), (DtypeMismatch, np.ones(3, "f8")),
                          (ShapeMismatch, [good, good])):
            params["b"].grad = bad
            with pytest.raises(kind, match="'b'"):
                trainer.step(1)
        params["b"].grad = good
        trainer.step(1)
        assert params["a"].data.tolist() == params["b"].data.tolist() == [-1] * 3

    on_cluster(work)


def test_strided_weights_and_half_precision_are_written_where_they_are() -> None:
    base = np.ones((4, 6), "f4")
    params = [Param(base[:, ::2], np.ones((4, 3), "f4")),
              Param(np.ones(3, "f2"), np.ones(3, "f2"))]
    for on_store in (True, False):
        with asyncps.create("local") as store:
            asyncps.Trainer(params, "sgd", {"lr": 1}, kvstore=store,
                            update_on_kvstore=on_store).step(2)
    assert np.all(base[:, ::2] == 0)
    assert np.all(base[:, 1::2] == 1)
    assert params[1].data.tolist() == [0] * 3


class Bare:
    data = np.ones(3, "f4")


@pytest.mark.parametrize(("kind", "params"), [
    (ConfigError, 5), (ConfigError, [Bare()]), (ConfigError, [np.ones(3)]),
    (ConfigError, {1.5: ones(3)}), (ConfigError, [Param(None)]), (ConfigError, [Param([])]),
    (ConfigError, [ones(3), Param([np.ones(3, "f4")] * 2)]),
    (DtypeMismatch, [ones(3, dtype="c8")]),
    (ShapeMismatch, [Param([np.ones(3, "f4"), np.ones(4, "f4")])]),
    (TensorError, [Param("text")]), (TensorError, [Param(np.broadcast_to(np.float32(1), (3,)))]),
])  # fmt: skip
def test_what_is_no_parameter_is_refused(kind: type[Exception], params: Any) -> None:
    with pytest.raises(kind):
        asyncps.Trainer(params, "sgd")


def test_mistakes_raise_typed_errors() -> None:
    with pytest.raises(ConfigError, match="sends nothing"):
        asyncps.Trainer([ones(3)], "sgd", compression_params={"type": "2bit"})
    with pytest.raises(OptimizerError, match="sgd"):
        asyncps.Trainer([ones(3)], "sdg")
    with pytest.raises(OptimizerError, match="beta1"):
        asyncps.Trainer([ones(3)], "sgd", {"beta1": 0.9})
    trainer = asyncps.Trainer([ones(3)], "sgd", {"lr": 1})
    for size in (0, -1, None, "4 images", float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="batch_size"):
            trainer.step(size)  # type: ignore[arg-type]
    with pytest.raises(OptimizerError, match="learning_rate"):
        trainer.set_learning_rate("fast")  # type: ignore[arg-type]
    assert trainer.learning_rate == 1
    with pytest.raises(OptimizerError, match="no learning rate"):
        asyncps.Trainer([ones(3)], "test").learning_rate  # noqa: B018


def test_sums_are_not_asked_of_a_store_that_has_an_optimizer() -> None:
    for kind in ("local", "dist_sync"):
        with asyncps.create(kind) as store:
            assert store.optimizer is None
            asyncps.Trainer([ones(3)], "sgd", kvstore=store)
            assert store.optimizer == "sgd"
            with pytest.raises(ConfigError, match="has an optimizer"):
                asyncps.Trainer([ones(3)], "sgd", kvstore=store, update_on_kvstore=False)


async def test_an_await_store_is_refused() -> None:
    async with asyncps.connect() as store:
        with pytest.raises(ConfigError, match="blocking"):
            asyncps.Trainer([ones(3)], "sgd", kvstore=store)


def test_the_callers_optimizer_is_not_changed() -> None:
    mine = optim.SGD(learning_rate=1.0, rescale_grad=3.0)
    param = ones(3)
    trainer = asyncps.Trainer([param], mine)
    trainer.set_learning_rate(2.0)
    trainer.step(2)
    assert (mine.hyper["learning_rate"], mine.hyper["rescale_grad"]) == (1.0, 3.0)
    assert param.data.tolist() == [-2] * 3
    assert "SGD" in repr(trainer)


def adam_steps(trainer: asyncps.Trainer, param: Param, steps: range) -> None:
    for step in steps:
        param.grad = np.random.default_rng(step).standard_normal(50).astype("f4")
        trainer.step(2 if step % 2 else 4)


@both_places
def test_states_are_saved_and_go_on_as_if_nothing_had_been(on_store: bool, tmp_path: Path) -> None:
    def make() -> tuple[asyncps.Trainer, Param]:
        param = Param(np.ones(50, "f4"))
        return asyncps.Trainer([param], "adam", {"lr": 0.5}, kvstore="local",
                               update_on_kvstore=on_store), param

    through, whole = make()
    adam_steps(through, whole, range(7))
    first, param = make()
    adam_steps(first, param, range(3))
    first.set_learning_rate(0.5)
    first.save_states(tmp_path / "states")
    second, again = make()
    second.set_learning_rate(0.125)
    second.load_states(tmp_path / "states")
    assert second.learning_rate == 0.5
    again.data[:] = param.data
    if on_store:
        second.kvstore.assign(0, param.data)
    adam_steps(second, again, range(3, 7))
    assert again.data.tobytes() == whole.data.tobytes()


@both_places
def test_states_that_are_not_these_are_refused(on_store: bool, tmp_path: Path) -> None:
    def make(name: str, *params: Param) -> asyncps.Trainer:
        return asyncps.Trainer(list(params), name, kvstore="local", update_on_kvstore=on_store)

    adam = make("adam", ones(3))
    adam.step(1)
    adam.save_states(tmp_path / "adam")
    for kind, trainer in (
        (OptimizerError, make("sgd", ones(3))), (CheckpointError, make("adam", ones(4))),
        (CheckpointError, make("adam", ones(3), ones(3))), (CheckpointError, make("adam")),
    ):
        with pytest.raises(kind):
            trainer.load_states(tmp_path / "adam")
    with pytest.raises(CheckpointError):
        adam.load_states(tmp_path / "nowhere")
    adam.load_states(tmp_path / "adam")


def test_several_workers_that_update_here_save_what_each_can_load(tmp_path: Path) -> None:
    def work(store: KVStore) -> None:
        param = Param(np.ones(50, "f4"))
        trainer = asyncps.Trainer([param], "adam", kvstore=store, update_on_kvstore=False)
        adam_steps(trainer, param, range(2))
        trainer.save_states(tmp_path / "states")  # all at once, all the same
        trainer.load_states(tmp_path / "states")

    on_cluster(work, workers=3)
    assert [path.name for path in tmp_path.iterdir()] == ["states"]


def test_a_step_that_cannot_be_posted_ends_what_was_posted_before() -> None:
    """When it raises nothing is written any more."""
    def work(store: KVStore) -> None:
        large, tied, other = (Param(np.ones(size, "f4"), np.ones(size, "f4"))
                              for size in (50_000, 4, 4))
        trainer = asyncps.Trainer({"a": large, "b": tied, "c": other}, "sgd", {"lr": 1.0},
                                  kvstore=store)
        other.data = tied.data
        with pytest.raises(TensorError):
            trainer.step(1)
        assert (large.data == 0).all()

    on_cluster(work, workers=1)
