"""One worker of MXNet's dist KVStore, started by launch_mxnet.py. Python 3.8, numpy < 1.24."""

from __future__ import annotations

import os

import common
import mxnet as mx
import numpy as np
import values

OP = os.environ["PEERS_OP"]
PEER = "mxnet-" + mx.__version__ + os.environ.get("PEERS_LABEL", "")
CHECK_KEY = 1 << 20
CHECK_PUSHES = 5
THRESHOLD = 0.5  # of 2-bit compression


def check_on_own_key(kv, done):
    """The ops whose rounds are not a plain sum are checked on a key of their own.

    Args:
      done: how many times this was called before (the key keeps its state).
    """
    out = mx.nd.zeros((1024,))
    if OP == "2bit":
        kv.push(CHECK_KEY, mx.nd.ones((1024,)) * (kv.rank + 1))
        kv.pull(CHECK_KEY, out=out)
        if (out.asnumpy() != THRESHOLD * kv.num_workers).any():
            raise values.WrongValueError(f"2bit: got {out.asnumpy()}")
    elif OP == "async_sgd":
        # the same gradient on all ranks, so that the order of arrival does not matter
        grad = values.gradients([1024])[0]
        for _ in range(CHECK_PUSHES):
            kv.push(CHECK_KEY, mx.nd.array(grad))
            kv.pull(CHECK_KEY, out=out)
            out.wait_to_read()
        kv._barrier()
        kv.pull(CHECK_KEY, out=out)
        pushes = CHECK_PUSHES * kv.num_workers * (done + 1)
        want = values.sgd_model(grad, pushes)
        if not np.allclose(out.asnumpy(), want, rtol=1e-5, atol=1e-12):
            raise values.WrongValueError(f"async_sgd: got {out.asnumpy()}, not {want}")
    kv._barrier()


class Case:
    """The keys of one case, and one round of OP over them."""

    def __init__(self, kv, name, first_key):
        self.kv, self.name = kv, name
        self.sizes = common.CASES[name]
        self.keys = list(range(first_key, first_key + len(self.sizes)))
        host = common.grads(name, kv.rank, kv.num_workers)
        if OP == "2bit":  # values around the threshold
            rng = np.random.RandomState(kv.rank)
            host = [rng.standard_normal(n).astype(np.float32) for n in self.sizes]
        self.source = [mx.nd.array(h) for h in host]
        self.grads = [s.copy() for s in self.source]
        self.outs = [mx.nd.zeros(s.shape) for s in self.source]
        kv.init(self.keys, self.outs)
        mx.nd.waitall()

    def refill(self):
        """On a CPU a pull lands in the pushed array too: put the gradients back."""
        for grad, source in zip(self.grads, self.source):  # noqa: B905 (3.8)
            grad[:] = source
        mx.nd.waitall()

    def pushpull(self):
        """One round with the fused verb, key by key, earlier keys first."""
        for i, key in enumerate(self.keys):
            self.kv.pushpull(key, self.grads[i], out=self.outs[i], priority=-i)
        mx.nd.waitall()

    def push_pull(self):
        """One round with push and pull, key by key, earlier keys first."""
        for i, key in enumerate(self.keys):
            self.kv.push(key, self.grads[i], priority=-i)
            self.kv.pull(key, out=self.outs[i], priority=-i)
        mx.nd.waitall()

    def push_pull_list(self):
        """One round with one push and one pull of the list of keys."""
        self.kv.push(self.keys, self.grads)
        self.kv.pull(self.keys, out=self.outs)
        mx.nd.waitall()

    def fresh_round(self, one):
        """One round of the true gradients into cleared outs; returns the outs."""
        self.refill()
        for out in self.outs:
            out[:] = np.nan
        mx.nd.waitall()
        self.kv._barrier()
        one()
        return [out.asnumpy() for out in self.outs]

    def check_before(self, one):
        """The keys are new: check the round itself."""
        who = f"mxnet {OP} rank {self.kv.rank} {self.name}"
        if OP in ("push_pull", "pushpull"):
            outs = self.fresh_round(one)
            values.check(outs, self.sizes, self.kv.num_workers, who=who)
        elif OP == "sgd":
            for _ in range(3):
                outs = self.fresh_round(one)
            values.check(outs, self.sizes, self.kv.num_workers, "sgd", 3, who=who)

    def check_after(self, one):
        """After the timed rounds, which pushed whatever a pull had left in the gradients."""
        who = f"mxnet {OP} rank {self.kv.rank} {self.name}"
        if OP in ("push_pull", "pushpull"):
            outs = self.fresh_round(one)
            values.check(outs, self.sizes, self.kv.num_workers, who=who)
        elif OP == "sgd":
            steps = [self.fresh_round(one) for _ in range(3)]
            values.check_sgd_step(*steps, self.sizes, self.kv.num_workers, who=who)


def main():
    """Every case of PEERS_CASES with PEERS_OP."""
    kv = mx.kv.create("dist_async" if OP.startswith("async") else "dist_sync")
    servers = int(os.environ["DMLC_NUM_SERVER"])
    meter = common.Meter(common.wait_pids()) if kv.rank == 0 else None
    if OP == "2bit":
        kv.set_gradient_compression({"type": "2bit", "threshold": THRESHOLD})
    if OP in ("sgd", "async_sgd"):
        sgd = mx.optimizer.SGD(learning_rate=values.LEARNING_RATE, momentum=values.MOMENTUM)
        kv.set_optimizer(sgd)
    kv.init(CHECK_KEY, mx.nd.zeros((1024,)))
    first_key = 0
    for done, name in enumerate(os.environ["PEERS_CASES"].split(",")):
        case = Case(kv, name, first_key)
        first_key += len(case.keys)
        rounds = {OP: case.pushpull if OP == "pushpull" else case.push_pull}
        if OP == "push_pull" and len(case.keys) > 1:
            rounds["push_pull_list"] = case.push_pull_list
        for op, one in rounds.items():
            case.check_before(one)
            check_on_own_key(kv, 2 * done)
            times, use = common.measure(one, name, kv._barrier, meter, kv.num_workers, case.refill)
            case.check_after(one)
            check_on_own_key(kv, 2 * done + 1)
            common.emit(PEER, op, name, kv.num_workers, servers, times, use, rank=kv.rank)
        kv._barrier()


main()
