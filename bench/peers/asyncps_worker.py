"""One asyncps worker, started by launch_asyncps.py (or by any launcher that sets ASYNCPS_*).

ops: pushpull        store.pushpull of the list of keys, blocking face
     push_pull       store.push of the list, lent (copy=False), then store.pull
     pushpull_await  the await face, on this process's own loop
     sgd, adam       pushpull with that optimizer on the servers
     idle            no round: what a waiting cluster uses in PEERS_SECONDS
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import common
import numpy as np
import values

import asyncps
import asyncps_ext

OP = os.environ["PEERS_OP"]
CASE_NAMES = os.environ["PEERS_CASES"].split(",")
WORKERS = int(os.environ["ASYNCPS_NUM_WORKERS"])
SERVERS = int(os.environ["ASYNCPS_NUM_SERVERS"])
BUILD = {"compiled": asyncps_ext.COMPILED, "instruction_set": asyncps_ext.INSTRUCTION_SET}
OPTIMIZERS = {
    "sgd": {"learning_rate": values.LEARNING_RATE, "momentum": values.MOMENTUM},
    "adam": {
        "learning_rate": values.LEARNING_RATE,
        "beta1": values.BETA1,
        "beta2": values.BETA2,
        "epsilon": values.EPSILON,
    },
}


class Case:
    """The arrays of one case, and what their keys must hold after each round."""

    def __init__(self, name: str, rank: int, first_key: int) -> None:
        self.name, self.rank = name, rank
        self.sizes = common.CASES[name]
        self.keys = list(range(first_key, first_key + len(self.sizes)))
        self.grads = common.grads(name, rank, WORKERS)
        self.outs = [np.full_like(g, np.nan) for g in self.grads]
        self.model = OP if OP in OPTIMIZERS else "sum"
        self.rounds, self.factor, self.stamped = 0, 1.0, 0
        self.kept = (self.grads[0][0], self.grads[-1][-1])

    def zeros(self) -> list[np.ndarray]:
        """Values for init."""
        return [np.zeros_like(g) for g in self.grads]

    def check(self) -> None:
        """Raise WrongValueError unless the outs are right after `self.rounds` rounds."""
        who = f"asyncps {OP} rank {self.rank} {self.name}"
        values.check(self.outs, self.sizes, WORKERS, self.model, self.rounds, self.factor, who)

    def stamp(self) -> None:
        """Mark the next round, so that `check_stamp` knows its answer from an older one's."""
        if self.model == "sum":
            self.stamped = self.stamped % 1000 + 1
            self.grads[0][0] = self.grads[-1][-1] = self.stamped

    def check_stamp(self) -> None:
        """Raise WrongValueError unless the outs are the answer to the marked round."""
        if self.model == "sum":
            want, got = self.stamped * WORKERS, (self.outs[0][0], self.outs[-1][-1])
            if got != (want, want):
                who = f"asyncps {OP} rank {self.rank} {self.name}"
                raise values.WrongValueError(f"{who}: expected the round marked {want}, got {got}")

    def change(self) -> None:
        """Clear the outs and the marks; double a plain sum, so that an old answer shows."""
        self.grads[0][0], self.grads[-1][-1] = self.kept
        for out in self.outs:
            out.fill(np.nan)
        if self.model == "sum":
            self.factor *= 2
            for grad in self.grads:
                grad *= 2

    def emit(self, times: list[float], use: dict[str, float], **extra: Any) -> None:
        """One record."""
        label = "-".join(filter(None, ["asyncps", getattr(asyncps, "__version__", "")]))
        extra.update(BUILD, rank=self.rank)
        common.emit(label, OP, self.name, WORKERS, SERVERS, times, use, **extra)


def run_blocking() -> None:
    """Every case over the blocking face."""
    with asyncps.create("dist_sync") as store:
        meter = common.Meter(common.wait_pids()) if store.rank == 0 else None
        if OP in OPTIMIZERS:
            store.set_optimizer(OP, **OPTIMIZERS[OP])
        first_key = 0
        for name in CASE_NAMES:
            case = Case(name, store.rank, first_key)
            first_key += len(case.keys)
            store.init(case.keys, case.zeros())

            def pushpull(case: Case = case) -> None:
                store.pushpull(case.keys, case.grads, out=case.outs, priority=0)
                case.rounds += 1

            def push_pull(case: Case = case) -> None:
                handle = store.push(case.keys, case.grads, priority=0, copy=False)
                store.pull(case.keys, out=case.outs, priority=0)
                handle.wait()
                case.rounds += 1

            one = push_pull if OP == "push_pull" else pushpull
            one()
            case.check()
            store.barrier()
            start = time.perf_counter()
            for _ in range(common.rounds(name)[0]):
                one()
            mean_s = (time.perf_counter() - start) / common.rounds(name)[0]
            reps = common.agree_rounds(name, store.rank, store.barrier, mean_s)
            times, use = common.measure(
                one,
                name,
                store.barrier,
                meter,
                WORKERS,
                n=(0, reps),
                before=case.stamp,
                after=case.check_stamp,
            )
            if case.model != "sum":  # a sum has the mark in it
                case.check()
            case.change()
            store.barrier()
            one()
            case.check()
            case.emit(times, use)
            store.barrier()


async def run_await() -> None:
    """Every case over the await face."""
    async with asyncps.connect("dist_sync") as store:
        meter = common.Meter(common.wait_pids()) if store.rank == 0 else None
        first_key = 0
        for name in CASE_NAMES:
            case = Case(name, store.rank, first_key)
            first_key += len(case.keys)
            await store.init(case.keys, case.zeros())
            keys, grads, outs = case.keys, case.grads, case.outs
            await store.pushpull(keys, grads, out=outs, priority=0)
            case.rounds += 1
            case.check()
            await store.barrier()
            warm = common.rounds(name)[0]
            start = time.perf_counter()
            for _ in range(warm):
                await store.pushpull(keys, grads, out=outs, priority=0)
            mean_s = (time.perf_counter() - start) / warm
            # agree_rounds with its barrier taken out of it: that one has to be awaited
            reps = common.rounds(name)[1]
            if store.rank == 0:
                reps = common.agree_rounds(name, 0, lambda: None, mean_s)
            await store.barrier()
            if store.rank:
                reps = common.agree_rounds(name, store.rank, lambda: None, mean_s)
            if meter:
                meter.reset()
                meter.start()
            times = []
            for _ in range(reps):
                case.stamp()
                t = time.perf_counter()
                await store.pushpull(keys, grads, out=outs, priority=0)
                times.append(time.perf_counter() - t)
                case.check_stamp()
            await store.barrier()
            moved = 2 * common.case_bytes(name) * reps * WORKERS
            use = meter.stop(moved / 1e9) if meter else {}
            case.rounds += warm + reps
            case.change()
            await store.barrier()
            await store.pushpull(keys, grads, out=outs, priority=0)
            case.rounds += 1
            case.check()
            case.emit(times, use, loop=type(asyncio.get_running_loop()).__module__)
            await store.barrier()


def run_idle() -> None:
    """Rank 0 sleeps PEERS_SECONDS, the others wait for it in a barrier; keys are there."""
    seconds = float(os.environ.get("PEERS_SECONDS") or 10)
    with asyncps.create("dist_sync") as store:
        case = Case(CASE_NAMES[0], store.rank, 0)
        store.init(case.keys, case.zeros())
        store.pushpull(case.keys, case.grads, out=case.outs)
        case.rounds += 1
        case.check()
        store.barrier()
        if store.rank == 0:
            meter = common.Meter(common.wait_pids())
            time.sleep(min(1.0, seconds))  # what the barrier woke may go back to sleep
            meter.start()
            time.sleep(seconds)
            use = meter.stop()
            used = sum(v for k, v in use.items() if k.startswith("cpu_s_"))
            common.write(
                {
                    "bench": "idle",
                    "op": "idle",
                    "case": case.name,
                    "workers": WORKERS,
                    "servers": SERVERS,
                    "share_of_core": used / use["window_s"],
                    "verified": True,
                    **BUILD,
                    **use,
                }
            )
        store.barrier()


def main() -> None:
    """Run OP; any wrong value or error ends with a traceback and exit code 1."""
    if OP == "idle":
        run_idle()
    elif OP == "pushpull_await":
        if os.environ.get("ASYNCPS_LOOP") == "asyncio":
            asyncio.run(run_await())
            return
        import uvloop

        uvloop.run(run_await())
    else:
        run_blocking()


main()
