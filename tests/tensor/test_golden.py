"""Every optimizer and schedule against what MXNet 1.9.1 did: tests/golden/make_optimizers.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.tensor import dtypes, updates

GOLDEN = Path(__file__).parent.parent / "golden" / "optimizers.npz"
with np.load(GOLDEN, allow_pickle=False) as _file:
    ARRAYS = {name: _file[name] for name in _file.files}
INDEX = json.loads(ARRAYS["index"].tobytes())
CASES = list(enumerate(INDEX["cases"]))

# Ours, in MXNet's order of the state arrays.
STATES = {
    "sgd": ("momentum",), "nag": ("momentum",), "adam": ("mean", "variance"),
    "adamw": ("mean", "variance"), "lamb": ("mean", "variance"), "adagrad": ("history",),
    "ftrl": ("z", "n"), "rmsprop": ("variance", "mean", "delta"),
}  # fmt: skip


def of_ours(case: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The case in our words; the key is 7."""
    hyper = dict(case["hyper"])
    hyper.pop("zero_start", None)
    for name in ("lr_mult", "wd_mult"):
        if name in hyper:
            hyper[name] = {7: hyper[name], "7": 99.0}
    if case["name"] == "nag":
        return "sgd", {**hyper, "nesterov": True}
    return case["name"], hyper


def label(case: tuple[int, dict[str, Any]]) -> str:
    return f"{case[0]}-{case[1]['name']}-{case[1]['dtype']}"


def test_the_file_is_of_the_version_that_counts_and_has_every_optimizer() -> None:
    assert INDEX["mxnet"] == "1.9.1"
    names = {of_ours(case)[0] for _, case in CASES}
    assert names == {name for name, kind in optim.REGISTRY.items() if kind.builtin} - {"test"}
    assert GOLDEN.stat().st_size < 300_000


@pytest.mark.parametrize(("number", "case"), CASES, ids=map(label, CASES))
def test_steps_are_those_of_mxnet(number: int, case: dict[str, Any]) -> None:
    name, words = of_ours(case)
    hyper = optim.by_name(name)(**words).hyper
    kind = dtypes.by_name(case["dtype"])
    stored = ARRAYS[f"{number}.w0"].copy()
    state: dict[str, Any] = {}
    half = case["dtype"] == "float16"
    for t, gradient in enumerate(ARRAYS[f"{number}.g"], 1):
        bits = stored.view(kind.bits)
        updates.run(name, kind, bits, bits, gradient.astype(kind.sum), state, hyper, t,
                    ((7, 0, stored.size),), case["multi_precision"])
        wanted = ARRAYS[f"{number}.w"][t - 1]
        # Ours rounds as written, theirs may fuse and reorder: a few units in the last place of what
        # is added. A master's rounding may fall on the neighbour.
        scale = np.maximum(np.abs(wanted), np.abs(ARRAYS[f"{number}.w0"])).astype("f8")
        close = 2e-3 if half else 1e-5
        if case["name"] == "lamb":
            close = 1e-4  # theirs takes 1-beta2^t in f32, from numbers near 1
        assert np.all(np.abs(stored.astype("f8") - wanted) <= close * (scale + 1e-2))
        if half:
            assert np.mean(stored == wanted) > 0.95
    if not half:
        for i in range(case["states"]):
            np.testing.assert_allclose(
                state[STATES[case["name"]][i]], ARRAYS[f"{number}.state.{i}"], rtol=2e-5, atol=1e-6
            )


@pytest.mark.parametrize("schedule", INDEX["schedules"],
                         ids=lambda s: f"{s['name']}-{len(s['words'])}")
def test_rates_are_those_of_mxnet(schedule: dict[str, Any]) -> None:
    ours = getattr(optim.lr, schedule["name"])(**schedule["words"])
    got = [optim.lr.rate(ours, t) for t in range(1, 31)]
    np.testing.assert_allclose(got, schedule["rates"], rtol=1e-12)
