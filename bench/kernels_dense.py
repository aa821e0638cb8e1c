"""Sums, conversions and update steps for bench/kernels.py, each result checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType

import harness
import numpy as np

Ops = dict[str, tuple[Callable[[], None], Callable[[], None], int]]
PAGE = 4096
HYPER = {"lr": 0.05, "wd": 1e-4, "rescale": 0.5, "clip": 0.4}


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that starts at a page: memcpy of 64 KiB takes 2 to 22 us by alignment alone."""
    room = np.empty(values.nbytes + PAGE, np.uint8)
    start = -room.ctypes.data % PAGE
    out = room[start : start + values.nbytes].view(values.dtype)
    out[:] = values
    return out


def zeros(n: int, dtype: str = "f4") -> np.ndarray:
    """An aligned array of zeros."""
    return aligned(np.zeros(n, dtype))


def unique(n: int, first: int = 0) -> np.ndarray:
    """n float32 values in [0.5, 1), each of 2**23 neighbours with bits of its own."""
    bits = np.arange(first, first + n, dtype=np.uint32) % (1 << 23) + (126 << 23)
    return aligned(bits.astype(np.uint32).view("f4"))


def close(got: np.ndarray, want: np.ndarray, what: str, rtol: float = 2e-6) -> None:
    """Compare with a model in float64."""
    harness.require(np.allclose(got, want, rtol=rtol, atol=1e-12), what)


def bf16_bits(x: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16, ties to even, as bits."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def reduce_ops(body: ModuleType, n: int) -> Ops:
    """name -> (operation, check, bytes it reads and writes) of one body, for n float32."""
    x = unique(n)
    acc, out32, scaled, bits = zeros(n), zeros(n), aligned(x), zeros(n, "u2")
    half = aligned(x.astype("f2"))
    half_bits, brain = half.view(np.uint16), aligned(bf16_bits(x))
    brain_wide = (brain.astype(np.uint32) << 16).view("f4")

    def check_add(add: Callable[[], None], want: np.ndarray, name: str) -> Callable[[], None]:
        def check() -> None:
            acc[:] = 1
            add()
            harness.require(np.array_equal(acc, np.float32(1) + want), name)

        return check

    def check_out(fn: Callable[[], None], out: np.ndarray, want: np.ndarray, name: str):
        def check() -> None:
            out.fill(0)
            fn()
            harness.require(np.array_equal(out, want), name)

        return check

    def check_scale() -> None:
        scaled[:] = x
        body.scale(scaled, 0.5)
        harness.require(np.array_equal(scaled, x * np.float32(0.5)), "scale")

    ops = {
        "add_f32": (lambda: body.add(acc, x), x, 12),
        "add_f16": (lambda: body.add_f16(acc, half_bits), half.astype("f4"), 10),
        "add_bf16": (lambda: body.add_bf16(acc, brain), brain_wide, 10),
    }
    done = {k: (fn, check_add(fn, want, k), size * n) for k, (fn, want, size) in ops.items()}
    moves = {
        "widen_f16": (lambda: body.widen_f16(out32, half_bits), out32, half.astype("f4")),
        "widen_bf16": (lambda: body.widen_bf16(out32, brain), out32, brain_wide),
        "narrow_f16": (lambda: body.narrow_f16(bits, x), bits, half_bits),
        "narrow_bf16": (lambda: body.narrow_bf16(bits, x), bits, brain),
    }
    for name, (fn, out, want) in moves.items():
        done[name] = (fn, check_out(fn, out, want, name), 6 * n)
    # Each rank's part once, as an all-reduce of four has them.
    parts = [x, aligned(x * np.float32(3)), aligned(x * np.float32(-2)), aligned(x + 1)]
    total = parts[0] + parts[1] + parts[2] + parts[3]
    add_all = partial(body.add_all, out32, parts)
    done["add_all_f32_of_4"] = (
        add_all, check_out(add_all, out32, total, "add_all"), 20 * n)
    done["scale_f32"] = (lambda: body.scale(scaled, 1.0), check_scale, 8 * n)
    return done


def optim_ops(body: ModuleType, n: int) -> Ops:
    """name -> (operation, check, bytes it reads and writes) of one body, for n float32."""
    g, w0 = unique(n), unique(n, 12345)
    out, w = zeros(n), aligned(w0)
    m0, v0 = unique(n, 777) * np.float32(0.1), unique(n, 999)
    m, v = aligned(m0), aligned(v0)
    lr, wd, rescale, clip = HYPER["lr"], HYPER["wd"], HYPER["rescale"], HYPER["clip"]
    g64, w64, m64, v64 = (a.astype("f8") for a in (g, w0, m0, v0))

    def test() -> None:
        body.test(out, w, g, rescale)

    def sgd() -> None:
        body.sgd(out, w, g, lr, wd, rescale, clip)

    def momentum() -> None:
        body.sgd_momentum(out, w, g, m, lr, 0.9, wd, rescale, clip, False)

    def adam() -> None:
        body.adam(out, w, g, m, v, lr, 0.9, 0.999, 1e-8, wd, rescale, clip)

    g_sgd = np.clip(rescale * g64, -clip, clip) + wd * w64
    g_adam = np.clip(rescale * g64 + wd * w64, -clip, clip)
    m_sgd = 0.9 * m64 - lr * g_sgd
    m_adam, v_adam = 0.9 * m64 + 0.1 * g_adam, 0.999 * v64 + 0.001 * g_adam**2
    wants = {
        "test": (test, w64 + rescale * g64, 12),
        "sgd": (sgd, w64 - lr * g_sgd, 12),
        "sgd_momentum": (momentum, w64 + m_sgd, 20),
        "adam": (adam, w64 - lr * m_adam / (np.sqrt(v_adam) + 1e-8), 28),
    }

    def checker(name: str, fn: Callable[[], None], want: np.ndarray) -> Callable[[], None]:
        def check() -> None:
            m[:], v[:] = m0, v0
            out.fill(0)
            fn()
            close(out, want, name)
            harness.require(np.array_equal(w, w0), f"{name} changed its input")

        return check

    return {k: (fn, checker(k, fn, want), size * n) for k, (fn, want, size) in wants.items()}
