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
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from cores import threads

os.environ.setdefault("OMP_NUM_THREADS", threads())  # before NumPy is imported

from cnn import singa_cnn
from datasets import Dataset, DatasetError, load
from report import History, draw
from training import Part, misses, parser_of, say_final

import asyncps
from asyncps.errors import ConfigError
from asyncps.tensor.arrays import array_module


def train(store: Any, data: Dataset, args: argparse.Namespace, xp: ModuleType) -> History:
    """One worker's job; all workers run it, and make the same number of batches."""
    part = Part(data, args, xp, store.rank, store.num_workers, store.local_rank)
    network = singa_cnn(xp, args.seed)
    # Everybody begins with rank 0's weights; the updates happen on the servers.
    trainer = asyncps.Trainer(
        network.parameters(),
        "sgd",
        {"learning_rate": args.lr, "momentum": args.momentum, "wd": args.wd},
        kvstore=store,
        compression_params=args.compression,
    )

    def step(gradient: Any) -> None:
        network.backward(gradient)
        trainer.step(args.batch_size * store.num_workers)  # the mean over all workers' images

    return part.train(network, step, part.evaluation_of(network))


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
    accuracy = say_final(history)
    if args.figure:
        draw(history, args.figure)
        print(f"Loss and accuracy are drawn in {args.figure}")
    return int(misses(accuracy, args.target_accuracy))


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = parser_of(
        "SINGA's CNN on MNIST or Fashion-MNIST, trained through asyncps.", epochs=20, lr=0.05
    )
    add = parser.add_argument
    add("--momentum", type=float, default=0.9, help="momentum of the servers' SGD")
    add("--wd", type=float, default=1e-5, help="weight decay")
    add("--kv-store", default="dist_sync", help="store type")
    add("--compression", type=_codec, metavar="TYPE[,OPTION=VALUE...]",
        help="of gradients, such as 2bit,threshold=0.25 (see docs/compression.md)")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="what computes")
    add("--figure", type=Path, metavar="PATH", help="draw loss and accuracy (PNG)")
    add("--target-accuracy", type=float, metavar="A", help="exit 1 when the result is below it")
    return parser.parse_args(argv)


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
