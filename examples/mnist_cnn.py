"""Trains SINGA's CNN on real images, with the weights on parameter servers.

Alone:                       python examples/mnist_cnn.py
On 2 servers and 2 workers:  python -m asyncps launch -n 2 -s 2 -- python examples/mnist_cnn.py

The walk of one batch: forward, backward, and `trainer.step`, which pushes the gradients, has the
servers update the weights, and returns when the new ones are in their place.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Workers on one machine share its cores: each gets its part of them as BLAS threads. NumPy's BLAS
# reads this when it is imported, so it stands here.
os.environ.setdefault(
    "OMP_NUM_THREADS",
    str(
        (os.cpu_count() or 1)
        // int(os.environ.get("ASYNCPS_NUM_WORKERS") or os.environ.get("DMLC_NUM_WORKER") or 1)
        or 1
    ),
)

import numpy as np
from cnn import singa_cnn, softmax_cross_entropy
from datasets import Dataset, DatasetError, load
from report import History, Report, draw

import asyncps
from asyncps.data import SplitSampler
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module


def train(store: Any, data: Dataset, args: argparse.Namespace, xp: ModuleType) -> History:
    """One worker's job; all workers run it, and make the same number of batches."""
    part = SplitSampler(len(data.train_labels), store.num_workers, store.rank)
    size, batches = args.batch_size, len(part) // args.batch_size
    if batches == 0:
        raise ConfigError(
            f"a worker's part has {len(part)} images, which is less than a batch of {size}:"
            " fewer workers or a smaller --batch-size, please"
        )
    random.seed(f"{args.seed}/{store.rank}")  # SplitSampler's order: another on every rank
    if xp is not np:  # one GPU a worker, as far as there are enough
        xp.cuda.Device(store.local_rank % xp.cuda.runtime.getDeviceCount()).use()
    images, labels = xp.asarray(data.train_images), xp.asarray(data.train_labels)
    test_images, test_labels = xp.asarray(data.test_images), xp.asarray(data.test_labels)

    network = singa_cnn(xp, args.seed)
    # Everybody begins with rank 0's weights; the updates happen on the servers.
    trainer = asyncps.Trainer(
        network.parameters(),
        "sgd",
        {"learning_rate": args.lr, "momentum": args.momentum, "wd": args.wd},
        kvstore=store,
        compression_params=args.compression,
    )

    first = store.rank == 0
    if first:
        print(
            f"{data.name}: {len(labels)} images to train on, {len(test_labels)} to evaluate;"
            f" {network.count_parameters()} parameters; {store.num_workers} workers,"
            f" {batches} batches of {size} each an epoch, on {xp.__name__}",
            flush=True,
        )
    with Report(store.num_workers, batches, shown=first, bar=not args.no_progress) as report:
        for epoch in range(args.epochs):
            report.start_epoch(epoch)
            order = xp.asarray(list(part))
            for batch in range(batches):
                rows = order[batch * size : (batch + 1) * size]
                logits = network.forward(images[rows])
                loss, gradient = softmax_cross_entropy(xp, logits, labels[rows])
                network.backward(gradient)
                trainer.step(size * store.num_workers)  # the mean over all workers' images
                correct = (logits.argmax(axis=1) == labels[rows]).sum()
                report.add_batch(float(loss), int(correct), size)
            report.end_training()
            if first:  # the others go on meanwhile; their next round waits for rank 0
                right = network.count_correct(test_images, test_labels)
                report.end_evaluation(right / len(test_labels))
    return report.history


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    try:
        if args.figure and importlib.util.find_spec("matplotlib") is None:
            raise ConfigError("--figure needs matplotlib: pip install 'asyncps[examples]'")
        xp = array_module(args.device)
        data = load(args.dataset, args.data)
        with asyncps.create(args.kv_store) as store:
            history = train(store, data, args, xp)
            rank = store.rank
    except (ConfigError, DatasetError) as error:
        print(f"mnist_cnn.py: {error}", file=sys.stderr)
        return 2
    if rank != 0:
        return 0
    accuracy = history.evaluation_accuracy[-1]
    print(f"Final evaluation accuracy = {accuracy:.4f}, {history.images_per_s:.0f} images/s")
    if args.figure:
        draw(history, args.figure)
        print(f"Loss and accuracy are drawn in {args.figure}")
    if args.target_accuracy is not None and accuracy < args.target_accuracy:
        print(f"Evaluation accuracy {accuracy:.4f} is below the target {args.target_accuracy}")
        return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="SINGA's CNN on MNIST or Fashion-MNIST, trained through asyncps.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--dataset", choices=("mnist", "fashion"), default="mnist", help="mnist: 5,000 images")
    add("--data", type=Path, metavar="DIR", help="idx files to use in place of --dataset")
    add("--epochs", type=_count, default=20, help="passes over the training images")
    add("--batch-size", type=_count, default=64, help="images a worker and step")
    add("--lr", type=float, default=0.05, help="learning rate")
    add("--momentum", type=float, default=0.9, help="momentum of the servers' SGD")
    add("--wd", type=float, default=1e-5, help="weight decay")
    add("--kv-store", default="dist_sync", help="store type")
    add("--compression", type=_codec, metavar="TYPE[,OPTION=VALUE...]",
        help="of gradients, such as 2bit,threshold=0.25 (see docs/compression.md)")
    add("--seed", type=int, default=0, help="of initial weights and order")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="what computes")
    add("--figure", type=Path, metavar="PATH", help="draw loss and accuracy (PNG)")
    add("--target-accuracy", type=float, metavar="A", help="exit 1 when the result is below it")
    add("--no-progress", action="store_true", help="no bar, even on a terminal")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


def _codec(text: str) -> dict[str, Any]:
    """`topk,ratio=0.01` as {"type": "topk", "ratio": 0.01}; the store checks what it says."""
    kind, *options = text.split(",")
    found: dict[str, Any] = {"type": kind}
    for option in options:
        name, equals, value = option.partition("=")
        if not (name and equals and value):
            raise argparse.ArgumentTypeError(f"an option is NAME=VALUE, got {option!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:  # a word, such as values=f16
            found[name] = value
    return found


if __name__ == "__main__":
    sys.exit(main())
