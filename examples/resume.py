"""A training script that is stopped and begins again where its last checkpoint stands.

Run it twice; the second run goes on at the epoch after the last one that was saved. FOLDER is one
that all workers see: each of them looks there for the last checkpoint.

    python -m asyncps launch -n 2 -s 1 -- python examples/resume.py /tmp/plane 3
    python -m asyncps launch -n 2 -s 1 -- python examples/resume.py /tmp/plane 6
"""

import sys
from pathlib import Path

import numpy as np
from linear import Parameter

import asyncps


def train(store, folder, epochs, batch_size=20):
    """Fit a plane; return its slopes and height, and the epoch that this run began at."""
    rng = np.random.default_rng(0)  # the same data on all workers
    inputs = rng.standard_normal((1000, 3)).astype("f4")
    targets = inputs @ np.array([2, -1, 0.5], "f4") + 3

    slopes, height = Parameter(np.zeros(3, "f4")), Parameter(np.zeros(1, "f4"))
    trainer = asyncps.Trainer(
        {"slopes": slopes, "height": height}, "sgd",
        {"learning_rate": 0.05, "momentum": 0.5}, kvstore=store,
    )
    folder.mkdir(parents=True, exist_ok=True)
    saved = sorted(folder.glob("epoch-*"))
    first = int(saved[-1].name.removeprefix("epoch-")) + 1 if saved else 0
    if saved:  # every worker; weights, momentum and learning rate come from the checkpoint
        store.load(saved[-1])
    for epoch in range(first, epochs):
        # The seed makes the order of an epoch the same whenever, and by whomever, it is read.
        part = asyncps.SplitSampler(len(inputs), store.num_workers, store.rank, seed=epoch)
        order = list(part)
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            error = inputs[batch] @ slopes.data + height.data - targets[batch]
            slopes.grad, height.grad = inputs[batch].T @ error, error.sum(keepdims=True)
            trainer.step(batch_size * store.num_workers)
        store.save(folder / f"epoch-{epoch:04}")  # every worker; whole, or not there
        print(f"worker {store.rank} of {store.num_workers}, epoch {epoch}: "
              f"slopes {slopes.data.round(4)}, height {height.data.round(4)}")
    return slopes.data, height.data, first


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: resume.py FOLDER EPOCHS")
    with asyncps.create("dist_sync", order="rank") as store:  # "rank": the same bits in every run
        train(store, Path(sys.argv[1]), int(sys.argv[2]))
