"""What a training job tells its user: SINGA's lines, a progress bar, a figure."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn


@dataclass
class History:
    """One entry an epoch. Loss and training accuracy are those of this worker's part."""

    loss: list[float] = field(default_factory=list)  # mean over the images
    training_accuracy: list[float] = field(default_factory=list)
    evaluation_accuracy: list[float] = field(default_factory=list)  # on rank 0 only
    images: int = 0  # trained on, by all workers together
    training_s: float = 0.0  # without evaluation

    @property
    def images_per_s(self) -> float:
        return self.images / max(self.training_s, 1e-9)


class Report:
    """Collects the numbers of a run; prints them when ``shown`` (on rank 0).

    The bar appears on a terminal; elsewhere each epoch has a line with its images/s.
    """

    def __init__(self, num_workers: int, batches: int, *, shown: bool, bar: bool) -> None:
        self.history = History()
        self._num_workers = num_workers
        self._batches = batches
        self._shown = shown
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]:.0f} images/s, loss {task.fields[loss]:.4f}"),
            disable=not (shown and bar and sys.stdout.isatty()),
        )
        self._task = self._bar.add_task("", total=batches, speed=0.0, loss=0.0)

    def __enter__(self) -> Report:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def start_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._start = time.perf_counter()
        self._loss, self._correct, self._seen = 0.0, 0, 0
        self._bar.reset(self._task, total=self._batches, description=f"Epoch {epoch}")
        self._print(f"Starting Epoch {epoch}:")

    def add_batch(self, loss: float, correct: int, images: int) -> None:
        """``loss`` is the sum over the batch's images."""
        self._loss += loss
        self._correct += correct
        self._seen += images
        speed = self._seen * self._num_workers / self._elapsed_s()
        self._bar.update(self._task, advance=1, speed=speed, loss=self._loss / self._seen)

    def end_training(self) -> None:
        """The epoch's last weights are here."""
        elapsed_s, images = self._elapsed_s(), self._seen * self._num_workers
        self.history.images += images
        self.history.training_s += elapsed_s
        self.history.loss.append(self._loss / self._seen)
        self.history.training_accuracy.append(self._correct / self._seen)
        self._print(
            f"Training loss = {self.history.loss[-1]:.6f},"
            f" training accuracy = {self.history.training_accuracy[-1]:.6f}"
        )
        self._images_per_s = images / elapsed_s

    def end_evaluation(self, accuracy: float) -> None:
        self.history.evaluation_accuracy.append(accuracy)
        self._print(
            f"Evaluation accuracy = {accuracy:.6f}, Elapsed Time = {self._elapsed_s():.6f}s"
        )
        if self._bar.disable:
            speed = f"{self._images_per_s:.0f} images/s over all workers"
            self._print(f"Epoch {self._epoch}: {speed}")

    def _elapsed_s(self) -> float:
        return max(time.perf_counter() - self._start, 1e-9)

    def _print(self, line: str) -> None:
        if self._shown:
            print(line, flush=True)


def draw(history: History, path: Path) -> None:
    """A PNG of loss and accuracy over the epochs."""
    from matplotlib.figure import Figure  # without pyplot: it needs no screen

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    epochs = range(len(history.loss))
    left.plot(epochs, history.loss, marker="o", label="training (rank 0's part)")
    left.set(xlabel="epoch", ylabel="loss an image")
    right.plot(epochs, history.training_accuracy, marker="o", label="training (rank 0's part)")
    right.plot(epochs, history.evaluation_accuracy, marker="o", label="evaluation")
    right.set(xlabel="epoch", ylabel="accuracy")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)
