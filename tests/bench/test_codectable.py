"""The benchmark's models of codecs accept what the store sends, and nothing else."""

from __future__ import annotations

import math

import codectable
import numpy as np
import pytest

from asyncps.kvstore import KVStore
from asyncps.tensor.codecs import options
from tests.support.cluster import on_cluster

SHAPE = (177, 113)  # 20,001 values
NOW = [name for name, spec in codectable.CODECS.items() if spec and "pull" not in spec]


def first_answer(name: str, x: np.ndarray) -> np.ndarray:
    """What a server makes of the first push of x."""

    def work(store: KVStore) -> np.ndarray:
        store.init("w", np.zeros(x.shape, "f4"))
        store.set_gradient_compression(codectable.CODECS[name])
        store.set_optimizer("test", rescale_grad=1.0)
        return store.pushpull("w", x, out=np.zeros(x.shape, "f4"))

    return on_cluster(work, workers=1, servers=1)[0]


@pytest.mark.parametrize("name", NOW)
def test_a_model_takes_what_is_sent_and_finds_one_wrong_value(name: str) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    spec = codectable.CODECS[name]
    sent = first_answer(name, x).copy()
    assert codectable.check_sent(spec, x, sent) == ""

    sent.flat[np.abs(sent).argmax()] *= np.float32(1.5)

    assert codectable.check_sent(spec, x, sent) != ""


@pytest.mark.parametrize("name", NOW)
def test_a_model_of_trained_codecs_has_words_that_the_store_takes(name: str) -> None:
    options.checked(codectable.TRAINED.get(name, codectable.CODECS[name]))


def test_the_cnn_has_its_parameters() -> None:
    assert sum(map(math.prod, codectable.CNN.values())) == 431_080


@pytest.mark.parametrize(
    ("name", "shape", "dense"),
    [("f32", (1 << 20,), True), ("f16", (16_383,), True), ("f16", (16_384,), False),
     ("2bit", (10,), False), ("powersgd", (1 << 20,), True), ("powersgd", (2, 1 << 20), True),
     ("powersgd", (128, 127), True), ("powersgd", (128, 128), False)],
)  # fmt: skip
def test_small_keys_travel_as_they_are(
    name: str, shape: tuple[int, ...], dense: bool
) -> None:
    assert codectable.is_dense(codectable.CODECS[name], shape) is dense
