"""Rules of compression that name no key of the store: an error, or a warning at the first push."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from asyncps.errors import ConfigError
from asyncps.kvstore import KVStore
from asyncps.roles.compressing import Compression
from asyncps.tensor.codecs import checked
from tests.support.cluster import on_cluster

SIZE = 20_000
GRADIENT = np.ones(SIZE, "f4")
KEYS = ["layer.0.w", "layer.1.w", 5]


def warnings_of(caplog: pytest.LogCaptureFixture, *rules: Any, workers: int = 1) -> list[str]:
    """Set rules for these keys, push twice, and return what the log warns of."""

    def work(store: KVStore) -> None:
        for keys in rules:
            store.set_gradient_compression({"type": "topk"}, keys=keys)
        store.init(KEYS, [np.zeros(SIZE, "f4") for _ in KEYS])
        if store.rank == 0:  # it warns, and has pushed nothing yet
            assert not warned()
        for _ in range(2):
            store.push(KEYS, [GRADIENT] * 3)
            store.pushpull(KEYS[0], GRADIENT, out=GRADIENT.copy())

    def warned() -> list[str]:
        return [each.getMessage() for each in caplog.records
                if each.levelno == logging.WARNING and "compression" in each.getMessage()]

    with caplog.at_level(logging.WARNING):
        on_cluster(work, workers=workers)
    return warned()


@pytest.mark.parametrize("keys", [[], ()])
def test_an_empty_list_is_refused(keys: Any) -> None:
    def work(store: KVStore) -> None:
        with pytest.raises(ConfigError, match=r"compression of no keys.*expected a pattern, a key"):
            store.set_gradient_compression({"type": "topk"}, keys=keys)
        assert store.compression_report() == {}

    on_cluster(work, workers=1)


@pytest.mark.parametrize(("keys", "said"), [
    ("layers.*", "'layers.*'"),
    ("5", "'5'"),
    (6, "6"),
    (["layer.*", 5], "'layer.*' (in a list each is a key, and no pattern)"),
    (["layer.0.w", "layer.2.w"], "'layer.2.w'"),
])  # fmt: skip
def test_words_for_nobody_are_told_once_with_some_keys(
    keys: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of(caplog, keys, workers=2) == [
        f"compression topk is set for keys that this store does not have: {said}; it has 3 keys: "
        "'layer.0.w', 'layer.1.w', 5"]


def test_words_for_somebody_or_all_or_taken_back_are_not_told(
    caplog: pytest.LogCaptureFixture
) -> None:
    assert not warnings_of(caplog, None, "layer.*", ["layer.0.w", 5], 5)


class _Info:
    """A key; while it is looked at the loop makes another."""

    def __init__(self, told: str, there: dict[str, _Info]) -> None:
        self._told = told
        self._there = there

    @property
    def told(self) -> str:
        self._there[f"more {len(self._there)}"] = self
        return self._told


def test_keys_may_be_made_while_they_are_looked_through(caplog: pytest.LogCaptureFixture) -> None:
    there: dict[str, _Info] = {}
    there.update({key: _Info(key, there) for key in ("a", "b")})
    compression = Compression(0, 1, "job", 0)
    compression.add("c*", checked({"type": "f16"}))
    compression.look(there)  # type: ignore[arg-type]
    assert "set for keys that this store does not have: 'c*'" in caplog.text
