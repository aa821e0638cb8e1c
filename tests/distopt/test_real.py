"""DistOpt on real communicators over sockets: the bits of the model of threads, on every rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.distopt import DistOpt
from asyncps.errors import AsyncPSError, CollectiveMismatch, Disagreement, TensorError
from tests.distopt.models import backward, gradients, local_sgd, weights
from tests.distopt.test_update import close, same
from tests.distopt.ways import APART, NEAR, STEPS, SUMS, UPDATES, trained
from tests.support import threadgroup
from tests.support.group import group


@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_ways_have_the_bits_of_the_model(world: int) -> None:
    with group(world) as ranks:
        for name in UPDATES:
            found = ranks.run(lambda comm, name=name: trained(comm, name, check_every=1))
            wanted = threadgroup.run(world, lambda comm, name=name: trained(comm, name))
            for params, right in zip(found, wanted, strict=True):
                if name in SUMS:
                    same(params, right)
                close(params, right, **NEAR.get(name, {"rtol": 1e-6, "atol": 1e-7}))
                if name not in APART:
                    same(params, found[0])
            if name in ("plain", "cut", "all", "one part"):
                close(found[0], local_sgd(world, STEPS, 0.1, 0.9, 1e-3))


@pytest.mark.parametrize("world", [2, 3])
def test_verbs_on_tensors_and_what_is_refused(world: int) -> None:
    def work(comm: Any) -> None:
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm)
        assert (opt.global_rank, opt.local_rank) == (comm.rank, comm.rank)
        for call in (
            opt.all_reduce, opt.all_reduce_half, lambda x: opt.fused_all_reduce([x]),
            lambda x: opt.fused_all_reduce_half([x]),
            lambda x: opt.sparsification(x, None, 0.05, False),
            lambda x: opt.fused_sparsification([x], None, 1, True),
        ):
            param, grad = np.full((2, 3), 10, "f4"), np.ones((2, 3), "f4")
            call(grad)
            opt.update(param, grad)
            np.testing.assert_array_equal(param, np.float32(10) - np.float32(0.1))
        big = np.full(1, 60000, "f4")
        opt.all_reduce_half(big)
        opt.wait()
        assert big[0] == 60000 * world

        with pytest.raises(TensorError, match="not finite") as refused:
            opt.backward_and_sparse_update([(np.zeros(3, "f4"), np.full(
                3, np.nan if comm.rank == 1 else 1, "f4"))])
        assert refused.value.rank == 1

        params = weights()
        with pytest.raises(CollectiveMismatch):
            opt(backward(params[:1] if comm.rank else params[1:2], gradients(0, 0)[:1]
                         if comm.rank else gradients(0, 0)[1:2]))
        opt(backward(params, gradients(comm.rank, 0)))  # it works afterwards

        other = DistOpt(optim.SGD(lr=0.1), communicator=comm)
        other.broadcast_parameters(params, root=world - 1)
        other.check_replicas()
        if comm.rank == 1:
            params[0][0, 0] += 1
        with pytest.raises(Disagreement, match="rank 1 differs in 1 parameters"):
            other.check_replicas()

    with group(world) as ranks:
        ranks.run(work)


def test_a_pass_that_failed_at_one_worker_is_never_taken_for_the_next() -> None:
    """What the worker calls next looks like what the other one waits for, and is not it."""
    def work(comm: Any) -> list[Any]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        params = [np.zeros(20, "f4"), np.zeros(20, "f4")]

        def loss(whole: bool) -> Any:
            for place, param in enumerate(params):
                if place == 1 and not whole:
                    raise KeyError("a mistake of the user's")
                yield param, np.ones(20, "f4")

        if comm.rank == 1:
            with pytest.raises(KeyError):
                opt.backward_and_update(loss(whole=False), 10)
        with pytest.raises(AsyncPSError) as error:
            opt.backward_and_update(loss(whole=True), 10)
        assert f"lacks ranks [{1 - comm.rank}]" in str(error.value)
        return [float(param[0]) for param in params]

    with group(2, round_s=0.3) as ranks:
        assert ranks.run(work) == [[0.0, 0.0]] * 2


def test_replicas_of_no_parameters_are_the_same() -> None:
    with group(2) as ranks:
        ranks.run(lambda comm: DistOpt(optim.SGD(lr=0.1), communicator=comm).check_replicas())
