"""The quantizers for bench/kernels.py: gradients in few bits, each result checked by a model.

Beside the compiled kernels, in each variant that the machine has, their NumPy twins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import harness
import numpy as np

from asyncps_ext import quantize, reference

Ops = dict[str, tuple[Callable[[], object], Callable[[], None], int]]
THRESHOLD = 0.5
SCALE = 0.75
OTHERS_AT = ("1M", "16M")  # sizes at which the other bodies are timed; twins take seconds for more


def other_bodies(case: str) -> Iterator[tuple[str, ModuleType]]:
    """The variants that were not chosen, each in use while it is at hand, and the NumPy twins."""
    if case not in OTHERS_AT:
        return
    for name in quantize._variants()[1:]:
        before = quantize._set_variant(name)
        yield name, quantize
        quantize._set_variant(before)
    if reference.quantize is not quantize:
        yield "numpy", reference.quantize


def quantize_ops(body: ModuleType, n: int) -> Ops:
    """name -> (operation, check, bytes it reads and writes), for n float32.

    Encoders with `_kept` read and write a residual; they are checked with one of zeros.
    """
    g = np.random.default_rng(n).standard_normal(n, dtype=np.float32)
    residual, out = np.zeros(n, np.float32), np.zeros(n, np.float32)
    two, one = np.zeros((n + 15) // 16 * 4, np.uint8), np.zeros((n + 31) // 32 * 4, np.uint8)
    q, scales = np.zeros(n, np.int8), np.zeros((n + 255) // 256, np.float32)
    half = np.zeros(n, np.uint16)
    bits2, bits1 = two.nbytes, one.nbytes
    bytes8 = n + scales.nbytes

    def encoders(kept: np.ndarray | None) -> dict[str, tuple[Callable[[], object], int]]:
        return {
            "encode_2bit": (lambda: body.encode_2bit(two, kept, g, THRESHOLD), bits2),
            "encode_1bit": (lambda: body.encode_1bit(one, kept, g, 0), bits1),
            "onebit_prepare": (lambda: body.onebit_prepare(kept, g), 0),
            "encode_int8": (lambda: body.encode_int8(q, scales, kept, g), bytes8),
            "encode_f16": (lambda: body.encode_f16(half, kept, g), 2 * n),
            "encode_bf16": (lambda: body.encode_bf16(half, kept, g), 2 * n),
        }

    readers = {
        "decode_2bit": (lambda: body.decode_2bit(out, two, THRESHOLD), bits2),
        "add_2bit": (lambda: body.add_2bit(out, two, THRESHOLD), bits2),
        "decode_1bit": (lambda: body.decode_1bit(out, one), bits1),
        "add_1bit": (lambda: body.add_1bit(out, one), bits1),
        "decode_int8": (lambda: body.decode_int8(out, q, scales), bytes8),
        "add_int8": (lambda: body.add_int8(out, q, scales), bytes8),
    }

    def sends(encode: Callable[[], object], name: str) -> Callable[[], None]:
        """Check what is decoded of what was sent, and what is kept."""
        t = np.float32(THRESHOLD)
        wants = {
            "encode_2bit": lambda: np.where(g >= t, t, np.where(g <= -t, -t, np.float32(0))),
            "encode_1bit": lambda: np.where(g > 0, np.float32(1), np.float32(-1)),
            "encode_f16": lambda: g.astype("f2").astype("f4"),
        }
        decoders = {
            "encode_2bit": readers["decode_2bit"][0],
            "encode_1bit": readers["decode_1bit"][0],
            "encode_int8": readers["decode_int8"][0],
            "encode_f16": lambda: np.copyto(out, half.view("f2")),
            "encode_bf16": lambda: np.copyto(out.view("u4"), half.astype("u4") << 16),
        }

        def check() -> None:
            residual[:] = 0
            encode()
            decoders[name]()
            if name in wants:
                harness.require(np.array_equal(out, wants[name]()), name)
            else:
                near = np.allclose(out, g, rtol=2**-8, atol=float(np.abs(g).max()) / 254)
                harness.require(near, name)
            if residual.any():
                harness.require(np.array_equal(residual, g - out), f"{name}: what is kept")

        return check

    def reads(name: str) -> Callable[[], None]:
        """Check that adding to ones is decoding and one more."""
        kind = name.split("_")[1]

        def check() -> None:
            readers[f"decode_{kind}"][0]()
            want = out + np.float32(1)
            out[:] = 1
            readers[f"add_{kind}"][0]()
            harness.require(np.array_equal(out, want), name)

        return check

    def check_onebit() -> None:
        residual[:] = 0
        total, want = body.onebit_prepare(residual, g), float(np.abs(g.astype("f8")).sum())
        harness.require(abs(total - want) <= 1e-9 * want, "onebit_prepare")
        body.encode_onebit(one, residual, SCALE)
        body.decode_onebit(out, one, SCALE)
        signs = np.where(g >= 0, np.float32(SCALE), np.float32(-SCALE))
        harness.require(np.array_equal(out, signs), "encode_onebit")
        harness.require(np.array_equal(residual, g - signs), "encode_onebit: what is kept")

    def check_scan() -> None:
        harness.require(body.count_nonfinite(g) == 0, "count_nonfinite")
        out[:] = g
        out[-1] = np.nan
        harness.require(body.count_nonfinite(out) == 1, "count_nonfinite of a NaN")

    ops: Ops = {"count_nonfinite": (lambda: body.count_nonfinite(g), check_scan, 4 * n)}
    for name, (fn, size) in encoders(residual).items():
        check = check_onebit if name == "onebit_prepare" else sends(fn, name)
        ops[f"{name}_kept"] = (fn, check, 12 * n + size)
    for name, (fn, size) in encoders(None).items():
        check = check_onebit if name == "onebit_prepare" else sends(fn, name)
        ops[name] = (fn, check, 4 * n + size)
    ops["encode_onebit_kept"] = (
        lambda: body.encode_onebit(one, residual, SCALE), check_onebit, 8 * n + bits1,
    )  # fmt: skip
    for name, (fn, size) in readers.items():
        ops[name] = (fn, reads(name), (8 if name.startswith("add") else 4) * n + size)
    return ops
