"""Trains SINGA's CNN without servers: every worker has an optimizer, and DistOpt between them.

Alone:           python examples/mnist_distopt.py
Two processes:   python examples/mnist_distopt.py -w 2
By a launcher:   python -m asyncps launch -n 2 -s 0 -- python examples/mnist_distopt.py
By MPI or Slurm: mpirun -n 2 python examples/mnist_distopt.py, or srun -n 2

The walk of one batch: forward, and `opt.backward(pairs, dist_option)`, where `pairs` yields each
layer's gradients as the backward pass makes them; they travel while it goes on.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from types import ModuleType
from typing import Any

from cores import threads

os.environ.setdefault("OMP_NUM_THREADS", threads())  # before NumPy is imported

from cnn import singa_cnn
from datasets import Dataset, DatasetError, load
from report import History
from training import Part, count, misses, parser_of, say_final

import asyncps
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module


def train(opt: asyncps.DistOpt, data: Dataset, args: argparse.Namespace, xp: ModuleType) -> History:
    """One worker's job; all workers run it, and make the same number of batches."""
    part = Part(data, args, xp, opt.global_rank, opt.world_size, opt.local_rank)
    network = singa_cnn(xp, args.seed)  # the same seed: all begin with the same weights

    def step(gradient: Any) -> None:
        gradient /= args.batch_size  # of the mean loss; DistOpt makes the mean over workers
        opt.backward(network.gradients(gradient), args.dist_option, args.spars)

    return part.train(network, step, part.evaluation_of(network), f"{args.dist_option} ")


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
    return int(misses(say_final(history), args.target_accuracy))


def run_child(args: argparse.Namespace, ticket: asyncps.JobTicket, rank: int) -> None:
    """What a process of `-w` does."""
    sys.exit(work(args, ticket, rank))


def main(argv: list[str] | None = None) -> int:
    args = _parse(argv)
    if args.workers is None:
        return work(args)
    if os.environ["OMP_NUM_THREADS"] == threads():  # children share these
        os.environ["OMP_NUM_THREADS"] = threads(args.workers)
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
    parser = parser_of(
        "SINGA's CNN on MNIST or Fashion-MNIST, trained by DistOpt.", epochs=10, lr=0.005
    )
    add = parser.add_argument
    add("-w", "--workers", type=count, metavar="N", help="start N processes on this machine")
    add("--dist-option", choices=asyncps.DistOpt.OPTIONS, default="plain",
        help="what travels; fp32 is plain and fp16 is half")
    add("--spars", type=float, default=0.05,
        help="sparseTopK: the part that is sent; sparseThreshold: the least magnitude")
    add("--momentum", type=float, default=0.9, help="momentum")
    add("--wd", type=float, default=1e-5, help="weight decay")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="what computes")
    add("--target-accuracy", type=float, metavar="A", help="exit 1 when the result is below it")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
