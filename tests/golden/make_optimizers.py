"""Make optimizers.npz: what the operators of Apache MXNet 1.9.1 do to weights, step by step.

Run it where that wheel runs, which is Python 3.8 (it needs mxnet and numpy alone):

    python3.8 tests/golden/make_optimizers.py

The file has no pickles. `index` is JSON in bytes: a list of cases, each with the arrays `<n>.w0`,
`<n>.g` (a gradient a step), `<n>.w` (the weights after each step) and `<n>.state.<i>` (the state
at the end, in MXNet's order); and a list of schedules with the rates at each update.
"""

import json
import logging
import os
import warnings

import numpy as np

warnings.filterwarnings("ignore")
import mxnet as mx  # noqa: E402

logging.disable(logging.INFO)

ADAMW = "adamw"  # an operator without a class of its own in this version
SHAPE = {"gamma1": 0.8, "gamma2": 0.7}

# Each: name, hyper-parameters in MXNet's words, elements, steps.
CASES = [
    ("sgd", {"learning_rate": 0.1}, 1, 3),
    ("sgd", {"learning_rate": 0.1, "wd": 0.01, "rescale_grad": 0.25}, 37, 4),
    ("sgd", {"learning_rate": 0.1, "wd": 0.1, "clip_gradient": 0.5}, 23, 4),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9}, 37, 5),
    ("sgd", {"learning_rate": 0.05, "momentum": 0.5, "wd": 0.1, "clip_gradient": 1.5,
             "rescale_grad": 0.5}, 31, 5),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9}, 37, 5),
    ("nag", {"learning_rate": 0.05, "momentum": 0.5, "wd": 0.1, "clip_gradient": 1.5,
             "rescale_grad": 0.5}, 31, 5),
    ("adam", {}, 37, 5),
    ("adam", {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "wd": 0.1,
              "clip_gradient": 0.5, "rescale_grad": 0.5}, 31, 5),
    ("adamw", {"learning_rate": 0.01}, 37, 5),
    ("adamw", {"learning_rate": 0.1, "eta": 0.5, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3,
               "wd": 0.1, "clip_gradient": 0.5, "rescale_grad": 0.5}, 31, 5),
    ("adamw", {"learning_rate": 1.0, "eta": 0.01, "wd": 0.01}, 1, 5),
    ("adagrad", {}, 37, 5),
    ("adagrad", {"learning_rate": 0.1, "eps": 1e-3, "wd": 0.1, "clip_gradient": 0.5,
                 "rescale_grad": 0.5}, 31, 5),
    ("rmsprop", {}, 37, 5),
    ("rmsprop", {"learning_rate": 0.1, "gamma1": 0.8, "epsilon": 1e-3, "wd": 0.1,
                 "clip_gradient": 0.5, "rescale_grad": 0.5}, 31, 5),
    ("rmsprop", {"learning_rate": 0.1, "clip_weights": 0.3}, 23, 4),
    ("rmsprop", {"centered": True}, 37, 5),
    ("rmsprop", {"centered": True, "learning_rate": 0.1, "epsilon": 1e-3, "wd": 0.1,
                 "clip_gradient": 0.5, "rescale_grad": 0.5, **SHAPE}, 31, 5),
    ("rmsprop", {"centered": True, "learning_rate": 0.1, "clip_weights": 0.3}, 23, 4),
    ("ftrl", {}, 37, 5),
    ("ftrl", {"learning_rate": 0.5, "lamda1": 0.2, "beta": 0.5, "wd": 0.1, "clip_gradient": 0.5,
              "rescale_grad": 0.5}, 31, 5),
    ("lamb", {}, 37, 5),
    ("lamb", {"learning_rate": 0.1, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "wd": 0.1,
              "clip_gradient": 0.5, "rescale_grad": 0.5}, 31, 5),
    ("lamb", {"learning_rate": 0.1, "wd": 0.1, "bias_correction": False}, 23, 4),
    ("lamb", {"learning_rate": 0.1, "lower_bound": 2.0, "upper_bound": 2.5}, 23, 4),
    ("lamb", {"learning_rate": 0.1, "upper_bound": 0.2}, 1, 4),
    ("lamb", {"learning_rate": 0.1, "wd": 0.1, "zero_start": True}, 23, 4),
]

# Beside these, each name once with lr_mult and wd_mult, and once with f16 weights and an f32 master
# (but LAMB: mp_lamb_update_phase2 of this version leaves the master as it was for ever).
ALL = {
    "sgd": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1},
    "nag": {"learning_rate": 0.1, "momentum": 0.9, "wd": 0.1},
    "adam": {"learning_rate": 0.1, "wd": 0.1},
    "adamw": {"learning_rate": 0.1, "wd": 0.1},
    "adagrad": {"learning_rate": 0.1, "wd": 0.1},
    "rmsprop": {"learning_rate": 0.1, "wd": 0.1},
    "ftrl": {"learning_rate": 0.1, "wd": 0.1},
    "lamb": {"learning_rate": 0.1, "wd": 0.1},
}
MULT = {"lr_mult": 0.5, "wd_mult": 3.0}

WARM = {"warmup_steps": 5, "warmup_begin_lr": 0.02}
FLAT = {"warmup_mode": "constant", **WARM}
SCHEDULES = [
    ("step", {"step": 3, "factor": 0.5, "base_lr": 0.8}),
    ("step", {"step": 4, "factor": 0.1, "base_lr": 0.5, "stop_factor_lr": 0.003, **WARM}),
    ("multistep", {"step": [2, 9, 10], "factor": 0.5, "base_lr": 0.8}),
    ("multistep", {"step": [2, 9, 17], "factor": 0.3, "base_lr": 0.8, **FLAT}),
    ("polynomial", {"max_update": 20, "base_lr": 0.8}),
    ("polynomial", {"max_update": 21, "base_lr": 0.8, "pwr": 3, "final_lr": 0.1, **WARM}),
    ("cosine", {"max_update": 20, "base_lr": 0.8}),
    ("cosine", {"max_update": 21, "base_lr": 0.8, "final_lr": 0.1, **FLAT}),
    ("cosine", {"max_update": 21, "base_lr": 0.8, "final_lr": 0.1, **WARM}),
]
CLASSES = {
    "step": mx.lr_scheduler.FactorScheduler, "multistep": mx.lr_scheduler.MultiFactorScheduler,
    "polynomial": mx.lr_scheduler.PolyScheduler, "cosine": mx.lr_scheduler.CosineScheduler,
}


def values(rng, size):
    """Values of several magnitudes, some of them zero."""
    made = rng.standard_normal(size) * 10.0 ** rng.integers(-3, 2, size)
    made[rng.random(size) < 0.15] = 0.0
    return made.astype(np.float32)


def flat(state):
    """The arrays of a state in MXNet's order."""
    if state is None:
        return []
    if isinstance(state, (list, tuple)):
        return [array for part in state for array in flat(part)]
    return [state]


class AdamW:
    """The contrib operator with the state that it wants."""

    def __init__(
        self, learning_rate=0.001, eta=1.0, rescale_grad=1.0, multi_precision=False, **words
    ):
        self.words = dict(words, lr=learning_rate, eta=eta, rescale_grad=rescale_grad)
        self.multi_precision = multi_precision

    def set_lr_mult(self, factors):
        self.words["lr"] *= factors[0]

    def set_wd_mult(self, factors):
        self.words["wd"] *= factors[0]

    def create_state_multi_precision(self, index, weight):
        moments = mx.nd.zeros(weight.shape), mx.nd.zeros(weight.shape)
        return (weight.astype("float32"), moments) if self.multi_precision else moments

    def update_multi_precision(self, index, weight, grad, state):
        if self.multi_precision:
            mx.nd.contrib.mp_adamw_update(
                weight, grad, *state[1], state[0], out=weight, **self.words)
        else:
            mx.nd.contrib.adamw_update(weight, grad, *state, out=weight, **self.words)


def run(number, case, arrays):
    """Carry out one case."""
    words = dict(case["hyper"])
    rng = np.random.default_rng(number)
    size, dtype = case["size"], case["dtype"]
    start = np.zeros(size) if words.pop("zero_start", False) else values(rng, size)
    factors = {name: words.pop(name) for name in MULT if name in words}
    if case["multi_precision"]:
        words["multi_precision"] = True
    opt = AdamW(**words) if case["name"] == ADAMW else mx.optimizer.create(case["name"], **words)
    if factors:
        opt.set_lr_mult({0: factors["lr_mult"]})
        opt.set_wd_mult({0: factors["wd_mult"]})
    w = mx.nd.array(start, dtype=dtype)
    arrays[f"{number}.w0"] = w.asnumpy()
    state = opt.create_state_multi_precision(0, w)
    gradients, after = [], []
    for step in range(case["steps"]):
        g = values(rng, size)
        if dtype == "float32" and step == 2:
            g[0] = -3e4
        g = mx.nd.array(g, dtype=dtype)
        gradients.append(g.asnumpy())  # before the step: contrib.adamw_update writes over it
        opt.update_multi_precision(0, w, g, state)
        after.append(w.asnumpy())
    arrays[f"{number}.g"] = np.stack(gradients)
    arrays[f"{number}.w"] = np.stack(after)
    found = flat(state)
    for i, array in enumerate(found):
        arrays[f"{number}.state.{i}"] = array.asnumpy()
    case["states"] = len(found)


def main():
    """Write the file beside this script."""
    cases = [
        {"name": name, "hyper": hyper, "size": size, "steps": steps, "dtype": "float32",
         "multi_precision": False}
        for name, hyper, size, steps in CASES
    ]
    for name, hyper in ALL.items():
        cases.append({"name": name, "hyper": dict(hyper, **MULT), "size": 9, "steps": 3,
                      "dtype": "float32", "multi_precision": False})
        if name != "lamb":
            cases.append({"name": name, "hyper": hyper, "size": 33, "steps": 4,
                          "dtype": "float16", "multi_precision": True})
    arrays = {}
    for number, case in enumerate(cases):
        run(number, case, arrays)
    schedules = []
    for name, words in SCHEDULES:
        words = dict(words)
        scheduler = CLASSES[name](**json.loads(json.dumps(words)))
        schedules.append({"name": name, "words": words,
                          "rates": [float(scheduler(t)) for t in range(1, 31)]})
    index = json.dumps({"mxnet": mx.__version__, "cases": cases, "schedules": schedules})
    arrays["index"] = np.frombuffer(index.encode(), np.uint8)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.npz")
    np.savez_compressed(path, **arrays)
    print("wrote", os.path.getsize(path), "bytes,", len(cases), "cases")


if __name__ == "__main__":
    main()
