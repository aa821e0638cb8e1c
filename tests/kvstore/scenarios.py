"""The scenarios of ACCEPTANCE section 1 as functions of a store: the same on every transport."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np

from asyncps.kvstore import KVStore

BF16 = np.dtype(ml_dtypes.bfloat16)
SMALL, BIG = (2, 3), (1200, 1200)
RATE = 2

# One dtype's name in a key, and the dtype. Every sum of K1 with N <= 3 is exact in all of them.
DTYPES: dict[str, np.dtype[Any]] = {
    "f4": np.dtype("f4"), "f2": np.dtype("f2"), "f8": np.dtype("f8"), "bf2": BF16,
    "i1": np.dtype("i1"), "u1": np.dtype("u1"), "i4": np.dtype("i4"), "i8": np.dtype("i8"),
}


def all_are(array: Any, number: float) -> None:
    """Every element is that number, exactly."""
    flat = np.asarray(array).reshape(-1)
    wrong = np.flatnonzero(flat != np.asarray(number).astype(flat.dtype))
    assert not wrong.size, f"element {wrong[0]} is {flat[wrong[0]]}, not {number}"


def wait_joined(store: KVStore) -> None:
    """Until another thread of this worker waits in join()."""
    client = store._core.client

    async def has_joined() -> bool:
        return client.joining is not None

    while not store._runtime.run(has_joined):
        pass


def k1_exact_sums(store: KVStore) -> None:
    """K1: push ones*(rank+1), pull, seven times."""
    keys = {f"small {name}": (SMALL, dtype) for name, dtype in DTYPES.items()}
    keys |= {f"big {name}": (BIG, DTYPES[name]) for name in ("f4", "f2")}
    keys["big i4"] = ((300, 1200), DTYPES["i4"])
    _k1(store, keys, 7)


def k1_seven_workers(store: KVStore) -> None:
    """K1 at MXNet's own size, in its own dtypes."""
    _k1(store, {
        f"{name} {len(shape)} {shape[0]}": (shape, DTYPES[name])
        for name in ("f4", "f2") for shape in (SMALL, BIG)
    }, 7)


def _k1(store: KVStore, keys: dict[str, tuple[Any, Any]], repeats: int) -> None:
    n = store.num_workers
    for key, (shape, dtype) in keys.items():
        store.init(key, np.ones(shape, dtype))
    store.set_optimizer("test", rescale_grad=RATE)
    grads = {key: np.full(shape, store.rank + 1, dtype) for key, (shape, dtype) in keys.items()}
    outs = {key: np.zeros(shape, dtype) for key, (shape, dtype) in keys.items()}
    for repeat in range(repeats):
        for key in keys:
            store.push(key, grads[key])
        for key in keys:
            store.pull(key, out=outs[key])
        for key in keys:
            all_are(outs[key], (n + 1) * n * RATE / 2 * (repeat + 1) + 1)


def k7_init_counts_from_rank_0(store: KVStore) -> None:
    """K7: 100 small and 100 big keys, half f32, half f16, value i; only rank 0's value counts."""
    mine = 1 if store.rank == 0 else 0
    specs = [
        ((2, 3) if i < 100 else (130, 131), np.dtype("f4" if i % 2 else "f2")) for i in range(200)
    ]
    store.init(list(range(200)), [
        np.full(shape, i * mine, dtype) for i, (shape, dtype) in enumerate(specs)
    ])
    for i, value in enumerate(store.pull(list(range(200)))):
        assert value.shape == specs[i][0]
        assert value.dtype == specs[i][1]
        all_are(value, i)


def k11_device_values(store: KVStore) -> None:
    """K11: the values of two local devices are summed first."""
    n = store.num_workers
    for key, shape in (("small", SMALL), ("big", BIG)):
        store.init(key, np.ones(shape, "f4"))
    store.set_optimizer("test", rescale_grad=RATE)
    for key, shape in (("small", SMALL), ("big", BIG)):
        devices = [np.full(shape, store.rank + 1, "f4") for _ in range(2)]
        for repeat in range(2):
            store.push(key, devices)
            all_are(store.pull(key), (n + 1) * n * RATE * (repeat + 1) + 1)
        outs = [np.zeros(shape, "f4") for _ in range(2)]
        store.pushpull(key, devices, out=outs)
        for out in outs:
            all_are(out, (n + 1) * n * RATE * 3 + 1)
        for device in devices:
            all_are(device, store.rank + 1)


def k12_replaced_not_accumulated(store: KVStore) -> None:
    """K12: without an optimizer the sum of a round becomes the value."""
    n = store.num_workers
    for key, shape in (("small", SMALL), ("big", BIG)):
        out = np.zeros(shape, "f4")
        store.broadcast(key, np.ones(shape, "f4"), out=out)
        all_are(out, 1)
        for _ in range(3):
            value = np.full(shape, store.rank + 1, "f4")
            assert store.pushpull(key, value) is value
            all_are(value, n * (n + 1) / 2)


def k14_pushes_as_they_come(store: KVStore) -> None:
    """K14: each worker pushes ones*(rank+1) several times at its own pace; every one counts."""
    n, repeats = store.num_workers, 5
    keys = {f"{name} {shape[0]}": (shape, DTYPES[name])
            for name in ("f4", "f2", "i4") for shape in (SMALL, BIG)}
    for key, (shape, dtype) in keys.items():
        store.init(key, np.ones(shape, dtype))
    store.set_optimizer("test", rescale_grad=RATE)
    for repeat in range(repeats):
        for key, (shape, dtype) in keys.items():
            grad = np.full(shape, store.rank + 1, dtype)
            if (store.rank + repeat) % 3:
                store.push(key, grad)
            else:
                store.pushpull(key, grad)
    store.barrier()
    for key in keys:
        store.pull(key)  # dist_ssp: what was pushed last may be waiting for the slowest until here
    store.barrier()
    for key in keys:
        all_are(store.pull(key), 1 + RATE * repeats * n * (n + 1) / 2)


def k16_twice_before_the_others(store: KVStore) -> None:
    """K16: one worker pushes a key twice before the others push once: two rounds."""
    n, last = store.num_workers, store.num_workers - 1
    for key, shape in (("small", SMALL), ("big", BIG)):
        store.init(key, np.zeros(shape, "f4"))
        sums = [sum(100 * turn + rank + 1 for rank in range(n)) for turn in (1, 2)]
        mine = [np.full(shape, 100 * turn + store.rank + 1, "f4") for turn in (1, 2)]
        if store.rank == last:
            for value in mine:
                store.push(key, value).wait(10)
            store.barrier()
        else:
            store.barrier()
            store.push(key, mine[0])
            all_are(store.pull(key), sums[0])
            store.push(key, mine[1])
        all_are(store.pull(key), sums[1])
        store.barrier()


def k17_mixed_verbs(store: KVStore) -> None:
    """K17: one worker uses push and pull, the others pushpull, in the same rounds."""
    n = store.num_workers
    for key, shape in (("small", SMALL), ("big", BIG)):
        store.init(key, np.zeros(shape, "f4"))
        for turn in range(4):
            mine = np.full(shape, turn + store.rank + 1, "f4")
            out = np.zeros(shape, "f4")
            if store.rank == turn % n:
                store.push(key, mine)
                store.pull(key, out=out)
            else:
                store.pushpull(key, mine, out=out)
            all_are(out, sum(turn + rank + 1 for rank in range(n)))
            all_are(mine, turn + store.rank + 1)


def k21_any_order(store: KVStore) -> None:
    """K21: workers init 200 keys in different orders; keys 5 and "5"; key 2**40."""
    keys: list[int | str] = [*range(90), *map(str, range(90)), 2**40, -1, 2**63 - 1, -(2**63)]
    keys += [f"layer.{i}" for i in range(200 - len(keys))]
    numbers = {key: float(i + 1) for i, key in enumerate(keys)}
    mine = list(keys)
    random.Random(store.rank).shuffle(mine)
    for key in mine:
        store.init(key, np.full(3, numbers[key] if store.rank == 0 else -1, "f4"))
    for key in reversed(mine):
        all_are(store.pull(key), numbers[key])
    n = store.num_workers
    random.Random(99 + store.rank).shuffle(mine)
    for key in mine:
        store.push(key, np.full(3, numbers[key], "f4"))
    for key in keys:
        all_are(store.pull(key), numbers[key] * n)


def k22_f16_summed_in_f32(store: KVStore) -> None:
    """K22: 64 local values of f16 1e-3, pulled."""
    store.init("h", np.zeros(5, "f2"))
    values = [np.full(5, 1e-3, "f2") for _ in range(64)]
    pulled = store.pushpull("h", values, out=np.zeros(5, "f2"))
    one = np.float16(64 * np.float32(np.float16(1e-3)) * store.num_workers)
    all_are(pulled, one)
    if store.num_workers == 1:
        assert abs(float(pulled[0]) - 0.06402588) < 1e-8


ALL = (
    k1_exact_sums, k7_init_counts_from_rank_0, k11_device_values, k12_replaced_not_accumulated,
    k16_twice_before_the_others, k17_mixed_verbs, k21_any_order, k22_f16_summed_in_f32,
)
