"""Trainer: the same training as alone, and each worker has its part of the data.

Alone:            python examples/linear.py
With 2 workers:   python -m asyncps launch -n 2 -s 1 -- python examples/linear.py
"""

import numpy as np

import asyncps


class Parameter:
    """All that a Trainer needs: weights, which it writes in place, and a gradient."""

    def __init__(self, data):
        self.data = data
        self.grad = None


def train(store, batch_size=20, epochs=5):
    """Fit a plane; return its slopes and height, which are [2, -1, 0.5] and 3."""
    rng = np.random.default_rng(0)  # the same data on all workers
    inputs = rng.standard_normal((1000, 3)).astype("f4")
    targets = inputs @ np.array([2, -1, 0.5], "f4") + 3

    slopes, height = Parameter(np.zeros(3, "f4")), Parameter(np.zeros(1, "f4"))
    trainer = asyncps.Trainer(
        {"slopes": slopes, "height": height}, "sgd", {"learning_rate": 0.1}, kvstore=store
    )
    part = asyncps.SplitSampler(len(inputs), store.num_workers, store.rank)
    for epoch in range(epochs):
        order = list(part)  # this worker's examples, in a new order each time
        for begin in range(0, len(order), batch_size):
            batch = order[begin : begin + batch_size]
            error = inputs[batch] @ slopes.data + height.data - targets[batch]
            slopes.grad, height.grad = inputs[batch].T @ error, error.sum(keepdims=True)
            trainer.step(batch_size * store.num_workers)  # the mean over all workers' batches
        print(f"worker {store.rank} of {store.num_workers}, epoch {epoch}: "
              f"slopes {slopes.data.round(2)}, height {height.data.round(2)}")
    return slopes.data, height.data


if __name__ == "__main__":
    with asyncps.create("dist_sync") as store:
        train(store)
