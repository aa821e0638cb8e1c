"""Optimizers as users name them: plain data, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps import optim
from asyncps.errors import OptimizerError


def test_both_spellings_are_one_thing() -> None:
    one = optim.SGD(lr=0.5, weight_decay=0.1)
    two = optim.SGD(learning_rate=0.5, wd=0.1)
    assert one.hyper == two.hyper
    assert one.hyper["learning_rate"] == 0.5


def test_defaults_are_those_of_mxnet() -> None:
    assert optim.SGD().hyper == {
        "learning_rate": 0.01, "momentum": 0.0, "wd": 0.0, "rescale_grad": 1.0,
        "clip_gradient": -1.0, "nesterov": False,
    }  # fmt: skip
    adam = optim.Adam().hyper
    assert (adam["learning_rate"], adam["beta1"], adam["beta2"], adam["epsilon"]) == (
        0.001, 0.9, 0.999, 1e-8)  # fmt: skip


def test_name_is_found_in_any_case_and_an_unknown_one_lists_the_known() -> None:
    assert optim.by_name("SGD") is optim.SGD
    assert optim.by_name("adam") is optim.Adam
    for name in ("sdg", "", None, 5):
        with pytest.raises(OptimizerError, match="adam, sgd, test"):
            optim.by_name(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(("hyper", "words"), [
    ({"lrr": 1}, "learning_rate, momentum.*got lrr"),
    ({"lr": 1, "learning_rate": 1}, "both spellings"),
    ({"lr": "fast"}, "learning_rate must be a number"),
    ({"lr": None}, "learning_rate must be a number"),
    ({"lr": float("nan")}, "finite"),
    ({"momentum": float("inf")}, "finite"),
    ({"nesterov": 1}, "true or false"),
    ({"lr": [1, 2]}, "must be a number"),
])  # fmt: skip
def test_hyper_parameter_that_cannot_be_is_refused(hyper: dict[str, Any], words: str) -> None:
    with pytest.raises(OptimizerError, match=words):
        optim.SGD(**hyper)
    with pytest.raises(ValueError, match=words):
        optim.resolve("sgd", hyper)


@pytest.mark.parametrize("name", ["beta1", "beta2"])
@pytest.mark.parametrize("value", [1.0, 1.5, -0.1])
def test_decay_outside_its_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(OptimizerError, match=rf"{name} is out of range.*got {value}"):
        optim.Adam(**{name: value})
    assert optim.Adam(**{name: 0.0}).hyper[name] == 0.0


def test_numbers_of_other_libraries_become_plain_floats() -> None:
    hyper = optim.SGD(lr=np.float32(0.5), momentum=np.array(0.25), clip_gradient=None).hyper
    assert hyper["learning_rate"] == 0.5
    assert hyper["momentum"] == 0.25
    assert hyper["clip_gradient"] == -1.0
    assert all(type(value) in (float, bool) for value in hyper.values())


def test_object_and_hyper_parameters_together_are_refused() -> None:
    sgd = optim.SGD(lr=1)
    assert optim.resolve(sgd, {}) is sgd
    with pytest.raises(OptimizerError, match="one of the two"):
        optim.resolve(sgd, {"lr": 2})


def test_repr_tells_the_words() -> None:
    assert repr(optim.Test(rescale_grad=2)) == "Test(rescale_grad=2.0)"
