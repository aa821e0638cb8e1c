"""What the MNIST examples have in common: a worker's part of the images, the epochs, the words."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from cnn import Network, softmax_cross_entropy
from datasets import Dataset
from report import History, Report

from asyncps.data import SplitSampler
from asyncps.errors import ConfigError


class Part:
    """One worker's part of a data set, in the memory that computes.

    Args:
        data: All of it.
        args: `batch_size`, `epochs`, `seed` and `no_progress` of the command line.
        xp: NumPy or CuPy.
        rank, workers, local_rank: Which worker, of how many, and which of its machine.

    Raises:
        ConfigError: It has less than a batch.
    """

    def __init__(
        self, data: Dataset, args: argparse.Namespace, xp: ModuleType,
        rank: int, workers: int, local_rank: int,
    ) -> None:
        self._sampler = SplitSampler(len(data.train_labels), workers, rank)
        self._data, self._args, self._xp = data, args, xp
        self._rank, self._workers = rank, workers
        size = args.batch_size
        self.batches = len(self._sampler) // size
        if self.batches == 0:
            raise ConfigError(
                f"a worker's part has {len(self._sampler)} images, which is less than a batch of"
                f" {size}: fewer workers or a smaller --batch-size, please"
            )
        random.seed(f"{args.seed}/{rank}")  # SplitSampler's order: another on every rank
        if xp is not np:  # one GPU a worker, as far as there are enough
            xp.cuda.Device(local_rank % xp.cuda.runtime.getDeviceCount()).use()
        self._images, self._labels = xp.asarray(data.train_images), xp.asarray(data.train_labels)

    def train(
        self, network: Network, step: Callable[[Any], None],
        evaluate: Callable[[], float | None], how: str = "",
    ) -> History:
        """Train; all workers do it, and make the same number of batches.

        Args:
            network: This worker's.
            step: Takes the gradient of a batch's sum of losses; the weights are the next ones then.
            evaluate: Returns the accuracy after an epoch, or None where another worker looks.
            how: What the first line says of it.
        """
        data, args, xp = self._data, self._args, self._xp
        first, size = self._rank == 0, args.batch_size
        if first:
            print(
                f"{data.name}: {len(data.train_labels)} images to train on,"
                f" {len(data.test_labels)} to evaluate; {network.count_parameters()} parameters;"
                f" {self._workers} workers, {self.batches} batches of {size} each an epoch,"
                f" {how}on {xp.__name__}",
                flush=True,
            )
        bar = not args.no_progress
        with Report(self._workers, self.batches, shown=first, bar=bar) as report:
            for epoch in range(args.epochs):
                report.start_epoch(epoch)
                order = xp.asarray(list(self._sampler))
                for batch in range(self.batches):
                    rows = order[batch * size : (batch + 1) * size]
                    logits = network.forward(self._images[rows])
                    loss, gradient = softmax_cross_entropy(xp, logits, self._labels[rows])
                    step(gradient)
                    correct = (logits.argmax(axis=1) == self._labels[rows]).sum()
                    report.add_batch(float(loss), int(correct), size)
                report.end_training()
                accuracy = evaluate()
                if accuracy is not None:
                    report.end_evaluation(accuracy)
        return report.history

    def evaluation_of(self, network: Network) -> Callable[[], float | None]:
        """Return what looks at all test images, on rank 0 alone.

        The others go on meanwhile; their next step waits for rank 0.
        """
        images = self._xp.asarray(self._data.test_images)
        labels = self._xp.asarray(self._data.test_labels)

        def evaluate() -> float | None:
            return None if self._rank else network.count_correct(images, labels) / len(labels)

        return evaluate


def say_final(history: History) -> float:
    """Print how it ended; returns the accuracy."""
    accuracy = history.evaluation_accuracy[-1]
    print(f"Final evaluation accuracy = {accuracy:.4f}, {history.images_per_s:.0f} images/s")
    return accuracy


def misses(accuracy: float, target: float | None) -> bool:
    """Tell, and say, whether an accuracy is below its target."""
    if target is None or accuracy >= target:
        return False
    print(f"Evaluation accuracy {accuracy:.4f} is below the target {target}")
    return True


def parser_of(description: str, *, epochs: int, lr: float, lr_help: str = "learning rate") -> Any:
    """Return a parser with the words that all examples have.

    Args:
        description: Of the example.
        epochs, lr: What they are if nothing is said.
        lr_help: What is said of the learning rate.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--dataset", choices=("mnist", "fashion"), default="mnist", help="mnist: 5,000 images")
    add("--data", type=Path, metavar="DIR", help="idx files to use in place of --dataset")
    add("--epochs", type=count, default=epochs, help="passes over the training images")
    add("--batch-size", type=count, default=64, help="images a worker and step")
    add("--lr", type=float, default=lr, help=lr_help)
    add("--seed", type=int, default=0, help="of initial weights and order")
    add("--no-progress", action="store_true", help="no bar, even on a terminal")
    return parser


def count(text: str) -> int:
    """A whole number from 1 on, for a parser."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number
