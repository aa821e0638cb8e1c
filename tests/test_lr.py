"""Schedules of the learning rate: plain data, checked.

Their rates are compared in tests/tensor/test_golden.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncps.errors import OptimizerError
from asyncps.optim import lr


def test_schedule_is_plain_data_with_all_its_words() -> None:
    made = lr.step(3, 0.5, base_lr=0.8, warmup_steps=2)
    assert made == {
        "schedule": "step", "base_lr": 0.8, "warmup_steps": 2, "warmup_begin_lr": 0.0,
        "warmup_mode": "linear", "step": 3, "factor": 0.5, "stop_factor_lr": 1e-8,
    }  # fmt: skip
    assert json.loads(json.dumps(made)) == made
    assert lr.checked(made) == made
    assert lr.checked({"schedule": "constant"}) == lr.constant()


def test_warm_up_then_the_rate() -> None:
    linear = lr.constant(0.5, warmup_steps=4, warmup_begin_lr=0.1)
    assert [lr.rate(linear, t) for t in range(1, 6)] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.5])
    flat = lr.constant(0.5, warmup_steps=3, warmup_begin_lr=0.1, warmup_mode="constant")
    assert [lr.rate(flat, t) for t in range(1, 5)] == [0.1, 0.1, 0.5, 0.5]


@pytest.mark.parametrize("make", [
    lambda: lr.polynomial(10, 0.5, final_lr=0.1), lambda: lr.cosine(10, 0.5, final_lr=0.1),
])  # fmt: skip
def test_decay_ends_at_its_final_rate_and_stays_there(make: Any) -> None:
    # MXNet's object remembers its last rate instead; asked for a late update first it says base_lr.
    assert lr.rate(make(), 10) == pytest.approx(0.1)
    assert lr.rate(make(), 10**12) == pytest.approx(0.1)


@pytest.mark.parametrize(("schedule", "words"), [
    ({}, "unknown schedule.*constant, step, multistep, polynomial, cosine"),
    ({"schedule": ["step"]}, "unknown schedule"),
    ({"schedule": "step"}, "schedule step needs step"),
    ({"schedule": "cosine", "step": 3}, "schedule cosine has no 'step'.*max_update"),
    ({"schedule": "step", "step": 0}, "step is out of range"),
    ({"schedule": "step", "step": 1.5}, "step must be a whole number"),
    ({"schedule": "step", "step": True}, "step must be a whole number"),
    ({"schedule": "step", "step": 3, "factor": 1.5}, "factor is out of range"),
    ({"schedule": "step", "step": 3, "factor": 0}, "factor is out of range"),
    ({"schedule": "multistep", "step": []}, "must be a list"),
    ({"schedule": "multistep", "step": "12"}, "must be a list"),
    ({"schedule": "multistep", "step": [3, 3]}, "must ascend"),
    ({"schedule": "multistep", "step": list(range(1, 10_003))}, "too many steps"),
    ({"schedule": "cosine", "max_update": 5, "warmup_steps": 5}, "after the warm-up"),
    ({"schedule": "polynomial", "max_update": 5, "pwr": -1}, "pwr is out of range"),
    ({"schedule": "constant", "base_lr": float("nan")}, "base_lr is out of range"),
    ({"schedule": "constant", "base_lr": "x"}, "base_lr must be a number"),
    ({"schedule": "constant", "warmup_begin_lr": 1.0}, "above base_lr"),
    ({"schedule": "constant", "warmup_mode": "log"}, "linear, constant"),
    ({"schedule": "constant", "warmup_steps": -1}, "warmup_steps is out of range"),
])  # fmt: skip
def test_schedule_that_cannot_be_is_refused(schedule: dict[str, Any], words: str) -> None:
    with pytest.raises(OptimizerError, match=words):
        lr.checked(schedule)


@given(
    st.sampled_from(["constant", "step", "multistep", "polynomial", "cosine"]),
    st.integers(0, 20), st.sampled_from(["linear", "constant"]), st.integers(1, 100),
)
def test_rate_never_leaves_the_range_of_its_words(
    name: str, warmup: int, mode: str, t: int
) -> None:
    special = {
        "constant": {}, "step": {"step": 7, "factor": 0.5, "stop_factor_lr": 0.05},
        "multistep": {"step": [3, 30], "factor": 0.5}, "polynomial": {"max_update": 50},
        "cosine": {"max_update": 50, "final_lr": 0.1},
    }[name]  # fmt: skip
    made = lr.checked({"schedule": name, "base_lr": 0.4, "warmup_steps": warmup,
                       "warmup_begin_lr": 0.02, "warmup_mode": mode, **special})
    assert -1e-12 <= lr.rate(made, t) <= 0.4 + 1e-12
