"""Make distopt.npz: what the optimizers of PyTorch do to weights, step by step.

Run it where torch is (it needs torch and numpy alone):

    python tests/golden/make_distopt.py

`index` is JSON in bytes: a list of cases, each with the arrays `<n>.w0`, `<n>.g` (a gradient a
step), `<n>.w` (the weights after each step). Hyper-parameters are torch's; `rates` are the learning
rates of the steps.
"""

import json
from pathlib import Path

import numpy as np
import torch

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
ADAGRAD, RMSPROP = torch.optim.Adagrad, torch.optim.RMSprop
CHANGING = [0.1, 0.1, 0.05, 0.2, 0.0, 0.2]

# Each: optimizer, hyper-parameters, the rate of each step, elements.
CASES = [
    (SGD, {}, [0.1] * 3, 37),
    (SGD, {"weight_decay": 0.1}, CHANGING, 37),
    (SGD, {"momentum": 0.9}, CHANGING, 1),
    (SGD, {"momentum": 0.9, "weight_decay": 1e-2}, CHANGING, 33_000),
    (SGD, {"momentum": 0.9, "nesterov": True}, CHANGING, 37),
    (SGD, {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}, CHANGING, 33_000),
    (ADAM, {}, [0.001] * 6, 37),
    (ADAM, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}, CHANGING, 31),
    (ADAMW, {"weight_decay": 0.0}, [0.01] * 6, 37),
    (ADAMW, {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}, CHANGING, 31),
    (ADAGRAD, {}, [0.01] * 6, 37),
    (ADAGRAD, {"eps": 1e-2, "weight_decay": 0.1}, CHANGING, 33_000),
    (RMSPROP, {}, [0.01] * 6, 37),
    (RMSPROP, {"alpha": 0.8, "eps": 1e-2, "weight_decay": 0.1}, CHANGING, 33_000),
    (RMSPROP, {"centered": True, "momentum": 0.7, "alpha": 0.8, "eps": 1e-2,
               "weight_decay": 0.1}, CHANGING, 33_000),
    (RMSPROP, {"centered": True}, [0.01] * 6, 37),
]  # fmt: skip


def main() -> None:
    rng = np.random.default_rng(5)
    index, arrays = [], {}
    for number, (kind, hyper, rates, size) in enumerate(CASES):
        # Few numbers are kept: of a large case all elements come from 16 series, again and again.
        series = 16 if size > 1000 else size
        w0 = rng.normal(size=series).astype("f4")
        grads = rng.normal(size=(len(rates), series)).astype("f4")
        weights = torch.nn.Parameter(torch.from_numpy(w0.copy()))
        optimizer = kind([weights], lr=rates[0], **hyper)
        steps = []
        for rate, grad in zip(rates, grads, strict=True):
            optimizer.param_groups[0]["lr"] = rate
            weights.grad = torch.from_numpy(grad.copy())
            optimizer.step()
            steps.append(weights.detach().numpy().copy())
        index.append({"name": kind.__name__, "hyper": hyper, "rates": rates, "size": size})
        arrays |= {f"{number}.w0": w0, f"{number}.g": grads, f"{number}.w": np.array(steps)}
    text = json.dumps({"torch": torch.__version__.partition("+")[0], "cases": index})
    np.savez_compressed(Path(__file__).with_name("distopt.npz"),
                        index=np.frombuffer(text.encode(), np.uint8), **arrays)


if __name__ == "__main__":
    main()
