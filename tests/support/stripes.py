"""Images that are easy to learn, for the examples."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from datasets import Dataset


def stripes(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Class c has a bright row at 2c + 4, and noise."""
    labels = np.arange(count) % 10
    images = rng.random((count, 28, 28, 1)).astype("f4") * 0.2
    images[np.arange(count), 2 * labels + 4] = 1
    return images, labels


def dataset(tests: int = 20) -> Dataset:
    """80 images to train on, and some to evaluate."""
    rng = np.random.default_rng(0)
    return Dataset("stripes", *stripes(rng, 80), *stripes(rng, tests))


def write_idx(directory: Path, data: Dataset) -> None:
    """The data as the four idx files."""
    for part, images, labels in (
        ("train", data.train_images, data.train_labels),
        ("t10k", data.test_images, data.test_labels),
    ):
        pixels = (images[..., 0] * 255).astype("u1")
        head = struct.pack(">HBB3I", 0, 8, 3, *pixels.shape)
        (directory / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">HBBI", 0, 8, 1, len(labels))
        (directory / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.astype("u1").tobytes())
