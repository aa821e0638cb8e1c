"""A slow reader while 1 GB is pushed: the memory of whoever sends stays in its budget."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from tests.faults.job import PRELUDE, Job, ReservedPort
from tests.support.processes import ProcessGroup
from tests.support.proxy import Direction, TcpProxy, ThreadProxy

pytestmark = pytest.mark.slow

MIB = 1 << 20
VALUE = 16 * MIB
PUSHES = 64
BUDGET = 64 * MIB

PEAK = PRELUDE.replace('"dist_sync"', '"dist_async"') + f"""
def peak(pid="self"):
    with open(f"/proc/{{pid}}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))
store.init("w", np.zeros({VALUE} // 4, "f4"))
store.set_optimizer("test")
"""

# The server reads slowly: the worker may keep a budget of copies, no more.
PUSH = PEAK + f"""
value = np.ones({VALUE} // 4, "f4")
before = peak()
handles = [store.push("w", value) for _ in range({PUSHES})]
for handle in handles:
    handle.wait()
assert (store.pull("w", value) == {PUSHES}).all()
print("the worker took", peak() - before, flush=True)
"""

# Worker 1 reads slowly what it pulls; worker 0 pushes meanwhile.
PULL = PEAK + f"""
server = int(sys.argv[1])
value = np.ones({VALUE} // 4, "f4")
store.push("w", value).wait()
store.barrier()
before = peak(server)
store.barrier()
if store.rank == 0:
    for _ in range({PUSHES}):
        store.push("w", value).wait()
    print("the server took", peak(server) - before, flush=True)
else:
    for _ in range(4):
        got = store.pull("w", value)
        assert 2 <= got[0] <= 2 + {PUSHES} and got[0] == got[{MIB} // 4 - 1], got
store.barrier()
assert (store.pull("w", value) == 2 + {PUSHES}).all()
"""


class SlowProxy(TcpProxy):
    """Passes one direction as to a reader who has other things to do."""

    def __init__(self, target: tuple[str, int], *, slow: Direction, **given: Any) -> None:
        super().__init__(target, **given)
        self._slow = slow
        self._passed = 0

    async def before(self, direction: Direction, nbytes: int) -> None:
        """Make a pause after each MiB: the slowness is what is tested, nobody waits for an end."""
        if direction == self._slow:
            self._passed += nbytes
            if self._passed >= MIB:
                self._passed = 0
                await asyncio.sleep(0.005 if direction == "up" else 0.05)


@pytest.mark.parametrize(("program", "workers", "slow", "most"), [
    (PUSH, 1, "up", BUDGET + 3 * VALUE), (PULL, 2, "down", 3 * VALUE + 64 * MIB),
], ids=["server reads slowly", "worker reads slowly"])  # fmt: skip
def test_memory_stays_in_its_budget_while_a_gb_is_pushed_past_a_slow_reader(
    processes: ProcessGroup, program: str, workers: int, slow: Direction, most: int
) -> None:
    with ReservedPort("0.0.0.0") as port:
        kind = functools.partial(SlowProxy, slow=slow, listen_port=port.number)
        with ThreadProxy(
            ("127.0.0.1", port.number), listen_host="127.0.0.9", kind=kind
        ) as proxy:
            job = Job(processes, workers=workers, ASYNCPS_SEND_BUDGET=BUDGET)
            scheduler = job.scheduler()
            server = job.server(0, ASYNCPS_BIND=f"127.0.0.1:{port.number}",
                                ASYNCPS_ADVERTISE="127.0.0.9")
            there = [job.worker(program, rank, str(server.pid)) for rank in range(workers)]
            line = there[0].wait_for_line(r"the (?:worker|server) took (\d+)", 120.0)
            for member in (*there, server, scheduler):
                assert member.wait(60.0) == 0, member.output
            assert proxy.bytes_up > PUSHES * VALUE
    print(line[0])
    assert int(line[1]) < most
