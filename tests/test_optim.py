"""Optimizers as users name them: plain data, checked."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, ClassVar

import msgspec
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
        "clip_gradient": -1.0, "nesterov": False, "lazy_update": True, "lr_mult": [],
        "wd_mult": [],
    }  # fmt: skip
    adam = optim.Adam().hyper
    assert (adam["learning_rate"], adam["beta1"], adam["beta2"], adam["epsilon"]) == (
        0.001, 0.9, 0.999, 1e-8)  # fmt: skip


def test_hyper_parameters_without_a_name_are_refused() -> None:
    with pytest.raises(OptimizerError, match=(
            r"of SGD are given by name \(expected SGD\(learning_rate=\.\.\.\), got 0\.1\)")):
        optim.SGD(0.1)
    with pytest.raises(OptimizerError, match=r"Test\(rescale_grad=\.\.\.\)"):
        optim.Test(2)


@pytest.mark.parametrize("given", [None, 3, optim.SGD, {"name": "sgd"}], ids=repr)
def test_what_is_no_optimizer_is_told_what_it_is(given: Any) -> None:
    with pytest.raises(OptimizerError, match=r"a name or an object.*adam.*got ") as error:
        optim.resolve(given, {})
    assert error.value.got == repr(given)


def test_factors_are_shown_as_they_are_given() -> None:
    made = optim.SGD(learning_rate=0.5, lr_mult={"b": 2, "a": 0.5})
    assert optim.as_given(made.hyper)["lr_mult"] == {"a": 0.5, "b": 2.0}
    assert "lr_mult={'a': 0.5, 'b': 2.0}" in repr(made)
    assert "wd_mult" not in repr(made)


def test_name_is_found_in_any_case_and_an_unknown_one_lists_the_known() -> None:
    assert optim.by_name("SGD") is optim.SGD
    assert optim.by_name("adam") is optim.Adam
    for name in ("sdg", "", None, 5):
        with pytest.raises(OptimizerError, match=r"adagrad, adam, adamw.*rmsprop, sgd.*test"):
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
    ({"lr": {"base_lr": 1}}, "unknown schedule.*constant, step, multistep"),
    ({"wd": optim.lr.constant(0.1)}, "wd must be a number"),
    ({"lr_mult": 3}, "lr_mult must be a dict from key to factor"),
    ({"lr_mult": {"w": "fast"}}, "lr_mult of key 'w' must be a number"),
    ({"wd_mult": {1.5: 1.0}}, "int or str, got 1.5"),
    ({"wd_mult": {True: 1.0}}, "int or str, got True"),
    ({"wd_mult": [["w", 1.0], ["w", 2.0]]}, "each key once"),
    ({"wd_mult": ["www"]}, "wd_mult must be a dict"),
    ({"lr_mult": {"\udcff": 1.0}}, r"int or str, got '\\udcff'"),
    ({"lr_mult": {2**70: 1.0}}, f"int or str, got {2**70}"),
    ({"wd_mult": {10**5000: 1.0}}, "got a int that cannot be shown"),
    ({"lr_mult": {1: 10**5000}}, "must be a number.*that cannot be shown"),
    ({"lr": 10**5000}, "must be a number.*that cannot be shown"),
    ({"lr": {"schedule": "step", "step": 10**5000}}, "step is out of range.*cannot be shown"),
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
    assert all(type(value) in (float, bool, list) for value in hyper.values())


def test_object_and_hyper_parameters_together_are_refused() -> None:
    sgd = optim.SGD(lr=1)
    assert optim.resolve(sgd, {}) is sgd
    with pytest.raises(OptimizerError, match="one of the two"):
        optim.resolve(sgd, {"lr": 2})


def test_repr_tells_the_words() -> None:
    assert repr(optim.Test(rescale_grad=2)) == "Test(rescale_grad=2.0)"


MXNET_DEFAULTS = {
    "AdamW": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "eta": 1.0},
    "AdaGrad": {"learning_rate": 0.01, "eps": 1e-7},
    "RMSProp": {"learning_rate": 0.001, "gamma1": 0.9, "gamma2": 0.9, "epsilon": 1e-8,
                "centered": False, "clip_weights": -1.0},
    "FTRL": {"learning_rate": 0.1, "lamda1": 0.01, "beta": 1.0},
    "LAMB": {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6,
             "lower_bound": -1.0, "upper_bound": -1.0, "bias_correction": True},
}  # fmt: skip


@pytest.mark.parametrize("name", MXNET_DEFAULTS)
def test_defaults_of_the_others_are_those_of_mxnet(name: str) -> None:
    rest = {"wd": 0.0, "rescale_grad": 1.0, "clip_gradient": -1.0, "lr_mult": [], "wd_mult": []}
    hyper = getattr(optim, name)().hyper
    assert hyper.pop("lazy_update", True) is True  # of those that MXNet can do lazily, there too
    hyper.pop("correct_bias", None)  # not MXNet's: its operator leaves that to the caller
    assert hyper == {**MXNET_DEFAULTS[name], **rest}


def test_names_that_mxnet_spells_in_two_ways_are_taken_in_both() -> None:
    assert optim.AdaGrad(epsilon=0.5).hyper["eps"] == 0.5
    assert optim.Adam(eps=0.5).hyper["epsilon"] == 0.5
    assert optim.FTRL(lambda1=0.5).hyper["lamda1"] == 0.5
    with pytest.raises(OptimizerError, match="both spellings"):
        optim.FTRL(lambda1=0.5, lamda1=0.5)
    with pytest.raises(OptimizerError, match="lamda1 is out of range"):
        optim.FTRL(lamda1=-1)


def test_factors_by_key_are_plain_data_in_one_order() -> None:
    hyper = optim.SGD(lr_mult={"b": 2, 5: 0.5, "5": 3, "a": 1, -1: 4}).hyper
    assert hyper["lr_mult"] == [[-1, 4.0], [5, 0.5], ["5", 3.0], ["a", 1.0], ["b", 2.0]]
    assert optim.SGD(**hyper).hyper == hyper
    with pytest.raises(OptimizerError, match="test has no hyper-parameter 'lr_mult'"):
        optim.Test(lr_mult={})


def test_factors_of_two_optimizers_are_not_one_list() -> None:
    one, two = optim.SGD(), optim.SGD()
    one.hyper["lr_mult"].append(["w", 2.0])
    assert two.hyper["lr_mult"] == []


def test_all_hyper_parameters_travel() -> None:
    for kind in (kind for kind in optim.REGISTRY.values() if kind.builtin):
        words = {"learning_rate": optim.lr.multistep([3, 5]), "lr_mult": {"w": 2, 1: 3}}
        hyper = kind(**(words if "learning_rate" in kind.defaults else {})).hyper
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(hyper)) == hyper
        assert optim.checked(kind, hyper) == hyper


@pytest.mark.usefixtures("registered")
def test_subclass_is_registered_by_its_name_with_what_all_have() -> None:
    class Mine(optim.Optimizer):
        defaults: ClassVar = {"power": 2.0, "wd": 0.5}

    assert optim.by_name("Mine") is Mine
    assert Mine(lr=0.5, power=3).hyper == {
        "learning_rate": 0.5, "wd": 0.5, "rescale_grad": 1.0, "clip_gradient": -1.0, "power": 3.0,
        "lr_mult": [], "wd_mult": [],
    }  # fmt: skip
    with pytest.raises(OptimizerError, match="mine has no hyper-parameter 'pover'"):
        Mine(pover=3)


@pytest.mark.usefixtures("registered")
def test_subclass_may_not_take_the_name_of_one_that_is_there() -> None:
    with pytest.raises(OptimizerError, match="an optimizer of that name exists"):
        type("SGD", (optim.Optimizer,), {})
    assert optim.by_name("sgd") is optim.SGD
    assert type("Mine", (optim.SGD,), {}).name == "mine"  # type: ignore[attr-defined]


def test_module_that_cannot_be_imported_is_told_when_its_optimizer_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_optimizers.py").write_text("raise SystemExit('no disk')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    optim.import_modules("broken_optimizers, json")
    try:
        with pytest.raises(OptimizerError, match=r"module 'broken_optimizers' could not.*no disk"):
            optim.by_name("mine")
    finally:
        (tmp_path / "broken_optimizers.py").write_text("")
        importlib.invalidate_caches()
        optim.import_modules("broken_optimizers")
    with pytest.raises(OptimizerError, match=r"unknown optimizer \("):
        optim.by_name("mine")


@pytest.mark.parametrize("name", ["\udcff", "", "n" * 1025, 5], ids=ascii)
def test_a_name_that_cannot_travel_is_refused_where_it_is_made(name: Any) -> None:
    before = dict(optim.REGISTRY)
    for words in ({"name": name}, {"defaults": {name: 1.0}}):
        with pytest.raises(OptimizerError, match="text of 1 to 1024 characters"):
            type("Nameless", (optim.Optimizer,), words)
    assert before == optim.REGISTRY
