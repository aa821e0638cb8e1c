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
from asyncps_ext import select
from asyncps_ext.sparse_index import RangeIndex
n = 200_000
good = np.arange(n)
end = time.monotonic() + 0.5
def beside(change):
    def run():
        while time.monotonic() < end:
            change()
    threading.Thread(target=run).start()
def repeat(call):
    while time.monotonic() < end:
        try:
            call()
        except ValueError:
            pass
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

TOPK = """
select._set_variant({variant!r})
n = {n}
k, room = n // 2, 32
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


@pytest.mark.parametrize("n", [8_000, 300_000])
@pytest.mark.parametrize("variant", select._variants())
def test_topk_of_values_that_change_writes_nowhere_else(variant: str, n: int) -> None:
    run(TOPK.format(variant=variant, n=n) + "beside(change)\nrepeat(call)\n")
