"""Full updates: in f32, in halves, sparse; the free oracles of SINGA's meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import ConfigError, DtypeMismatch, ShapeMismatch, TensorError
from tests.distopt.models import SHAPES, backward, gradients, local_sgd, weights
from tests.distopt.rules import close, same
from tests.support.threadgroup import ThreadComm, run

STEPS = 4
WORLDS = pytest.mark.parametrize("world", [1, 2, 3])


def sgd(**words: Any) -> optim.SGD:
    return optim.SGD(**{"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, **words})


def trained(
    comm: ThreadComm, update: Callable[[DistOpt, Any], Any], dtype: Any = "f4", **words: Any
) -> list[Any]:
    """The weights after some steps."""
    params, opt = weights(dtype), DistOpt(sgd(), communicator=comm, **words)
    for step in range(STEPS):
        grads = gradients(comm.rank, step, dtype)
        before = [grad.copy() for grad in grads]
        update(opt, backward(params, grads))
        for grad, was in zip(grads, before, strict=True):
            np.testing.assert_array_equal(grad, was)  # the caller's own
    return params


EXACT: dict[str, Callable[[DistOpt, Any], Any]] = {
    "plain": lambda opt, loss: opt.backward_and_update(loss),
    "called": lambda opt, loss: opt(loss),
    "threshold 0": lambda opt, loss: opt.backward_and_update(loss, threshold=0),
    "threshold 10": lambda opt, loss: opt.backward_and_update(loss, 10),
    "all sent": lambda opt, loss: opt.backward_and_sparse_update(loss, spars=1, topK=True),
    "all sent, by threshold": lambda opt, loss: opt.backward_and_sparse_update(
        loss, threshold=10, spars=0, corr=False),
}


@WORLDS
@pytest.mark.parametrize("name", EXACT)
def test_exact_ways_have_the_same_bits(world: int, name: str) -> None:
    wanted = run(world, lambda comm: trained(comm, EXACT["plain"]))
    found = run(world, lambda comm: trained(comm, EXACT[name]))
    for params in found:
        same(params, wanted[0])


@WORLDS
def test_plain_is_sgd_with_the_mean_gradient(world: int) -> None:
    for params in run(world, lambda comm: trained(comm, EXACT["plain"])):
        close(params, local_sgd(world, STEPS, 0.1, 0.9, 1e-3))


def test_alone_it_is_the_local_optimizer_to_the_bit() -> None:
    (found,) = run(1, lambda comm: trained(comm, EXACT["threshold 10"]))
    params, kept = weights(), [np.zeros(shape, "f4") for shape in SHAPES]
    lr, momentum, wd = np.float32(0.1), np.float32(0.9), np.float32(1e-3)
    for step in range(STEPS):
        for i, grad in enumerate(gradients(0, step)):
            kept[i] = momentum * kept[i] + (grad + wd * params[i])
            params[i] = params[i] - lr * kept[i]
    same(found, params)


@WORLDS
def test_halves_are_near(world: int) -> None:
    found = run(world, lambda comm: trained(
        comm, lambda opt, loss: opt.backward_and_update_half(loss, threshold=10)))
    for params in found:
        same(params, found[0])
        close(params, local_sgd(world, STEPS, 0.1, 0.9, 1e-3), rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("dtype", ["f8", "f2", "bfloat16"])
@pytest.mark.parametrize("way", ["plain", "half", "sparse"])
def test_other_dtypes(dtype: str, way: str) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    update = {
        "plain": EXACT["threshold 10"],
        "half": lambda opt, loss: opt.backward_and_update_half(loss, 10),
        "sparse": EXACT["all sent"],
    }[way]
    found = run(3, lambda comm: trained(comm, update, dtype))
    loose = {"rtol": 0.1, "atol": 0.05} if dtype != "f8" else {"rtol": 1e-2, "atol": 2e-3}
    for params in found:
        assert params[0].dtype == dtype
        same(params, found[0])
        close([each.astype("f8") for each in params], local_sgd(3, STEPS, 0.1, 0.9, 1e-3), **loose)


def test_parameters_of_several_dtypes_share_a_group() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        params = [np.full(3, 1, kind) for kind in ("f4", "f8", "f2", "f4")]
        for update in (opt.backward_and_update, opt.backward_and_update_half,
                       lambda loss: opt.backward_and_sparse_update(loss, spars=0.0)):
            update([(each, np.full(3, comm.rank, each.dtype)) for each in params])
        return params

    for params in run(3, work):
        assert [each.tolist() for each in params] == [[-2.0] * 3] * 4


@pytest.mark.parametrize("world", [2, 3, 7])
def test_mean_of_halves_is_not_an_infinity(world: int) -> None:
    def work(comm: ThreadComm) -> float:
        opt, param = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(1, "f4")
        opt.backward_and_update_half([(param, np.full(1, 60000, "f4"))])
        return float(param[0])

    assert run(world, work) == [-60000.0] * world


def test_clipping_bounds_each_element_of_the_local_gradient() -> None:
    def work(comm: ThreadComm) -> list[Any]:
        opt, found = DistOpt(optim.SGD(lr=1.0), communicator=comm), []
        grad = np.array([250.0, -7.0, -150.0], "f4") if comm.rank else np.zeros(3, "f4")
        for words in ({}, {"clipping": True}, {"clipping": True, "clip_value": 5},
                      {"clipping": True, "clip_Value": 5}, {"clip_value": 5}):
            param = np.zeros(3, "f4")
            opt.backward_and_update_half([(param, grad)], **words)
            found.append((-2 * param).tolist())
        return found

    full, hundred, five = [250, -7, -150], [100, -7, -100], [5, -5, -5]
    assert run(2, work) == [[full, hundred, five, five, full]] * 2


def calls_of(sizes: list[int], threshold: int, **words: Any) -> list[int]:
    """Sizes of the messages of one update; the shapes of calls, in their order."""
    def work(comm: ThreadComm) -> list[int]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm, **words)
        opt.backward_and_update(((np.zeros(n, "f4"), np.ones(n, "f4")) for n in sizes), threshold)
        return [shape[0] for _, shape, _ in comm.calls]

    (found,) = run(1, work)
    return found


@pytest.mark.parametrize(("sizes", "threshold", "messages"), [
    ([5, 10, 11, 4, 3], 10, [15, 11, 7]),  # 10 is not larger than 10; the bucket is once it is 15
    ([10, 1, 1], 10, [11, 1]),
    ([3, 3, 20, 3, 3], 10, [20, 12]),  # what goes alone does not close the bucket
    ([1, 2, 3], 0, [1, 2, 3]),
    ([1, 2, 3], 100, [6]),
    ([], 100, []),
])
def test_threshold_rule(sizes: list[int], threshold: int, messages: list[int]) -> None:
    assert calls_of(sizes, threshold) == messages
    assert calls_of(sizes, 0, bucket_bytes=4 * threshold) == messages


def test_messages_are_cut_at_buff_size() -> None:
    assert calls_of([25, 3, 3], 10, buffSize=10) == [10, 10, 5, 6]
    assert calls_of([20, 3], 100, buffSize=10) == [10, 10, 3]


def test_it_is_sent_while_backward_goes_on() -> None:
    def work(comm: ThreadComm) -> list[int]:
        seen: list[int] = []

        def loss() -> Iterator[Any]:
            for size in (20, 5, 5, 5):
                yield np.zeros(size, "f4"), np.ones(size, "f4")
                seen.append(len(comm.calls))

        DistOpt(optim.SGD(), communicator=comm).backward_and_update(loss(), 10)
        return seen

    assert run(1, work) == [[1, 1, 1, 2]]


def test_the_optimizer_may_change_on_the_way() -> None:
    def work(comm: ThreadComm) -> list[float]:
        opt, param = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(1, "f4")
        found = []
        for change in (lambda: None, lambda: opt.set_learning_rate(0.5),
                       lambda: opt.set_hyperparameters(wd=1.0)):
            change()
            opt([(param, np.ones(1, "f4"))])
            found.append(float(param[0]))
        assert opt.learning_rate == 0.5
        return found

    assert run(2, work)[1] == [-1.0, -1.5, -1.25]


def test_factors_are_by_the_number_of_a_parameter() -> None:
    def work(comm: ThreadComm) -> list[float]:
        opt = DistOpt(optim.SGD(lr=1.0, lr_mult={1: 0.5}), communicator=comm)
        params = [np.zeros(1, "f4"), np.zeros(1, "f4")]
        opt([(each, np.ones(1, "f4")) for each in params])
        return [float(each[0]) for each in params]

    assert run(1, work) == [[-1.0, -0.5]]


@pytest.mark.parametrize(("loss", "error", "words"), [
    (5, ConfigError, "a loss yields pairs.*got 5"),
    ([5], ConfigError, "a loss yields pairs.*got 5"),
    ([(3, np.ones(2, "f4"))], TensorError, "not a parameter.*got 3"),
    ([(np.ones(2, "f4"), np.ones(3, "f4"))], ShapeMismatch, r"key 0, expected \(2,\), got \(3,\)"),
    ([(np.ones(2, "f4"), np.ones(2, "f8"))], DtypeMismatch, "expected float32, got float64"),
    ([(np.ones(2, "f4"), None)], TensorError, "gradient of parameter 0 is no array"),
    ([(np.ones(2, "i4"), np.ones(2, "i4"))], DtypeMismatch, "no floats"),
    ([(np.broadcast_to(np.float32(1), 2), np.ones(2, "f4"))], TensorError, "read-only"),
])
def test_what_is_no_loss(loss: Any, error: type[Exception], words: str) -> None:
    def work(comm: ThreadComm) -> None:
        opt = DistOpt(optim.SGD(), communicator=comm)
        with pytest.raises(error, match=words):
            opt(loss)
        param = np.zeros(1, "f4")
        opt([(param, np.ones(1, "f4"))])  # it goes on
        assert param[0] == np.float32(-0.01)

    run(1, work)


@pytest.mark.parametrize("words", [{"threshold": -1}, {"threshold": "x"},
                                   {"clip_value": 0}, {"clip_value": 1, "clip_Value": 1}])
def test_options_that_cannot_be_right(words: Any) -> None:
    def work(comm: ThreadComm) -> None:
        with pytest.raises(ConfigError):
            DistOpt(optim.SGD(), communicator=comm).backward_and_update_half([], **words)

    run(1, work)


@pytest.mark.parametrize("words", [
    {"buffSize": 0}, {"buffSize": 1.5}, {"bucket_bytes": -1}, {"check_every": "x"},
    {"ticket": object()}, {"world_size": 2},
])
def test_arguments_that_cannot_be_right(words: Any) -> None:
    def work(comm: ThreadComm) -> None:
        with pytest.raises(ConfigError):
            DistOpt(optim.SGD(), communicator=comm, **words)

    run(1, work)


def test_a_pass_that_failed_leaves_its_memory_to_what_is_under_way() -> None:
    def work(comm: ThreadComm) -> None:
        sent: list[Any] = []
        reduce = comm.all_reduce

        def noted(x: Any, **words: Any) -> Any:
            sent.append(x)
            return reduce(x, **words)

        comm.all_reduce = noted  # type: ignore[method-assign]
        opt, param = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(20, "f4")
        for _ in range(2):
            with pytest.raises(ConfigError):
                opt.backward_and_update([(param, np.ones(20, "f4")), 5], 10)
            opt.backward_and_update([(param, np.ones(20, "f4"))], 10)
            opt.backward_and_update([(param, np.ones(20, "f4"))], 10)
        assert not np.shares_memory(sent[0], sent[1])
        assert np.shares_memory(sent[1], sent[2])  # what is over is used again
        assert not np.shares_memory(sent[3], sent[4])

    run(1, work)


NAMED: dict[str, Callable[[DistOpt, Any], Any]] = {
    "plain": lambda opt, loss: opt.backward_and_update(loss),
    "half": lambda opt, loss: opt.backward_and_update_half(loss),
    "partialUpdate": lambda opt, loss: opt.backward_and_partial_update(loss),
    "sparseTopK": lambda opt, loss: opt.backward_and_sparse_update(loss, spars=0.3, topK=True),
    "sparseThreshold": lambda opt, loss: opt.backward_and_sparse_update(loss, spars=0.3),
}


@pytest.mark.parametrize("name", DistOpt.OPTIONS)
def test_ways_by_name_in_both_spellings(name: str) -> None:
    other = {"fp32": "plain", "fp16": "half"}.get(name, name)
    found = run(2, lambda comm: trained(comm, lambda opt, loss: opt.backward(loss, name, 0.3)))
    wanted = run(2, lambda comm: trained(comm, NAMED[other]))
    for mine, right in zip(found, wanted, strict=True):
        same(mine, right)


@pytest.mark.parametrize("name", ["", "fp64", "Plain", None, 5])
def test_a_way_that_there_is_not(name: Any) -> None:
    def work(comm: ThreadComm) -> None:
        with pytest.raises(ValueError, match="plain, half, partialUpdate, sparseTopK"):
            DistOpt(optim.SGD(), communicator=comm).backward([], name)

    run(1, work)
