"""Beyond SINGA: accumulation with flush, replicas that are compared, the end of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps import optim
from asyncps.distopt import DistOpt, face
from asyncps.distopt.replicas import drifted
from asyncps.errors import ClosedError, ConfigError, Disagreement
from tests.distopt.models import backward, gradients, weights
from tests.distopt.test_update import close, same
from tests.support.threadgroup import ThreadComm, run


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(("update", "options"), [
    ("backward_and_update", {}), ("backward_and_partial_update", {}),
    ("backward_and_update_half", {"clipping": True, "clip_value": 0.5}),
    ("backward_and_sparse_update", {"spars": 0.2, "topK": True}),
    ("backward_and_sparse_update", {"spars": 0.4, "corr": False}),
])
def test_accumulated_batches_are_one_batch(
    dtype: str, flushed: bool, update: str, options: dict[str, Any]
) -> None:
    def work(comm: ThreadComm) -> tuple[list[Any], list[Any]]:
        one, other = weights(dtype), weights(dtype)
        opt, twin = (DistOpt(optim.SGD(lr=0.1, momentum=0.9), communicator=comm) for _ in range(2))
        for step in range(2):
            batches = [gradients(comm.rank, 10 * step + i, dtype) for i in range(3)]
            before = [each.copy() for each in one]
            for batch in batches[: 3 if flushed else 2]:
                opt.accumulate(backward(one, batch))
            same(one, before)
            assert not comm.calls or step
            if flushed:
                opt.flush(getattr(opt, update), **options)
                opt.flush()  # there is nothing left
            else:
                getattr(opt, update)(backward(one, batches[2]), **options)
            means = [np.mean([batch[i].astype("f8") for batch in batches], 0).astype(dtype)
                     for i in range(len(one))]
            getattr(twin, update)(backward(other, means), **options)
        return one, other

    loose = {"rtol": 5e-3, "atol": 5e-3} if dtype == "f2" else {}
    for one, other in run(2, work):
        close(one, other, **loose)


@pytest.mark.parametrize("flushed", [False, True])
def test_accumulated_batches_in_halves_and_sparse_by_hand(flushed: bool) -> None:
    """The mean of two batches is bounded, or chosen from; the rest goes with the next."""
    def work(comm: ThreadComm) -> list[Any]:
        found = []
        for verb, options in (
            ("backward_and_update_half", {"clipping": True, "clip_value": 3.5}),
            ("backward_and_sparse_update", {"spars": 0.5, "topK": True}),
            ("backward_and_sparse_update", {"spars": 3.5}),
        ):
            opt, a = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(4, "f4")
            update = getattr(opt, verb)
            for first, second in (([4, 0, 2, -2], [2, 0, 0, -6]), ([0, 0, 2, 0], [0, 0, 4, 0])):
                opt.accumulate([(a, np.array(first, "f4"))])
                if flushed:
                    opt.accumulate([(a, np.array(second, "f4"))])
                    opt.flush(update, **options)
                else:
                    update([(a, np.array(second, "f4"))], **options)
                found.append(a.tolist())
        return found

    assert run(2, work) == [[
        [-3, 0, -1, 3.5], [-3, 0, -4, 3.5],  # means [3, 0, 1, -4] and [0, 0, 3, 0]
        [-3, 0, 0, 4], [-3, 0, -4, 4],
        [0, 0, 0, 4], [0, 0, -4, 4],  # 3 stays behind, 1 goes with the 3 of the next
    ]] * 2


def test_parameters_that_miss_in_a_batch_count_with_zeros() -> None:
    def work(comm: ThreadComm) -> list[float]:
        opt = DistOpt(optim.SGD(lr=1.0), communicator=comm)
        a, b, c = (np.zeros(1, "f4") for _ in range(3))
        opt.accumulate([(a, np.full(1, 3, "f4")), (b, np.full(1, 6, "f4"))])
        opt([(a, np.full(1, 1, "f4")), (c, np.full(1, 8, "f4"))])
        return [float(each[0]) for each in (a, b, c)]

    assert run(2, work) == [[-2.0, -3.0, -4.0]] * 2


def test_an_update_that_failed_keeps_what_was_accumulated() -> None:
    def work(comm: ThreadComm) -> float:
        opt, a = DistOpt(optim.SGD(lr=1.0), communicator=comm), np.zeros(1, "f4")
        opt.accumulate([(a, np.full(1, 3, "f4"))])
        for verb in (opt.accumulate, opt):
            with pytest.raises(ConfigError):
                verb([(a, np.full(1, 9, "f4")), 5])
        opt([(a, np.full(1, 1, "f4"))])
        return float(a[0])

    assert run(1, work) == [-2.0]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_replica_that_drifted_is_named(world: int) -> None:
    def work(comm: ThreadComm) -> None:
        params = weights()
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm, check_every=2)
        for step in range(4):
            opt(backward(params, gradients(comm.rank, step)))
        opt.check_replicas()
        if comm.rank == 1:
            params[2].view("u4")[0, 0] ^= 1  # one bit
        opt(backward(params, gradients(comm.rank, 5)))  # it is not looked at yet
        with pytest.raises(Disagreement, match=r"rank 1 differs in 1 parameters \(2\)") as error:
            opt(backward(params, gradients(comm.rank, 6)))
        assert error.value.rank == 1
        with pytest.raises(Disagreement):
            opt.check_replicas()
        opt.broadcast_parameters(params)
        opt.check_replicas()

    run(world, work)


def test_averaged_parameters_are_compared_where_all_have_the_same() -> None:
    def work(comm: ThreadComm) -> int:
        params = weights()
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm, check_every=1)
        for step in range(4):
            opt.backward_and_local_update(backward(params, gradients(comm.rank, step)), 2)
            opt.backward_and_partial_update(backward(params, gradients(comm.rank, step)), 10)
        return sum(op == "gather" for op, _, _ in comm.calls)

    assert run(2, work) == [2, 2]


def test_weights_that_are_apart_by_local_steps_are_no_drift() -> None:
    """Nor after equal steps from there; and calls that do not synchronise do not count."""
    def work(comm: ThreadComm) -> list[int]:
        params = weights()
        opt = DistOpt(optim.SGD(lr=0.1), communicator=comm, check_every=2)
        looks = []

        def looked() -> None:
            looks.append(sum(op == "gather" for op, _, _ in comm.calls))

        def given_loss(step: int) -> Any:
            return backward(params, gradients(comm.rank, step))

        for step in range(2):
            opt.backward_and_partial_update(given_loss(step), 10)
            opt.backward_and_update(given_loss(step))
        opt.set_states(opt.get_states())
        opt.backward_and_update(given_loss(2))
        looked()
        opt.broadcast_parameters(params)
        for step in range(2):
            opt.backward_and_update(given_loss(step))
        looked()
        for step in range(4):
            opt.backward_and_local_update(given_loss(step), 2)
        looked()
        return looks

    first, *others = run(3, work)
    assert first == [0, 1, 2]
    assert others == [first] * 2


@given(st.integers(1, 6).flatmap(lambda world: st.lists(
    st.lists(st.integers(0, 2), min_size=world, max_size=world), max_size=4)))
def test_who_drifted_is_who_is_not_with_most(columns: list[list[int]]) -> None:
    digests = np.array(columns, np.int64).T if columns else np.zeros((3, 0), np.int64)
    found = drifted(digests)
    for j, values in enumerate(columns):
        out = {rank for rank, where in found.items() if j in where}
        within = {values[rank] for rank in range(len(values)) if rank not in out}
        assert len(within) == 1
        (right,) = within
        assert all(values[rank] != right for rank in out)
        assert values.count(right) == max(values.count(each) for each in values)
        rivals = {each for each in values if values.count(each) == values.count(right)}
        assert right == next(each for each in values if each in rivals)


def test_a_closed_one_does_nothing_and_leaves_what_it_was_given_open() -> None:
    def work(comm: ThreadComm) -> None:
        with DistOpt("sgd", communicator=comm) as opt:
            assert (opt.world_size, opt.global_rank, opt.local_rank) == (2, comm.rank, comm.rank)
            assert opt.communicator is comm
            assert repr(opt).startswith("<DistOpt SGD(learning_rate=0.01")
            assert repr(opt).endswith(f"at rank {comm.rank} of 2>")
        assert not comm.closed
        for verb in (opt, opt.accumulate, opt.backward_and_partial_update):
            with pytest.raises(ClosedError):
                verb([])
        for verb in (opt.get_states, opt.check_replicas, opt.flush):
            with pytest.raises(ClosedError):
                verb()

    run(2, work)


def test_the_optimizer_is_a_copy() -> None:
    def work(comm: ThreadComm) -> None:
        given = optim.SGD(lr=1.0)
        opt = DistOpt(given, communicator=comm)
        opt.set_learning_rate(0.5)
        assert given.hyper["learning_rate"] == 1.0
        assert opt.opt.hyper["learning_rate"] == 0.5

    run(1, work)


class Ours:
    """Stands for the communicator's class, and says how it was asked for."""

    def __init__(self, *how: Any) -> None:
        self.how = how
        self.rank, self.world_size, self.local_rank = 0, 1, 0
        self.closed = 0

    @classmethod
    def from_launch(cls) -> Ours:
        return cls("env")

    @classmethod
    def from_ticket(cls, *how: Any) -> Ours:
        return cls(*how)

    def close(self) -> None:
        self.closed += 1


def test_a_group_is_made_of_a_ticket_or_of_the_environment(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(face, "Communicator", Ours)
    ticket = object()
    for opt in (
        DistOpt("sgd", nccl_id=ticket, local_rank=1, world_size=3),
        DistOpt("sgd", ticket, 1, 3),
        DistOpt("sgd", ticket=ticket, local_rank=1, world_size=3),
    ):
        assert opt.communicator.how == (ticket, 1, 3)
    opt = DistOpt("sgd")
    assert opt.communicator.how == ("env",)
    opt.close()
    opt.close()
    assert opt.communicator.closed == 1
    with pytest.raises(ConfigError, match="both spellings"):
        DistOpt("sgd", nccl_id=ticket, ticket=ticket)
    with pytest.raises(ConfigError, match=r"without a ticket.*local_rank None, world_size 2"):
        DistOpt("sgd", world_size=2)


def test_alone_it_needs_no_environment() -> None:
    param = np.full(2, 10, "f4")
    with DistOpt(optim.SGD(lr=0.1)) as opt:
        assert (opt.world_size, opt.global_rank, opt.local_rank) == (1, 0, 0)
        opt([(param, np.ones(2, "f4"))])
    np.testing.assert_array_equal(param, np.float32(10) - np.float32(0.1))
