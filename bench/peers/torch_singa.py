"""SINGA's CNN in one process of PyTorch, for bench/distopt.py: SGD with momentum, batch 128.

Prints a JSON list: the accuracy after each epoch. `--init he` begins with the weights of
examples/cnn.py, `torch` with PyTorch's own.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from datasets import load


def network(init: str) -> nn.Module:
    """431,080 parameters."""
    layers = nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    )
    if init == "he":
        for layer in layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    return layers


def main() -> None:
    """Train and evaluate."""
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    a.add_argument("--dataset", default="mnist")
    a.add_argument("--epochs", type=int, default=10)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--init", choices=("torch", "he"), default="torch")
    a.add_argument("--lr", type=float, default=0.005)
    told = a.parse_args()
    torch.manual_seed(told.seed)
    data = load(told.dataset)
    images, labels, seen, truth = (
        torch.from_numpy(part) for part in (
            data.train_images.transpose(0, 3, 1, 2).copy(), data.train_labels.astype("i8"),
            data.test_images.transpose(0, 3, 1, 2).copy(), data.test_labels.astype("i8"))
    )
    model = network(told.init)
    assert sum(each.numel() for each in model.parameters()) == 431_080
    optimizer = torch.optim.SGD(model.parameters(), told.lr, 0.9, weight_decay=1e-5)
    learned = []
    for _ in range(told.epochs):
        order = torch.randperm(len(images))
        for begin in range(0, len(images) - 127, 128):
            batch = order[begin : begin + 128]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            right = sum(int((model(seen[at : at + 500]).argmax(1) == truth[at : at + 500]).sum())
                        for at in range(0, len(seen), 500))
        learned.append(right / len(seen))
    print(json.dumps(learned))


if __name__ == "__main__":
    main()
