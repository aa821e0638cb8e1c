"""All ways to update, and what they make of a made-up model, on whatever communicator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncps import optim
from asyncps.distopt import DistOpt
from tests.distopt.models import backward, gradients, weights

STEPS = 4

UPDATES: dict[str, Callable[[DistOpt, Any], Any]] = {
    "plain": lambda opt, loss: opt(loss),
    "cut": lambda opt, loss: opt.backward_and_update(loss, 0),
    "half": lambda opt, loss: opt.backward_and_update_half(loss, 10),
    "topk": lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 0.1, True),
    "all": lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 1, True),
    "threshold": lambda opt, loss: opt.backward_and_sparse_update(loss, 10, 0.5),
    "partial": lambda opt, loss: opt.backward_and_partial_update(loss, 10),
    "one part": lambda opt, loss: opt.backward_and_partial_update(loss),
    "local": lambda opt, loss: opt.backward_and_local_update(loss, 2),
    "diloco": lambda opt, loss: opt.backward_and_diloco_update(loss, 2),
}
SUMS = {"plain", "cut", "topk", "all", "threshold"}  # added in rank order, whoever adds
# A mean in f16 may fall on the neighbour: whoever divides multiplies by 1/N.
NEAR = {"half": {"rtol": 1e-3, "atol": 1e-4}}
APART = {"partial"}  # replicas are not alike after a call


def trained(comm: Any, name: str, **words: Any) -> list[Any]:
    """The weights after some steps, the states among them there and back."""
    params, opt = weights(), DistOpt(
        optim.SGD(lr=0.1, momentum=0.9, wd=1e-3), communicator=comm, buffSize=25, **words)
    for step in range(STEPS):
        UPDATES[name](opt, backward(params, gradients(comm.rank, step)))
        opt.set_states(opt.get_states())
    return params
