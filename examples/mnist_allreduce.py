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
import sys
from types import ModuleType
from typing import Any

from cores import threads

os.environ.setdefault("OMP_NUM_THREADS", threads())  # before NumPy is imported

import numpy as np
from cnn import Network, singa_cnn
from datasets import Dataset, DatasetError, load
from report import History
from training import Part, parser_of, say_final

from asyncps import Communicator
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module

MOMENTUM = 0.5

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
    part = Part(data, args, xp, comm.rank, comm.world_size, comm.local_rank)
    mine = slice(comm.rank, None, comm.world_size)  # each evaluates a part
    test_images = xp.asarray(data.test_images[mine])
    test_labels = xp.asarray(data.test_labels[mine])

    # Ranks begin with different weights: it is the broadcast that makes them equal.
    network = singa_cnn(xp, args.seed + comm.rank)
    # A step is of world_size batches at once, and as much larger.
    descent = Descent(comm, network, args.lr * comm.world_size)

    def step(gradient: Any) -> None:
        descent.step(gradient / args.batch_size)  # of the mean loss of this rank's batch

    def evaluate() -> float:
        right = np.array([network.count_correct(test_images, test_labels)], np.int64)
        comm.all_reduce(right, name="right")
        return int(right[0]) / len(data.test_labels)

    return part.train(network, step, evaluate)


def main(argv: list[str] | None = None) -> int:
    """One rank; returns its exit code."""
    args = _parse(argv)
    try:
        xp = array_module("cpu" if args.no_cuda else "auto")
        data = load(args.dataset, args.data)
        with Communicator.from_launch() as comm:
            history, rank = train(comm, data, args, xp), comm.rank
    except (ConfigError, DatasetError) as error:
        print(f"mnist_allreduce.py: {error}", file=sys.stderr)
        return 2
    if rank == 0:
        say_final(history)
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of(
        "SINGA's CNN on MNIST or Fashion-MNIST, trained by all-reduce.", epochs=10, lr=0.01,
        lr_help="learning rate; times the number of workers",
    )
    parser.add_argument("--no-cuda", action="store_true",
                        help="compute on the CPU, though there is a GPU")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
