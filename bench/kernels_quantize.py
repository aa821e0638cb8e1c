"""The quantizers for bench/kernels.py: gradients in few bits, each result checked by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import harness
import numpy as np

Ops = dict[str, tuple[Callable[[], object], Callable[[], None], int]]
Sized = dict[str, tuple[Callable[[], object], int]]
THRESHOLD = 0.5
SCALE = 0.75


class Gradients:
    """n values, room for what they become, and one body of the kernels on them."""

    def __init__(self, body: ModuleType, n: int) -> None:
        self.body, self.n = body, n
        self.g = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
        self.residual, self.out = np.zeros(n, np.float32), np.zeros(n, np.float32)
        self.two = np.zeros((n + 15) // 16 * 4, np.uint8)
        self.one = np.zeros((n + 31) // 32 * 4, np.uint8)
        self.q, self.scales = np.zeros(n, np.int8), np.zeros((n + 255) // 256, np.float32)
        self.half = np.zeros(n, np.uint16)

    def encoders(self, kept: np.ndarray | None) -> Sized:
        """name -> (operation, bytes of its payload)."""
        body, g, half = self.body, self.g, self.half
        two, one, q, scales = self.two, self.one, self.q, self.scales
        return {
            "encode_2bit": (lambda: body.encode_2bit(two, kept, g, THRESHOLD), two.nbytes),
            "encode_1bit": (lambda: body.encode_1bit(one, kept, g, 0), one.nbytes),
            "encode_int8": (
                lambda: body.encode_int8(q, scales, kept, g), q.nbytes + scales.nbytes
            ),
            "encode_f16": (lambda: body.encode_f16(half, kept, g), half.nbytes),
            "encode_bf16": (lambda: body.encode_bf16(half, kept, g), half.nbytes),
        }  # fmt: skip

    def readers(self) -> Sized:
        """As encoders."""
        body, out = self.body, self.out
        two, one, q, scales = self.two, self.one, self.q, self.scales
        blocks = q.nbytes + scales.nbytes
        return {
            "decode_2bit": (lambda: body.decode_2bit(out, two, THRESHOLD), two.nbytes),
            "add_2bit": (lambda: body.add_2bit(out, two, THRESHOLD), two.nbytes),
            "decode_1bit": (lambda: body.decode_1bit(out, one), one.nbytes),
            "add_1bit": (lambda: body.add_1bit(out, one), one.nbytes),
            "decode_int8": (lambda: body.decode_int8(out, q, scales), blocks),
            "add_int8": (lambda: body.add_int8(out, q, scales), blocks),
            "decode_onebit": (lambda: body.decode_onebit(out, one, SCALE), one.nbytes),
            "add_onebit": (lambda: body.add_onebit(out, one, SCALE), one.nbytes),
        }

    def check_encoder(self, name: str, encode: Callable[[], object], is_kept: bool) -> None:
        """What is decoded of what is sent, and what is kept (or not) when nothing was before."""
        g, out, t = self.g, self.out, np.float32(THRESHOLD)
        self.residual[:] = 0
        encode()
        if name == "encode_f16":
            out[:] = self.half.view(np.float16)
        elif name == "encode_bf16":
            out.view(np.uint32)[:] = self.half.astype(np.uint32) << 16
        else:
            self.readers()[name.replace("encode", "decode")][0]()
        if name == "encode_2bit":
            good = np.array_equal(out, np.where(g >= t, t, np.where(g <= -t, -t, np.float32(0))))
        elif name == "encode_1bit":
            good = np.array_equal(out, np.where(g > 0, np.float32(1), np.float32(-1)))
        elif name == "encode_f16":
            good = np.array_equal(out, g.astype(np.float16).astype(np.float32))
        else:
            good = np.allclose(out, g, rtol=2**-8, atol=float(np.abs(g).max()) / 254)
        harness.require(good, name)
        left = g - out if is_kept else np.zeros_like(g)
        harness.require(np.array_equal(self.residual, left), f"{name}: what is kept")

    def check_reader(self, name: str) -> None:
        """Adding to ones is decoding and one more."""
        kind = name.split("_")[1]
        self.readers()[f"decode_{kind}"][0]()
        want = self.out + np.float32(1)
        self.out[:] = 1
        self.readers()[f"add_{kind}"][0]()
        harness.require(np.array_equal(self.out, want), name)

    def check_onebit(self) -> None:
        """Both steps."""
        body, g, out = self.body, self.g, self.out
        self.residual[:] = 0
        total, want = body.onebit_prepare(self.residual, g), float(np.abs(g.astype("f8")).sum())
        harness.require(abs(total - want) <= 1e-9 * want, "onebit_prepare")
        body.encode_onebit(self.one, self.residual, SCALE)
        body.decode_onebit(out, self.one, SCALE)
        signs = np.where(g >= 0, np.float32(SCALE), np.float32(-SCALE))
        harness.require(np.array_equal(out, signs), "encode_onebit")
        harness.require(np.array_equal(self.residual, g - signs), "encode_onebit: what is kept")

    def check_scan(self) -> None:
        """Nothing is found, then a NaN; a sum that is infinite; the largest magnitude."""
        body, out, residual = self.body, self.out, self.residual
        out[:] = self.g
        residual[:] = 0
        most = float(np.abs(out).max())
        harness.require(body.largest(out) == most, "largest")
        harness.require(body.count_nonfinite(out) == 0, "count_nonfinite")
        harness.require(body.count_nonfinite(out, residual) == 0, "count_nonfinite of sums")
        out[-1] = residual[-1] = 3e38
        harness.require(body.count_nonfinite(out) == 0, "count_nonfinite")
        harness.require(body.count_nonfinite(out, residual) == 1, "count_nonfinite of sums")
        out[-1], residual[-1] = np.nan, 0
        harness.require(body.count_nonfinite(out) == 1, "count_nonfinite of a NaN")


def quantize_ops(body: ModuleType, n: int) -> Ops:
    """name -> (operation, check, bytes it reads and writes), for n float32.

    What ends with `_kept` reads and writes a residual.
    """
    at = Gradients(body, n)
    g, residual, one = at.g, at.residual, at.one
    ops: Ops = {
        "count_nonfinite": (lambda: body.count_nonfinite(g), at.check_scan, 4 * n),
        "count_nonfinite_sum": (lambda: body.count_nonfinite(g, residual), at.check_scan, 8 * n),
        "largest": (lambda: body.largest(g), at.check_scan, 4 * n),
    }
    for kept, suffix, moved in ((residual, "_kept", 12 * n), (None, "", 4 * n)):
        for name, (fn, size) in at.encoders(kept).items():
            ops[name + suffix] = (
                fn,
                lambda name=name, fn=fn, kept=kept: at.check_encoder(name, fn, kept is not None),
                moved + size,
            )
        ops["onebit_prepare" + suffix] = (
            lambda kept=kept: body.onebit_prepare(kept, g), at.check_onebit, moved,
        )  # fmt: skip
    ops["encode_onebit_kept"] = (
        lambda: body.encode_onebit(one, residual, SCALE), at.check_onebit, 8 * n + one.nbytes,
    )  # fmt: skip
    for name, (fn, size) in at.readers().items():
        moved = (8 if name.startswith("add") else 4) * n + size
        ops[name] = (fn, lambda name=name: at.check_reader(name), moved)
    return ops
