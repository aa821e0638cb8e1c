"""ACCEPTANCE section 2 by its rules, for any number of workers up to eight."""

from __future__ import annotations

import pytest

from tests.distopt.rules import RULES
from tests.support.threadgroup import run


@pytest.mark.parametrize("world", range(1, 9))
@pytest.mark.parametrize("rule", RULES)
def test_rules_of_all_numbers_of_workers(rule: str, world: int) -> None:
    run(world, RULES[rule])
