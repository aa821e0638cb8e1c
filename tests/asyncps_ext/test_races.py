"""What is given to a kernel changes during the call: results are undefined, other memory is not.

Each runs in a process of its own, since what it must not do is die, or write outside.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from asyncps_ext import select

HEAD = """
import threading, time
import numpy as np
from asyncps_ext import select, sparse
from asyncps_ext.sparse_index import RangeIndex
n = 200_000
good = np.arange(n)
end = time.monotonic() + 0.5
def beside(change):
    def run():
        while time.monotonic() < end:
            change()
    threading.Thread(target=run).start()
def repeat(call, refuses=True):
    done = refused = 0
    while time.monotonic() < end or done == 0:
        try:
            call()
            done += 1
        except (ValueError, IndexError):
            refused += 1
    assert done, "no call came through"
    assert refused or not refuses, "nothing changed beside it"
"""

INDEXED = {
    "index": """
ids, slots, index = good.copy(), np.empty(n, np.int64), RangeIndex(0, n)
bad = 1 << 50
call = lambda: index.insert(ids, slots)
""",
    **{
        name: f"""
ids, x, y = good.astype(np.uint32), np.zeros(n, np.float32), np.zeros(n, np.float32)
values = np.zeros(n, np.{dtype})
bad = (1 << 32) - 1
call = lambda: select.{name}({arguments})
"""
        for name, dtype, arguments in (
            ("take", "float32", "x, ids, values"),
            ("take_f16", "uint16", "x, ids, values"),
            ("dgc_mask", "float32", "x, y, ids, values"),
            ("add_at", "float32", "x, ids, values"),
            ("add_at_f16", "uint16", "x, ids, values"),
            ("set_at", "float32", "x, ids, values"),
        )
    },
}

TABLES = {
    "gather": "sparse.gather_rows_at([x], 1, ids, y)",
    "set": "sparse.scatter_set_at([x], 1, ids, y)",
    "add": "sparse.scatter_add_at([x], 1, ids, y)",
    "sum of groups": "sparse.sum_groups(ids, x, 1, y)",
    "unique": "sparse.unique_rows(ids)",
}

TOPK = """
select._set_variant({variant!r})
n = {n}
k, room = n // {part}, 32
x = np.full(n, 0.5, np.float32)
def change():
    x.fill(0.25)
    x.fill(0.5)
def call():
    indices, values = np.full(k + 2 * room, 7, np.uint32), np.full(k + 2 * room, 7, np.float32)
    select.topk(x, k, indices[room : room + k], values[room : room + k])
    for array in (indices, values):
        assert (array[:room] == 7).all() and (array[room + k :] == 7).all()
"""


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", HEAD + code], check=True, timeout=60)


@pytest.mark.parametrize("name", INDEXED)
def test_indices_that_change_touch_no_other_memory(name: str) -> None:
    run(INDEXED[name] + """
def change():
    ids[-20_000:] = bad
    ids[-20_000:] = good[-20_000:]
beside(change)
repeat(call)
""")


@pytest.mark.parametrize("name", TABLES)
def test_slots_and_ids_of_tables_that_change_touch_no_other_memory(name: str) -> None:
    # Descending, so that unique ids are not found by a look at their order alone.
    run(f"""
good = good[::-1].copy()
ids, x, y = good.copy(), np.zeros(n, np.float32), np.zeros(n, np.float32)
def change():
    ids[-20_000:] = 1 << 50
    ids[-20_000:] = good[-20_000:]
beside(change)
repeat(lambda: {TABLES[name]}, refuses={name != "unique"})
""")


def test_a_block_that_leaves_its_list_during_the_call_stays_until_its_end() -> None:
    run("""
m = 1 << 22
slots, out = np.random.default_rng(0).integers(0, 2 * m, 1 << 18), np.empty(1 << 18, np.float32)
blocks = [np.zeros(m, np.float32), np.zeros(m, np.float32)]
def change():
    blocks[1] = np.empty(m, np.float32)
beside(change)
repeat(lambda: sparse.gather_rows_at(blocks, 1, slots, out), refuses=False)
""")


@pytest.mark.parametrize("part", [2, 20])  # by a look at all, and by a sample
@pytest.mark.parametrize("n", [8_000, 300_000])
@pytest.mark.parametrize("variant", select._variants())
def test_topk_of_values_that_change_writes_nowhere_else(variant: str, n: int, part: int) -> None:
    run(TOPK.format(variant=variant, n=n, part=part)
        + "beside(change)\nrepeat(call, refuses=False)\n")
