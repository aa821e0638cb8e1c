"""The learning rate that a residual is meant for: which one it is, and what a change does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncps.errors import ConfigError
from asyncps.roles.rates import Rates, check_rate
from asyncps.tensor.feedback import KeyCoder, Rate


def coder(*residual: float) -> KeyCoder:
    made = KeyCoder(len(residual))
    made.residual = np.array(residual, "f4")
    return made


def test_rate_is_that_of_the_servers_optimizer_with_the_factor_of_the_key() -> None:
    rates = Rates()
    assert rates.of("w") is None
    rates.use("sgd", {"learning_rate": 0.5, "lr_mult": [["w", 0.5], [5, 4.0]]})
    assert rates.of("w") == Rate("sgd", 0.25)
    assert rates.of(5) == Rate("sgd", 2.0)
    assert rates.of("5") == Rate("sgd", 0.5)
    rates.use("test", {"rescale_grad": 1.0})
    assert rates.of("w") is None


def test_rate_of_who_updates_at_the_workers() -> None:
    rates = Rates()
    rates.use_own(0.5)
    assert rates.of("w") == Rate(None, 0.5)
    rates.use("sgd", {"learning_rate": 0.125})
    assert rates.of("w") == Rate("sgd", 0.125)


@pytest.mark.parametrize("rate", [0.0, -1.0, {"schedule": "constant"}, None, True])
def test_what_is_no_number_above_0_is_no_rate(rate: Any) -> None:
    rates = Rates()
    rates.use("sgd", {"learning_rate": rate})
    assert rates.of("w") is None


def test_schedules_are_refused() -> None:
    check_rate(0.1)
    check_rate(None)
    with pytest.raises(ConfigError, match="got schedule cosine"):
        check_rate({"schedule": "cosine"})


def test_a_residual_is_worth_the_same_at_every_rate() -> None:
    one = coder(1.0, -3.0)
    for rate, expected in ((0.5, 1.0), (0.25, 2.0), (0.25, 2.0), (1.0, 0.5)):
        one.follow(Rate("sgd", rate))
        assert one.residual is not None
        assert one.residual.tolist() == [expected, -3 * expected]
        assert one.count_nonfinite(np.zeros(2, "f4")) == (0, -1)


@pytest.mark.parametrize("between", [None, Rate("adam", 0.001), Rate(None, 1.0)])
def test_rates_that_cannot_be_compared_change_nothing(between: Rate | None) -> None:
    one = coder(1.0)
    for rate in (Rate("sgd", 0.5), between, Rate("sgd", 0.25)):
        one.follow(rate)
    assert one.residual is not None
    assert one.residual.tolist() == [1.0]


def test_a_residual_stays_finite_and_the_next_push_is_taken() -> None:
    one = coder(1.0, -1e30)
    one.follow(Rate("sgd", 1e20))
    one.follow(Rate("sgd", 1e-20))
    assert one.residual is not None
    assert np.isfinite(one.residual).all()
    assert one.count_nonfinite(np.full(2, 1e38, "f4")) == (0, -1)
    one.follow(Rate("sgd", 1e300))
    assert one.residual.tolist() == [0.0, 0.0]
