"""The codecs that bench/compression.py compares, and what each must send, in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Spec = dict[str, Any]

SMALL_BYTES = 65536  # smaller keys travel as they are, but for 1bit and 2bit

# name -> what set_gradient_compression is told; None: as it is
CODECS: dict[str, Spec | None] = {
    "f32": None,
    "f16": {"type": "f16"},
    "bf16": {"type": "bf16"},
    "int8": {"type": "int8"},
    "2bit": {"type": "2bit", "threshold": 0.5},
    "1bit": {"type": "1bit", "threshold": 0.0},
    "onebit": {"type": "onebit"},
    "topk": {"type": "topk", "ratio": 0.01},
    "threshold": {"type": "threshold", "threshold": 2.5},
    "randomk": {"type": "randomk", "ratio": 0.1},
    "powersgd": {"type": "powersgd", "rank": 2},
    "powersgd, rank 4": {"type": "powersgd", "rank": 4},
    # Without a momentum, so that what arrives is what was pushed; the work is the same.
    "dgc": {"type": "dgc", "ratio": 0.01, "momentum": 0.0},
    "f16, pulls too": {"type": "f16", "pull": "f16"},
    # layers of 4 KiB and more: half of what is sent would be dense else
    "topk, pulls too": {"type": "topk", "ratio": 0.01, "pull": True, "small_bytes": 4096},
}
# What differs where the CNN is trained: thresholds that fit its gradients, which are sums over 64
# images; and biases and small layers, whose gradients are larger, travel as they are.
TRAINED: dict[str, Spec] = {
    "2bit": {"type": "2bit", "threshold": 4.0, "small_bytes": SMALL_BYTES},
    "1bit": {"type": "1bit", "threshold": 0.0, "small_bytes": SMALL_BYTES},
    "threshold": {"type": "threshold", "threshold": 1.0},
    # The servers' SGD has no momentum then; the warm-up is an epoch of MNIST's 5,000.
    "dgc": {"type": "dgc", "ratio": 0.01, "momentum": 0.9, "warmup": 40},
}
BOTH_WAYS = "topk, pulls too"

Shape = tuple[int, ...]

# The parameters of the CNN of examples/cnn.py, 431,080 in all: shapes by key.
CNN: dict[str, Shape] = {
    "conv1.weight": (25, 20), "conv1.bias": (20,), "conv2.weight": (500, 50), "conv2.bias": (50,),
    "dense1.weight": (800, 500), "dense1.bias": (500,), "dense2.weight": (500, 10),
    "dense2.bias": (10,),
}  # fmt: skip
CASES: dict[str, dict[str, Shape]] = {
    "cnn": CNN, "16M": {"one": (2048, 2048)}, "100M": {"one": (5120, 5120)},
}  # fmt: skip


def is_dense(spec: Spec | None, shape: Shape) -> bool:
    """Whether a key of float32 travels as it is."""
    if spec is None:
        return True
    small = 0 if spec["type"] in ("1bit", "2bit") else SMALL_BYTES
    if spec["type"] == "powersgd" and (len(shape) < 2 or min(shape) <= spec["rank"]):
        return True
    return 4 * math.prod(shape) < spec.get("small_bytes", small)


def payload_bytes(spec: Spec, x: np.ndarray) -> int | None:
    """Bytes that a key must become; None where chunks or later values decide."""
    n = x.size
    sizes = {
        "f16": 2 * n, "bf16": 2 * n, "int8": n + 4 * math.ceil(n / 256),
        "1bit": 4 * math.ceil(n / 32), "2bit": 4 * math.ceil(n / 16),
    }  # fmt: skip
    if spec["type"] in ("topk", "randomk", "dgc"):
        k = min(n, max(1, math.ceil(spec["ratio"] * n - 1e-9)))
        return (4 if spec["type"] == "randomk" else 8) * k
    return sizes.get(spec["type"])


def check_sent(spec: Spec, x: np.ndarray, sent: np.ndarray) -> str:
    """Tell what is wrong with the values that a worker's first push of `x` came to; "" if nothing.

    Args:
      x: the first gradient of a key, float32; nothing was kept before.
      sent: what the servers made of its payload.
    """
    kind = spec["type"]
    if kind == "powersgd":
        return check_factors(spec, x, sent)
    x, sent = x.reshape(-1), sent.reshape(-1)
    size = np.abs(x)
    want: np.ndarray | None = None
    rtol = 0.0
    if kind == "f16":
        want = x.astype(np.float16).astype(np.float32)
    elif kind == "bf16":
        want, rtol = x, 2.0**-8
    elif kind == "2bit":
        t = np.float32(spec["threshold"])
        want = np.where(x >= t, t, np.where(x <= -t, -t, np.float32(0)))
    elif kind == "1bit":
        want = np.where(x > np.float32(spec["threshold"]), np.float32(1), np.float32(-1))
    elif kind == "onebit":
        scale = np.float32(size.mean(dtype=np.float64))
        want, rtol = np.where(x >= 0, scale, -scale), 1e-6
    elif kind == "threshold":
        want = np.where(size >= np.float32(spec["threshold"]), x, np.float32(0))
    elif kind in ("topk", "dgc"):  # the first push of dgc
        k = payload_bytes(spec, x) or 0
        order = np.argsort(-size, kind="stable")[: k // 8]  # of equal ones the lower index
        want = np.zeros_like(x)
        want[order] = x[order]
    elif kind == "int8":
        steps = np.repeat(np.maximum.reduceat(size, np.arange(0, x.size, 256)) / 127, 256)
        good = np.abs(x - sent) <= 0.5001 * steps[: x.size]
        return "" if good.all() else f"{kind}: {np.count_nonzero(~good)} values are too far off"
    elif kind == "randomk":
        k = (payload_bytes(spec, x) or 0) // 4
        if np.count_nonzero(sent) != k or not np.isin(sent[sent != 0], x).all():
            return f"{kind}: {np.count_nonzero(sent)} values, not {k} of the gradient's"
        want = np.where(sent != 0, x, np.float32(0))
    if want is None:
        return f"no model of {kind}"
    bad = np.count_nonzero(~np.isclose(sent, want, rtol=rtol, atol=0))
    return f"{kind}: {bad} of {x.size} values are wrong" if bad else ""


def check_factors(spec: Spec, x: np.ndarray, sent: np.ndarray) -> str:
    """As `check_sent`, of powersgd: it sends what of x lies in as many directions as its rank."""
    x = x.astype(np.float64)
    chance = np.random.default_rng(0).standard_normal((x.shape[1], spec["rank"]))
    basis, _ = np.linalg.qr(sent @ chance)  # of all that sent spans, if its rank is no higher
    bad = np.count_nonzero(np.abs(basis @ (basis.T @ x) - sent) > 1e-4 * np.abs(x).max())
    return f"powersgd: {bad} of {x.size} values are wrong" if bad else ""
