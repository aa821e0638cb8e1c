"""One worker of the row-sparse benchmark, on asyncps or on MXNet. Python 3.8 to 3.13.

Every round pushes ROWS random rows and pulls as many, of a table of TABLE rows of WIDTH f32 with
SGD on the servers. Each worker knows what all have pushed, so every answer of the check is
compared with what it must be.
"""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

TABLE, ROWS, WIDTH, RATE = 1000000, 10000, 64, 0.5
SETS = 4  # different sets of rows, each used again
WARM, REPEATS = 3, int(os.environ.get("PEERS_REPEATS", "25"))


def ids_of(rank, index):
    """The rows of a rank's push number `index`, ascending."""
    rng = np.random.RandomState(100 * rank + index % SETS)
    return np.sort(rng.choice(TABLE, ROWS, replace=False)).astype(np.int64)


class Asyncps:
    """The verbs on asyncps."""

    def __init__(self):
        import asyncps

        self.asyncps = asyncps
        self.store = asyncps.create("dist_sync")
        self.rank, self.workers = self.store.rank, self.store.num_workers
        self.store.init("t", asyncps.initializer.One(), shape=(TABLE, WIDTH))
        self.store.set_optimizer("sgd", learning_rate=RATE)

    def rows(self, ids, values):
        return self.asyncps.RowSparse(ids, values, (TABLE, WIDTH))

    def ids(self, ids):
        return ids

    def push(self, rows):
        self.store.push("t", rows, copy=False)

    def pull(self, ids):
        return self.store.row_sparse_pull("t", ids)

    def values(self, found):
        return found.values

    def barrier(self):
        self.store.barrier()

    def touch_all(self):
        """All rows exist before anything is timed, as they do in MXNet."""
        if self.rank == 0:
            for first in range(0, TABLE, 50000):
                self.store.row_sparse_pull("t", np.arange(first, first + 50000))

    def close(self):
        self.store.close()


class MXNet:
    """The verbs on MXNet."""

    def __init__(self):
        import mxnet as mx

        self.mx = mx
        self.kv = mx.kv.create("dist_sync")
        self.rank, self.workers = self.kv.rank, self.kv.num_workers
        self.kv.init("t", mx.nd.ones((TABLE, WIDTH)).tostype("row_sparse"))
        self.kv.set_optimizer(mx.optimizer.SGD(learning_rate=RATE, wd=0.0))
        self.out = mx.nd.sparse.zeros("row_sparse", (TABLE, WIDTH))

    def rows(self, ids, values):
        found = self.mx.nd.sparse.row_sparse_array((values, ids), shape=(TABLE, WIDTH))
        found.wait_to_read()
        return found

    def ids(self, ids):
        return self.mx.nd.array(ids, dtype="int64")

    def push(self, rows):
        self.kv.push("t", rows)

    def pull(self, ids):
        self.kv.row_sparse_pull("t", out=self.out, row_ids=ids)
        self.out.wait_to_read()
        return self.out

    def values(self, found):
        return found.data.asnumpy()

    def barrier(self):
        self.kv._barrier()

    def touch_all(self):
        pass

    def close(self):
        pass


def main(system):
    """Check, time, check again; one record a rank."""
    peer = {"asyncps": Asyncps, "mxnet": MXNet}[system]()
    peer.touch_all()
    peer.barrier()
    sets = [ids_of(peer.rank, index) for index in range(SETS)]
    gradients = [
        peer.rows(ids, np.repeat((ids % 7 + 1).astype(np.float32)[:, None], WIDTH, axis=1))
        for ids in sets
    ]
    asked = [peer.ids(ids) for ids in sets]
    weight = np.ones(TABLE, np.float64)
    done = 0

    def round_():
        peer.push(gradients[done % SETS])
        return peer.pull(asked[done % SETS])

    def count():
        nonlocal done
        for rank in range(peer.workers):
            ids = ids_of(rank, done)
            weight[ids] -= RATE * (ids % 7 + 1)
        done += 1

    def check(found, ids, what):
        got = peer.values(found)
        wrong = got != weight[ids].astype(np.float32)[:, None]
        if got.shape != (ROWS, WIDTH) or wrong.any():
            raise SystemExit("%s: a wrong value %s of rank %d" % (system, what, peer.rank))

    times = {"push_pull": [], "pull": []}
    for repeat in range(WARM + REPEATS):
        which = done % SETS
        peer.barrier()
        start = time.perf_counter()
        found = round_()
        took = time.perf_counter() - start
        count()
        if repeat % 5 == 0:
            check(found, sets[which], "of a round")
        peer.barrier()
        start = time.perf_counter()
        found = peer.pull(asked[(which + 1) % SETS])
        pulled = time.perf_counter() - start
        if repeat % 5 == 0:
            check(found, sets[(which + 1) % SETS], "of a pull")
        if repeat >= WARM:
            times["push_pull"].append(took)
            times["pull"].append(pulled)
    record = {"system": system, "rank": peer.rank, "workers": peer.workers, "verified": True}
    for name, taken in times.items():
        record[name + "_ms"] = round(float(np.median(taken)) * 1e3, 3)
    peer.barrier()
    peer.close()
    print(json.dumps(record))
    sys.stdout.flush()


main(sys.argv[1])
