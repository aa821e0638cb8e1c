"""ACCEPTANCE section 2 by its rules, for a rank among any number of others.

Each is called with a communicator, real or of threads; what is right comes from NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncps import optim
from asyncps.distopt import DistOpt
from tests.distopt.models import backward, gradients, local_sgd, weights

STEPS = 4
MOMENTUM, DECAY = 0.9, 1e-3
# By the rule with a threshold of 10: [20], [6, 6], [5].
FOUR = ((20,), (2, 3), (6,), (5,))
PARTS = ([0], [1, 2], [3])


def sgd() -> optim.SGD:
    return optim.SGD(lr=0.1, momentum=MOMENTUM, weight_decay=DECAY)


def trained(comm: Any, update: Callable[[DistOpt, Any], Any], shapes: Any = FOUR,
            steps: int = STEPS) -> list[Any]:
    """The weights after some steps; no gradient of the caller's has changed."""
    params, opt = weights(shapes=shapes), DistOpt(sgd(), communicator=comm, buffSize=7)
    for step in range(steps):
        grads = gradients(comm.rank, step, shapes=shapes)
        update(opt, backward(params, grads))
        same(grads, gradients(comm.rank, step, shapes=shapes))
    return params


def same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def close(found: list[Any], wanted: list[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


def plain(comm: Any) -> None:
    """The mean of all gradients; all exact ways have its bits."""
    wanted = local_sgd(comm.world_size, STEPS, 0.1, MOMENTUM, DECAY, FOUR)
    first = trained(comm, lambda opt, loss: opt(loss))
    close(first, wanted)
    for update in (
        lambda opt, loss: opt.backward_and_update(loss, 10),
        lambda opt, loss: opt.backward_and_update(loss, 0),
        lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 1, True),
        lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 0, False),
        lambda opt, loss: opt.backward(loss, "fp32"),
    ):
        same(trained(comm, update), first)
    close(trained(comm, lambda opt, loss: opt.backward_and_partial_update(loss)), wanted)


def half(comm: Any) -> None:
    """Means in f16, summed in f32; bounded if asked for."""
    found = trained(comm, lambda opt, loss: opt.backward_and_update_half(loss, 10))
    close(found, local_sgd(comm.world_size, STEPS, 0.1, MOMENTUM, DECAY, FOUR), 1e-2, 2e-3)
    opt, param = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(2, "f4")
    opt.backward_and_update_half([(param, np.full(2, 60000, "f4"))])
    assert param.tolist() == [-60000, -60000]
    param[:] = 0
    opt.backward_and_update_half([(param, np.array([250, -7], "f4"))], clipping=True)
    assert param.tolist() == [-100, 7]


def partial(comm: Any) -> None:
    """Local steps; call c averages the parameters of part c mod K."""
    found = trained(comm, lambda opt, loss: opt.backward_and_partial_update(loss, 10), steps=7)
    world = comm.world_size
    params = [[each.astype("f8") for each in weights(shapes=FOUR)] for _ in range(world)]
    kept = [[np.zeros(each.shape) for each in mine] for mine in params]
    for step in range(7):
        for rank in range(world):
            grads = gradients(rank, step, shapes=FOUR)
            for w, m, g in zip(params[rank], kept[rank], grads, strict=True):
                m[...] = MOMENTUM * m + g + DECAY * w
                w -= 0.1 * m
        for i in PARTS[step % 3]:
            mean = sum(mine[i] for mine in params) / world
            for mine in params:
                mine[i][...] = mean
    close(found, params[comm.rank])


def chosen(x: Any, spars: float, topk: bool) -> Any:
    """Which elements are sent, as a mask."""
    if not topk:
        return np.abs(x) >= np.float32(spars)
    mask = np.zeros(x.size, bool)
    count = min(x.size, max(1, int(np.ceil(spars * x.size - 1e-9))))
    mask[np.argsort(-np.abs(x), kind="stable")[:count]] = True
    return mask


def sparse(comm: Any) -> None:
    """Chosen elements of gradient and residual, added in rank order, to the bit."""
    for spars, topk, corr in ((0.2, True, True), (0.2, True, False), (1.0, False, True)):
        params = weights(shapes=FOUR)
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm, buffSize=7)
        wanted = weights(shapes=FOUR)
        rests = {(rank, i): np.float32(0) for rank in range(comm.world_size) for i in range(3)}
        for step in range(STEPS):
            loss = backward(params, gradients(comm.rank, step, shapes=FOUR))
            opt.backward_and_sparse_update(loss, 10, spars, topk, corr)
            of_all = [gradients(rank, step, shapes=FOUR) for rank in range(comm.world_size)]
            for i, part in enumerate(PARTS):
                total = np.float32(0)
                for rank, grads in enumerate(of_all):
                    x = np.concatenate([grads[j].ravel() for j in part]) + rests[rank, i]
                    mask = chosen(x, spars, topk)
                    total = total + np.where(mask, x, np.float32(0))
                    rests[rank, i] = np.where(mask, np.float32(0), x) if corr else np.float32(0)
                mean, begin = total / np.float32(comm.world_size), 0
                for j in part:
                    wanted[j] -= mean[begin : begin + wanted[j].size].reshape(wanted[j].shape)
                    begin += wanted[j].size
        same(params, wanted)


def ten(comm: Any) -> None:
    """Parameter 10, gradient 1, rate .1 make 9.9 by all transports."""
    for send in (
        lambda opt, x: opt.all_reduce(x),
        lambda opt, x: opt.fused_all_reduce([x]),
        lambda opt, x: opt.all_reduce_half(x),
        lambda opt, x: opt.fused_all_reduce_half([x]),
        lambda opt, x: opt.sparsification(x, None, 0.05, False),
        lambda opt, x: opt.fused_sparsification([x], None, 1, True),
    ):
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm, buffSize=4)
        param, grad = np.full((2, 3), 10, "f4"), np.ones((2, 3), "f4")
        send(opt, grad)
        opt.wait()
        assert (grad == comm.world_size).all()
        opt.update(param, grad)
        assert (param == np.float32(9.9)).all()


def states(comm: Any) -> None:
    """A run that goes on from its states has the bits of one that never stopped."""
    whole = trained(comm, lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 0.2, True))
    params, opt = weights(shapes=FOUR), DistOpt(sgd(), communicator=comm, buffSize=7)
    for step in range(STEPS):
        loss = backward(params, gradients(comm.rank, step, shapes=FOUR))
        opt.backward_and_sparse_update(loss, 10, 0.2, True)
        kept, opt = opt.get_states(), DistOpt(optim.SGD(), communicator=comm, buffSize=7)
        opt.set_states(kept)
    same(params, whole)


RULES: dict[str, Callable[[Any], None]] = {
    "plain": plain, "half": half, "partial": partial, "sparse": sparse, "ten": ten,
    "states": states,
}
