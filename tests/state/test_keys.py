"""Which key was meant."""

from __future__ import annotations

import pytest

from asyncps.protocol.messages import Key
from asyncps.state.keys import unknown_key

FIRST = "no such key: initialise it on every worker first"


@pytest.mark.parametrize(("key", "known", "hint"), [
    (5, ["5", 6], "; there is '5', of type str"),
    ("5", [5, "a"], "; there is 5, of type int"),
    ("wieght", ["bias", "weight"], "; there is 'weight'"),
    ("layer1.weight", ["layer1.weights", 7], "; there is 'layer1.weights'"),
    ("x", ["weight"], ""), (5, [6], ""), ("w", [], ""), ("w" * 1000, ["w" * 999], ""),
    ("9" * 1000, [9], ""), ("\u0664", [4], "; there is 4, of type int"),
])
def test_key_of_another_type_or_nearly_that_name_is_told(
    key: Key, known: list[Key], hint: str
) -> None:
    error = unknown_key(key, known)
    assert error.message == FIRST + hint
    assert error.key == key
