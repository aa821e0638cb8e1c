"""The CNN learns as well from compressed gradients: real images, against the same run without."""

from __future__ import annotations

import mnist_cnn
import numpy as np
import pytest
from datasets import DatasetError, load_mnist_5000

from tests.support.cluster import on_cluster

EPOCHS, SEEDS = 6, (0, 1)
LAST = 3  # evaluations whose mean counts: one alone moves by a point from epoch to epoch
MOST_LOST = 0.01


@pytest.fixture(scope="module")
def images():
    try:
        return load_mnist_5000()
    except DatasetError as error:
        pytest.skip(str(error))


def learned(images, *words: str) -> float:
    """Accuracy of one worker and two servers, the mean over seeds and last epochs."""
    found = []
    for seed in SEEDS:
        args = mnist_cnn._parse(
            ["--epochs", str(EPOCHS), "--lr", "0.02", "--seed", str(seed), "--no-progress", *words])
        (history,) = on_cluster(
            lambda store, args=args: mnist_cnn.train(store, images, args, np), workers=1, servers=2)
        found += history.evaluation_accuracy[-LAST:]
    return float(np.mean(found))


@pytest.fixture(scope="module")
def uncompressed(images):
    return learned(images)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["f16", "onebit", "topk,ratio=0.01"])
def test_a_codec_loses_no_more_than_a_point(images, uncompressed, codec):
    assert learned(images, "--compression", codec) >= uncompressed - MOST_LOST
