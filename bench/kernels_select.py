"""The kernels that choose elements for bench/kernels.py, each result checked by a model."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import harness
import numpy as np

Ops = dict[str, tuple[Callable[[], object], Callable[[], None], int]]
SHARE = 100  # one element of so many is chosen


def inputs(n: int) -> dict[str, np.ndarray]:
    """Values to choose from, by name: easy ones, and those that a selection does not like."""
    rng = np.random.default_rng(n)
    normal = rng.standard_normal(n, dtype=np.float32)
    return {
        "": normal,
        "_equal": np.full(n, 0.5, np.float32),
        "_zero": np.zeros(n, np.float32),
        "_one_bin": 1 + rng.random(n, dtype=np.float32) / 16,
        "_denormal": rng.integers(1, 1 << 20, n).astype(np.uint32).view(np.float32),
        "_mostly_zero": np.where(rng.random(n) < 0.5 / SHARE, normal, np.float32(0)),
    }


def largest(x: np.ndarray, k: int) -> np.ndarray:
    """Where the k largest are, of equal ones the first."""
    size = x.view(np.uint32) & 0x7FFFFFFF
    least = np.partition(size, x.size - k)[x.size - k]
    above, equal = np.flatnonzero(size > least), np.flatnonzero(size == least)
    return np.sort(np.concatenate([above, equal[: k - above.size]]))


def select_ops(body: ModuleType, n: int) -> Ops:
    """name -> (operation, check, bytes) of one body, where one of 100 elements is chosen.

    Bytes are those of the dense float32 array of n, as if each kernel read all of it once.
    """
    k = max(1, n // SHARE)
    arrays = inputs(n)
    x = arrays[""]
    rng = np.random.default_rng(k)
    at, other = (np.sort(rng.permutation(n)[:k]).astype(np.uint32) for _ in range(2))
    values, halves = x[at].copy(), np.full(k, 0x3C00, np.uint16)  # 0x3C00 is 1.0
    acc, momentum, left, sums = (np.zeros(n, np.float32) for _ in range(4))
    indices, out, bits = np.zeros(k, np.uint32), np.zeros(k, np.float32), np.zeros(k, np.uint16)
    union, total = np.zeros(2 * k, np.uint32), np.zeros(2 * k, np.float32)
    t = float(np.abs(x[largest(x, k)]).min())
    ops: dict[str, tuple[Callable[[], object], Callable[[], None]]] = {}

    def topk_of(data: np.ndarray, name: str) -> None:
        def run() -> None:
            body.topk(data, k, indices, out)

        def check() -> None:
            indices.fill(0)
            run()
            harness.require(np.array_equal(indices, largest(data, k)), name)
            harness.require(np.array_equal(out, data[indices]), name)

        ops[name] = (run, check)

    for name, data in arrays.items():
        topk_of(data, f"topk{name}")

    def check_threshold() -> None:
        size = body.threshold(x, t, union, total)
        harness.require(size == np.count_nonzero(np.abs(x) >= np.float32(t)), "threshold")
        harness.require(np.array_equal(union[:size], np.flatnonzero(np.abs(x) >= t)), "threshold")

    def check_count() -> None:
        count = np.count_nonzero(np.abs(x) >= np.float32(t))
        harness.require(body.count_threshold(x, t) == count, "count_threshold")

    def check_random() -> None:
        body.random_indices(7, n, k, indices)
        is_good = (np.diff(indices.astype(np.int64)) > 0).all() and indices[-1] < n
        harness.require(is_good, "random_indices")

    def check_take() -> None:
        left[:] = x
        body.take(left, at, out)
        harness.require(np.array_equal(out, values) and not left[at].any(), "take")
        left[:] = x
        body.take_f16(left, at, bits)
        sent = bits.view(np.float16).astype(np.float32)
        harness.require(np.array_equal(sent, values.astype(np.float16)), "take_f16")
        harness.require(np.array_equal(left[at], values - sent), "take_f16")

    def check_add() -> None:
        acc.fill(1)
        body.add_at(acc, at, values)
        body.add_at_f16(acc, at, halves)
        want = np.ones(n, np.float32)
        want[at] = (np.float32(1) + values) + np.float32(1)
        harness.require(np.array_equal(acc, want), "add_at")

    def check_set() -> None:
        body.set_at(acc, at, values)
        harness.require(np.array_equal(acc[at], values), "set_at")
        harness.require(np.count_nonzero(acc) == np.count_nonzero(values), "set_at")

    def check_merge() -> None:
        size = body.merge(at, values, other, out, union, total)
        harness.require(np.array_equal(union[:size], np.union1d(at, other)), "merge")

    def check_dgc() -> None:
        momentum.fill(2)
        sums.fill(1)
        body.dgc_accumulate(momentum, sums, x, 0.5)
        harness.require(np.array_equal(momentum, np.float32(1) + x), "dgc_accumulate")
        harness.require(np.array_equal(sums, np.float32(1) + momentum), "dgc_accumulate")
        want = sums[at]
        body.dgc_mask(momentum, sums, at, out)
        harness.require(np.array_equal(out, want) and not sums[at].any(), "dgc_mask")
        harness.require(not momentum[at].any(), "dgc_mask")

    ops["threshold"] = (lambda: body.threshold(x, t, union, total), check_threshold)
    ops["count_threshold"] = (lambda: body.count_threshold(x, t), check_count)
    ops["random_indices"] = (lambda: body.random_indices(7, n, k, indices), check_random)
    ops["take"] = (lambda: body.take(left, at, out), check_take)
    ops["take_f16"] = (lambda: body.take_f16(left, at, bits), check_take)
    ops["add_at"] = (lambda: body.add_at(acc, at, values), check_add)
    ops["add_at_f16"] = (lambda: body.add_at_f16(acc, at, halves), check_add)
    ops["set_at"] = (lambda: body.set_at(acc, at, values), check_set)
    ops["merge"] = (lambda: body.merge(at, values, other, out, union, total), check_merge)
    ops["dgc_accumulate"] = (lambda: body.dgc_accumulate(momentum, sums, x, 0.5), check_dgc)
    ops["dgc_mask"] = (lambda: body.dgc_mask(momentum, sums, at, out), check_dgc)
    return {name: (run, check, 4 * n) for name, (run, check) in ops.items()}
