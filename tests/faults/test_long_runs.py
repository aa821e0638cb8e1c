"""Real processes that go on for long: no role takes more memory, descriptors or threads for it.

Rank 0 looks at all processes of the job after a warm-up and at the end, when nobody does anything.
"""

from __future__ import annotations

import pytest

from tests.faults.job import PRELUDE, START_S, Job
from tests.support.processes import ProcessGroup

pytestmark = pytest.mark.slow

# What the allocator and the interpreter may still find to grow by; a leak of 1 KiB an operation
# would be more.
SLACK = 8 << 20

LOOK = PRELUDE + """
import gc, random
others = [int(pid) for pid in sys.argv[1:]]

def look():
    gc.collect()
    found = {}
    for pid in [*others, os.getpid()]:
        with open(f"/proc/{pid}/statm") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        files, threads = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("fd", "task"))
        found[pid] = resident, files, threads
    return found

def compare(before, after):
    for pid, (resident, files, threads) in before.items():
        grown = after[pid][0] - resident
        print("process", pid, "grew by", grown, "bytes:", before[pid], after[pid], flush=True)
        assert after[pid][1:] == (files, threads), (pid, before[pid], after[pid])
        assert grown < SLACK, (pid, before[pid], after[pid])

def meet():
    while True:
        try:
            return store.barrier()
        except asyncps.errors.DeadlineExceeded:
            pass  # the settings of a test may be hasty

def measured(warm_up, work):
    warm_up()
    meet()
    before = look() if store.rank == 0 else None
    meet()
    work()
    meet()
    if store.rank == 0:
        compare(before, look())
    meet()
    print("worker", store.rank, "is done", flush=True)
    store.close()
""".replace("SLACK", str(SLACK))

OPERATIONS = LOOK + """
n, rank = store.num_workers, store.rank
sizes = [1, 3, 7, 50, 300, 999, 4000, 8000, 9000, 16000, 20000, 60000, 150000]
store.init(sizes, [np.zeros(size, "f4") for size in sizes])
chance = random.Random(5)  # the same choices at all workers
def train(count):
    for step in range(count):
        keys = chance.sample(sizes, chance.choice([1, 1, 1, 2, 3]))
        values = [np.full(key, rank + 1, "f4") for key in keys]
        if chance.random() < 0.5:
            store.push(keys, values)
            got = store.pull(keys)
        else:
            got = store.pushpull(keys, values)
        assert all(g[0] == g[-1] == n * (n + 1) / 2 for g in got)
measured(lambda: train(2000), lambda: train(10_000))  # by each of two workers
"""

# Worker 1 comes late to each round. Meanwhile worker 0 waits for it in vain again and again: by its
# own patience, and by the store's deadline.
WAITS = LOOK + """
key = "key"
store.init(key, np.zeros(20_000, "f4"))
store.init("small", np.zeros(10, "f4"))
def failure(handle):
    try:
        handle.wait()
    except asyncps.errors.AsyncPSError as error:
        return error
def patient(name):
    while True:
        try:
            return store.pull(name)
        except asyncps.errors.DeadlineExceeded:
            pass  # on a busy machine the others may be late, too
def rounds(count):
    for step in range(count):
        if store.rank:
            meet()
            store.push([key, "small"], [np.ones(20_000, "f4"), np.ones(10, "f4")])
            patient(key)
            continue
        store.push([key, "small"], [np.ones(20_000, "f4"), np.ones(10, "f4")])
        handles = [store.pull(name, async_op=True) for name in [key, "small"] * 25]
        late = 0
        for handle in handles[:25]:  # of its own patience, and all of them of the store's
            try:
                handle.wait(0.0)
            except asyncps.errors.DeadlineExceeded:
                late += 1
        for handle in handles:
            late += isinstance(failure(handle), asyncps.errors.DeadlineExceeded)
        assert late == 75, late
        meet()
        assert (patient(key) == 2).all()
        assert (patient("small") == 2).all()
measured(lambda: rounds(4), lambda: rounds(20))
"""

STORES = LOOK + """
def stores(first, count):
    for number in range(first, first + count):
        with asyncps.create("dist_sync", name=f"store {number}") as other:
            other.init(["w", "small"], [np.zeros(30_000, "f4"), np.zeros(10, "f4")])
            for name, size in (("w", 30_000), ("small", 10)):
                assert (other.pushpull(name, np.ones(size, "f4")) == 2).all()
measured(lambda: stores(0, 100), lambda: stores(100, 1000))
"""


@pytest.mark.parametrize("program", [OPERATIONS, WAITS, STORES],
                         ids=["20,000 operations", "1,000 waits", "1,000 stores"])
def test_work_that_goes_on_takes_no_more_than_work_that_has_begun(
    processes: ProcessGroup, program: str
) -> None:
    waits = program is WAITS
    job = Job(processes, workers=2, servers=2, **({"ASYNCPS_ROUND_S": 0.5} if waits else {}))
    scheduler, servers = job.scheduler(), [job.server(0), job.server(1)]
    pids = [str(process.pid) for process in (scheduler, *servers)]
    workers = [job.worker(program, rank, *pids) for rank in range(2)]
    for rank, worker in enumerate(workers):
        worker.wait_for_line(f"worker {rank} is done", 200.0)
    for member in (*workers, *servers, scheduler):
        assert member.wait(START_S) == 0, member.output
    print(workers[0].output)
