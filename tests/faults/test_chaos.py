"""Exactly once on real processes: a thousand rounds through a network that fails all the time.

Every connection passes a proxy that cuts at random bytes, freezes and is late; what is resent comes
twice. Each worker draws from one seed what every worker pushes, keeps a NumPy model of all values,
and looks at each value that it gets.
"""

from __future__ import annotations

import pytest

from tests.faults.job import PRELUDE
from tests.faults.storm import job_in_a_storm
from tests.support.processes import ProcessGroup

pytestmark = pytest.mark.slow

# Rows of slabs, a chunk that takes the lane, and a key of several chunks. Weights are sums of small
# integers, exact in f32: an update that is lost or counted twice is seen at once, and for ever.
COMMON = PRELUDE.replace('asyncps.create("dist_sync")', "open_store()").replace(
    "import asyncps", """import asyncps
seed, rounds, kind = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def open_store():
    staleness = 2 if kind == "dist_ssp" else 0
    return asyncps.create(kind, staleness=staleness)
sizes = {"a": 1, "b": 7, "c": 300, "d": 5000, "chunk": 10_000, "large": 60_000}
groups = [["a"], ["b"], ["chunk"], ["chunk"], ["a", "b", "c", "d"], ["c", "chunk"], ["large"],
          ["d", "a"], list(sizes)]
def drawn(step, rank):
    chance = np.random.default_rng([seed, step, rank])
    return chance.integers(-3, 4), chance.random()
def trade(names, values, how):
    if how >= 0.6:
        store.push(names, values)
        return store.pull(names)
    if len(names) > 1:
        return store.pushpull(names, values)
    return [store.pushpull(names[0], values[0])]
""")

SYNC = COMMON + """
rank, n = store.rank, store.num_workers
store.init(list(sizes), [np.zeros(size, "f4") for size in sizes.values()])
store.set_optimizer("test")
model = dict.fromkeys(sizes, 0)
for step in range(rounds):
    names = groups[np.random.default_rng([seed, step]).integers(len(groups))]
    total = sum(int(drawn(step, other)[0]) for other in range(n))
    value, how = drawn(step, rank)
    values = [np.full(sizes[name], value, "f4") for name in names]
    for name, array in zip(names, trade(names, values, how)):
        model[name] += total
        assert (array == model[name]).all(), (step, name, model[name], np.unique(array))
    if step % 100 == 99:
        store.barrier()
        print("worker", rank, "has done", step + 1, flush=True)
for name, array in zip(sizes, store.pull(list(sizes))):
    assert (array == model[name]).all(), (name, model[name], np.unique(array))
lanes = store._core.worker.lanes
print("worker", rank, "is exact, of which bytes over lanes:", lanes.sent_bytes, flush=True)
store.close()
"""

# Here no round holds the workers together: each pushes to elements of its own, and sees all of its
# own pushes in what it pulls.
FREE = COMMON + """
rank, n = store.rank, store.num_workers
sizes = {name: n * size for name, size in sizes.items()}
store.init(list(sizes), [np.zeros(size, "f4") for size in sizes.values()])
store.set_optimizer("test")
model = dict.fromkeys(sizes, 0)
for step in range(rounds):
    chance = np.random.default_rng([seed, step, 0 if kind == "dist_ssp" else rank])
    names = groups[chance.integers(len(groups))]
    value, how = drawn(step, rank)
    values = [np.zeros(sizes[name], "f4") for name in names]
    for array in values:
        array[rank::n] = value
    for name, array in zip(names, trade(names, values, how)):
        model[name] += int(value)
        assert (array[rank::n] == model[name]).all(), (step, name, model[name])
    if step % 100 == 99:
        print("worker", rank, "has done", step + 1, flush=True)
store.barrier()
for name, array in zip(sizes, store.pull(list(sizes))):
    assert (array[rank::n] == model[name]).all(), (name, model[name])
    others = array.reshape(-1, n)
    assert (others == others[0]).all(), name
lanes = store._core.worker.lanes
print("worker", rank, "is exact, of which bytes over lanes:", lanes.sent_bytes, flush=True)
store.close()
"""


@pytest.mark.parametrize(("kind", "rounds", "seed"), [
    ("dist_sync", 1000, 1), ("dist_sync", 300, 2), ("dist_async", 500, 3), ("dist_ssp", 500, 4),
])  # fmt: skip
def test_no_push_is_lost_or_counted_twice_in_a_storm(
    processes: ProcessGroup, kind: str, rounds: int, seed: int
) -> None:
    print("seed", seed)
    program = SYNC if kind == "dist_sync" else FREE
    with job_in_a_storm(
        processes, program, str(seed), str(rounds), kind, seed=seed * 1000,
        ASYNCPS_RECONNECT_S=20, ASYNCPS_ROUND_S=60, ASYNCPS_CHUNK_BYTES=65536,
    ) as (storm, scheduler, servers, workers):
        for rank, worker in enumerate(workers):
            line = worker.wait_for_line(
                rf"worker {rank} is exact, of which bytes over lanes: (\d+)", 240.0)
            assert int(line[1]) > 0, "no lane was taken"
        for member in (*workers, *servers, scheduler):
            assert member.wait(25.0) == 0, member.output
        print("cuts", storm.cuts, "freezes and late pieces", storm.freezes)
        assert min(storm.cuts) > 0
        assert min(storm.freezes) > 0
