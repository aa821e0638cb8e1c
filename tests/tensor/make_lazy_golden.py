"""Makes lazy_golden.json: what MXNet 1.9.1 does with row-sparse gradients, lazy and full.

Run by hand with an interpreter that has MXNet 1.9.1 (bench/peers/setup.sh makes one):
python tests/tensor/make_lazy_golden.py > tests/tensor/lazy_golden.json
"""

import json

import mxnet
import numpy as np

# Rows and gradients of three pushes to a table of shape (4, 2) with the values 1/4, 2/4, ... 8/4.
PUSHES = [([0, 2], [[1, -2], [0.5, 4]]), ([2, 3], [[-1, 0.25], [3, 1]]), ([0], [[2, 2]])]
CASES = {
    "sgd": ("sgd", {"learning_rate": 0.5, "wd": 0.125}),
    "momentum": ("sgd", {
        "learning_rate": 0.5, "momentum": 0.5, "wd": 0.125, "rescale_grad": 0.5,
    }),
    "adam": ("adam", {"learning_rate": 0.125, "wd": 0.125, "rescale_grad": 0.5}),
}  # fmt: skip


def values_after_each_push(name, hyper, lazy):
    """The whole table after each of the pushes."""
    start = np.arange(1, 9, dtype="f4").reshape(4, 2) / 4
    weight = mxnet.nd.array(start).tostype("row_sparse")
    optimizer = mxnet.optimizer.create(name, lazy_update=lazy, **hyper)
    state = optimizer.create_state(0, weight)
    after = []
    for rows, gradient in PUSHES:
        pair = (np.array(gradient, "f4"), rows)
        optimizer.update(0, weight, mxnet.nd.sparse.row_sparse_array(pair, shape=(4, 2)), state)
        after.append(weight.asnumpy().reshape(-1).tolist())
    return after


if __name__ == "__main__":
    cases = [
        {"name": name, "hyper": hyper, "lazy": lazy, "pushes": PUSHES,
         "after": values_after_each_push(name, hyper, lazy)}
        for name, hyper in CASES.values()
        for lazy in (True, False)
    ]  # fmt: skip
    print(json.dumps(cases, indent=1))
