"""Writes trainer.json: what Gluon's Trainer of Apache MXNet 1.9.1 makes of given numbers.

    python3.8 tests/golden/make_trainer.py > tests/golden/trainer.json

under a Python that MXNet's wheel runs on, with NumPy below 1.24. The gradients are exact in f32, so
that the order of a sum does not matter; f32 values are written with all their digits. A case is a
list of steps, and the weights of each device after every one of them.
"""

from __future__ import annotations

import json
import sys

import mxnet as mx
import numpy as np

SHAPES = {"first": (2, 3), "second": (4,)}

# Optimizer, hyper-parameters, store, update_on_kvstore, devices.
CASES = [
    ("sgd", {"learning_rate": 0.5}, "local", True, 2),
    ("sgd", {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}, "local", True, 2),
    ("sgd", {"learning_rate": 0.5, "momentum": 0.9, "wd": 0.01}, "device", False, 2),
    ("sgd", {"learning_rate": 0.5, "momentum": 0.9, "clip_gradient": 0.4, "rescale_grad": 2.0},
     "device", None, 2),
    ("sgd", {"learning_rate": 0.5, "momentum": 0.9}, "device", None, 1),
    ("sgd", {"learning_rate": 0.5, "momentum": 0.9}, None, None, 2),
    ("adam", {"learning_rate": 0.1, "wd": 0.01}, "local", True, 2),
    ("adam", {"learning_rate": 0.1, "wd": 0.01}, "local", False, 2),
]

# Batch size and learning rate of each step (None keeps it); the last batch is a shorter one.
STEPS = [(4, None), (4, None), (4, 0.25), (4, None), (3, None)]


def numbers(name: str, step: int, device: int) -> np.ndarray:
    """Weights (step -1) and gradients: multiples of 1/8."""
    count = int(np.prod(SHAPES[name]))
    base = np.arange(count) * (3 if name == "first" else 5) + 7 * step + 11 * device
    return ((base % 17 - 8) / 8).astype("f4").reshape(SHAPES[name])


def run(optimizer, hyper, kvstore, on_store, devices):
    """One case: the weights after each step, by name and device, and where the update was."""
    contexts = [mx.cpu(i) for i in range(devices)]
    params = mx.gluon.ParameterDict()
    for name, shape in SHAPES.items():
        params.get(name, shape=shape).initialize(ctx=contexts)
        params[name].set_data(mx.nd.array(numbers(name, -1, 0)))
    trainer = mx.gluon.Trainer(params, optimizer, dict(hyper), kvstore=kvstore,
                               update_on_kvstore=on_store)
    after = []
    for step, (batch_size, rate) in enumerate(STEPS):
        if rate is not None:
            trainer.set_learning_rate(rate)
        for device, context in enumerate(contexts):
            with mx.autograd.record():
                loss = sum(
                    (params[name].data(context)
                     * mx.nd.array(numbers(name, step, device), ctx=context)).sum()
                    for name in SHAPES
                )
            loss.backward()
        trainer.step(batch_size)
        after.append({
            name: [[float(x) for x in params[name].data(c).asnumpy().ravel()] for c in contexts]
            for name in SHAPES
        })
    return after, bool(trainer._update_on_kvstore), trainer.learning_rate


def main() -> None:
    cases = []
    for case in CASES:
        after, on_store, rate = run(*case)
        cases.append({
            "optimizer": case[0], "hyper": case[1], "kvstore": case[2], "wanted": case[3],
            "devices": case[4], "on_store": on_store, "learning_rate": rate, "after": after,
        })
    told = {"made_by": "MXNet " + mx.__version__, "steps": STEPS, "cases": cases}
    json.dump(told, sys.stdout)
    print()


if __name__ == "__main__":
    main()
