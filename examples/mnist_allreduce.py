"""Trains SINGA's CNN as Horovod's MNIST example does: `asyncps.Communicator`, and nothing above it.

Alone:           python examples/mnist_allreduce.py
By a launcher:   python -m asyncps launch -n 2 -s 0 -- python examples/mnist_allreduce.py
By MPI:          mpirun -n 2 python examples/mnist_allreduce.py

The walk of one batch: forward; backward, where each gradient leaves as soon as it is made, by its
name; then wait for the means, and a step of SGD that every rank takes by itself.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# As in mnist_cnn.py: workers on one machine share its cores, and BLAS reads this when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", str((os.cpu_count() or 1) // int(
    os.environ.get("ASYNCPS_NUM_WORKERS") or os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") or 1
) or 1))

import numpy as np
from cnn import Network, singa_cnn, softmax_cross_entropy
from datasets import Dataset, DatasetError, load
from report import History, Report

from asyncps import Communicator
from asyncps.config import in_cluster
from asyncps.data import SplitSampler
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module

MOMENTUM = 0.5

# By which mpirun and mpiexec tell a process its rank.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")


def join() -> Communicator:
    """Join the group that the environment names: a launcher's, else MPI's; alone without one."""
    if not in_cluster() and any(os.environ.get(name) for name in MPI_RANKS):
        return Communicator.from_mpi()
    return Communicator.from_env()


class Descent:
    """SGD with momentum of the mean gradient of all ranks.

    Args:
        comm: The ranks.
        network: Its weights become those of rank 0, and change with every `step`.
        lr: Learning rate.
    """

    def __init__(self, comm: Communicator, network: Network, lr: float) -> None:
        self._comm = comm
        self._network = network
        self._lr = lr
        self._names, self._momenta = {}, {}
        for name, parameter in network.parameters().items():
            weight = parameter.data
            self._names[id(weight)] = name
            self._momenta[name] = weight * 0
            comm.broadcast(weight, root=0, name=f"weight/{name}")

    def step(self, loss_gradient: Any) -> None:
        """Take one step by the gradient of the loss; it goes backward through the network."""
        under_way = []
        for weight, gradient in self._network.gradients(loss_gradient):
            name = self._names[id(weight)]
            handle = self._comm.all_reduce(
                gradient, op="mean", name=f"gradient/{name}", async_op=True)
            under_way.append((weight, self._momenta[name], handle))
        for weight, momentum, handle in under_way:
            momentum *= MOMENTUM
            momentum += handle.wait()
            weight -= self._lr * momentum


def train(comm: Communicator, data: Dataset, args: argparse.Namespace, xp: ModuleType) -> History:
    """One rank's job; all ranks run it, and make the same number of batches."""
    part = SplitSampler(len(data.train_labels), comm.world_size, comm.rank)
    size, batches = args.batch_size, len(part) // args.batch_size
    if batches == 0:
        raise ConfigError(
            f"a worker's part has {len(part)} images, which is less than a batch of {size}:"
            " fewer workers or a smaller --batch-size, please"
        )
    random.seed(f"{args.seed}/{comm.rank}")  # SplitSampler's order: another on every rank
    if xp is not np:  # one GPU a worker, as far as there are enough
        xp.cuda.Device(comm.local_rank % xp.cuda.runtime.getDeviceCount()).use()
    images, labels = xp.asarray(data.train_images), xp.asarray(data.train_labels)
    mine = slice(comm.rank, None, comm.world_size)  # each evaluates a part
    test_images = xp.asarray(data.test_images[mine])
    test_labels = xp.asarray(data.test_labels[mine])

    # Ranks begin with different weights: it is the broadcast that makes them equal.
    network = singa_cnn(xp, args.seed + comm.rank)
    # A step is of world_size batches at once, and as much larger.
    descent = Descent(comm, network, args.lr * comm.world_size)
    first = comm.rank == 0
    if first:
        print(
            f"{data.name}: {len(labels)} images to train on, {len(data.test_labels)} to evaluate;"
            f" {network.count_parameters()} parameters; {comm.world_size} workers,"
            f" {batches} batches of {size} each an epoch, on {xp.__name__}",
            flush=True,
        )
    with Report(comm.world_size, batches, shown=first, bar=not args.no_progress) as report:
        for epoch in range(args.epochs):
            report.start_epoch(epoch)
            order = xp.asarray(list(part))
            for batch in range(batches):
                rows = order[batch * size : (batch + 1) * size]
                logits = network.forward(images[rows])
                loss, gradient = softmax_cross_entropy(xp, logits, labels[rows])
                descent.step(gradient / size)  # of the mean loss of this rank's batch
                correct = (logits.argmax(axis=1) == labels[rows]).sum()
                report.add_batch(float(loss), int(correct), size)
            report.end_training()
            right = np.array([network.count_correct(test_images, test_labels)], np.int64)
            comm.all_reduce(right, name="right")
            report.end_evaluation(int(right[0]) / len(data.test_labels))
    return report.history


def main(argv: list[str] | None = None) -> int:
    """One rank; returns its exit code."""
    args = _parse(argv)
    try:
        xp = array_module("cpu" if args.no_cuda else "auto")
        data = load(args.dataset, args.data)
        with join() as comm:
            history, rank = train(comm, data, args, xp), comm.rank
    except (ConfigError, DatasetError) as error:
        print(f"mnist_allreduce.py: {error}", file=sys.stderr)
        return 2
    if rank == 0:
        accuracy = history.evaluation_accuracy[-1]
        print(f"Final evaluation accuracy = {accuracy:.4f}, {history.images_per_s:.0f} images/s")
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="SINGA's CNN on MNIST or Fashion-MNIST, trained by all-reduce.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add: Any = parser.add_argument
    add("--batch-size", type=_count, default=64, help="images a worker and step")
    add("--epochs", type=_count, default=10, help="passes over the training images")
    add("--lr", type=float, default=0.01, help="learning rate; times the number of workers")
    add("--no-cuda", action="store_true", help="compute on the CPU, though there is a GPU")
    add("--dataset", choices=("mnist", "fashion"), default="mnist", help="mnist: 5,000 images")
    add("--data", type=Path, metavar="DIR", help="idx files to use in place of --dataset")
    add("--seed", type=int, default=0, help="of initial weights and order")
    add("--no-progress", action="store_true", help="no bar, even on a terminal")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
