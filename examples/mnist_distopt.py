"""Trains SINGA's CNN without servers: every worker has an optimizer, and DistOpt between them.

Alone:           python examples/mnist_distopt.py
Two processes:   python examples/mnist_distopt.py -w 2
By a launcher:   python -m asyncps launch -n 2 -s 0 -- python examples/mnist_distopt.py

The walk of one batch: forward, and `opt.backward(pairs, dist_option)`, where `pairs` yields each
layer's gradients as the backward pass makes them; they travel while it goes on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# As in mnist_cnn.py: workers on one machine share its cores, and BLAS reads this when it is loaded.
os.environ.setdefault(
    "OMP_NUM_THREADS",
    str((os.cpu_count() or 1) // int(os.environ.get("ASYNCPS_NUM_WORKERS") or 1) or 1),
)

import numpy as np
from cnn import singa_cnn, softmax_cross_entropy
from datasets import Dataset, DatasetError, load
from report import History, Report

import asyncps
from asyncps.data import SplitSampler
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module


def train(opt: asyncps.DistOpt, data: Dataset, args: argparse.Namespace, xp: ModuleType) -> History:
    """One worker's job; all workers run it, and make the same number of batches."""
    part = SplitSampler(len(data.train_labels), opt.world_size, opt.global_rank)
    size, batches = args.batch_size, len(part) // args.batch_size
    if batches == 0:
        raise ConfigError(
            f"a worker's part has {len(part)} images, which is less than a batch of {size}:"
            " fewer workers or a smaller --batch-size, please"
        )
    random.seed(f"{args.seed}/{opt.global_rank}")  # SplitSampler's order: another on every rank
    if xp is not np:  # one GPU a worker, as far as there are enough
        xp.cuda.Device(opt.local_rank % xp.cuda.runtime.getDeviceCount()).use()
    images, labels = xp.asarray(data.train_images), xp.asarray(data.train_labels)
    test_images, test_labels = xp.asarray(data.test_images), xp.asarray(data.test_labels)

    network = singa_cnn(xp, args.seed)  # the same seed: all begin with the same weights
    first = opt.global_rank == 0
    if first:
        print(
            f"{data.name}: {len(labels)} images to train on, {len(test_labels)} to evaluate;"
            f" {network.count_parameters()} parameters; {opt.world_size} workers,"
            f" {batches} batches of {size} each an epoch, {args.dist_option} on {xp.__name__}",
            flush=True,
        )
    with Report(opt.world_size, batches, shown=first, bar=not args.no_progress) as report:
        for epoch in range(args.epochs):
            report.start_epoch(epoch)
            order = xp.asarray(list(part))
            for batch in range(batches):
                rows = order[batch * size : (batch + 1) * size]
                logits = network.forward(images[rows])
                loss, gradient = softmax_cross_entropy(xp, logits, labels[rows])
                gradient /= size  # of the mean loss; DistOpt makes the mean over workers
                opt.backward(network.gradients(gradient), args.dist_option, args.spars)
                correct = (logits.argmax(axis=1) == labels[rows]).sum()
                report.add_batch(float(loss), int(correct), size)
            report.end_training()
            if first:  # the others go on meanwhile; their next batch waits for rank 0
                right = network.count_correct(test_images, test_labels)
                report.end_evaluation(right / len(test_labels))
    return report.history


def work(
    args: argparse.Namespace, ticket: asyncps.JobTicket | None = None, rank: int | None = None
) -> int:
    """One worker, of the group of a ticket or of the environment; returns its exit code."""
    try:
        xp = array_module(args.device)
        data = load(args.dataset, args.data)
        sgd = asyncps.optim.SGD(lr=args.lr, momentum=args.momentum, weight_decay=args.wd)
        world_size = None if ticket is None else args.workers
        with asyncps.DistOpt(
            sgd, nccl_id=ticket, local_rank=rank, world_size=world_size
        ) as opt:
            history, rank = train(opt, data, args, xp), opt.global_rank
    except (ConfigError, DatasetError) as error:
        print(f"mnist_distopt.py: {error}", file=sys.stderr)
        return 2
    if rank != 0:
        return 0
    accuracy = history.evaluation_accuracy[-1]
    print(f"Final evaluation accuracy = {accuracy:.4f}, {history.images_per_s:.0f} images/s")
    if args.target_accuracy is not None and accuracy < args.target_accuracy:
        print(f"Evaluation accuracy {accuracy:.4f} is below the target {args.target_accuracy}")
        return 1
    return 0


def run_child(args: argparse.Namespace, ticket: asyncps.JobTicket, rank: int) -> None:
    """What a process of `-w` does."""
    sys.exit(work(args, ticket, rank))


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    if args.workers is None:
        return work(args)
    if os.environ["OMP_NUM_THREADS"] == str(os.cpu_count()):  # children share these
        os.environ["OMP_NUM_THREADS"] = str((os.cpu_count() or 1) // args.workers or 1)
    context = multiprocessing.get_context("spawn")
    with asyncps.JobTicket() as ticket:
        children = [
            context.Process(target=run_child, args=(args, ticket, rank))
            for rank in range(args.workers)
        ]
        for child in children:
            child.start()
        for child in children:
            child.join()
    return max((child.exitcode or 0) % 256 for child in children)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="SINGA's CNN on MNIST or Fashion-MNIST, trained by DistOpt.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add: Any = parser.add_argument
    add("-w", "--workers", type=_count, metavar="N", help="start N processes on this machine")
    add("--dist-option", choices=asyncps.DistOpt.OPTIONS, default="plain",
        help="what travels; fp32 is plain and fp16 is half")
    add("--spars", type=float, default=0.05,
        help="sparseTopK: the part that is sent; sparseThreshold: the least magnitude")
    add("--dataset", choices=("mnist", "fashion"), default="mnist", help="mnist: 5,000 images")
    add("--data", type=Path, metavar="DIR", help="idx files to use in place of --dataset")
    add("--epochs", type=_count, default=10, help="passes over the training images")
    add("--batch-size", type=_count, default=64, help="images a worker and step")
    add("--lr", type=float, default=0.005, help="learning rate")
    add("--momentum", type=float, default=0.9, help="momentum")
    add("--wd", type=float, default=1e-5, help="weight decay")
    add("--seed", type=int, default=0, help="of initial weights and order")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="what computes")
    add("--target-accuracy", type=float, metavar="A", help="exit 1 when the result is below it")
    add("--no-progress", action="store_true", help="no bar, even on a terminal")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
