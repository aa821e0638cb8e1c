"""The job on stores of this process: what it learns, prints and returns."""

from __future__ import annotations

import re
from dataclasses import dataclass

import mnist_cnn
import numpy as np
import pytest
import training
from cnn import singa_cnn

import asyncps.errors
from tests.support.cluster import on_cluster


def arguments(*words: str):
    return mnist_cnn._parse(["--batch-size", "16", "--epochs", "1", *words])


def train(data, *words: str, workers: int = 1):
    """The histories of all workers, by rank."""
    return on_cluster(
        lambda store: mnist_cnn.train(store, data, arguments(*words), np), workers=workers
    )


@pytest.fixture
def command(monkeypatch, data):
    """``main`` with the stripes in place of MNIST."""

    def run(*words: str) -> int:
        return mnist_cnn.main(["--batch-size", "16", "--epochs", "1", "--device", "cpu", *words])

    monkeypatch.setattr(mnist_cnn, "load", lambda *_: data)
    return run


def test_a_few_epochs_lower_the_loss_and_learn_the_stripes(data):
    (history,) = train(data, "--epochs", "5")

    assert history.loss[-1] < history.loss[0] / 2
    assert history.evaluation_accuracy[-1] > 0.8
    assert history.images == 5 * 80


def test_two_workers_together_do_what_one_does_with_both_batches(data, monkeypatch):
    @dataclass
    class InOrder:
        """A part that is not shuffled: worker r has every batch's r-th half."""

        length: int
        num_parts: int
        part_index: int

        def __len__(self):
            return self.length // self.num_parts

        def __iter__(self):
            batches = np.arange(self.length).reshape(-1, self.num_parts, 16 // self.num_parts)
            return iter(batches[:, self.part_index].ravel().tolist())

    monkeypatch.setattr(training, "SplitSampler", InOrder)
    keys = list(singa_cnn(np, 0).parameters())

    def weights_of(workers):
        args = arguments("--batch-size", str(16 // workers))

        def work(store):
            history = mnist_cnn.train(store, data, args, np)
            assert history.images == 80
            return store.pull(keys)

        return on_cluster(work, workers=workers)[0]

    for one, two in zip(weights_of(1), weights_of(2), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-5)


def test_only_rank_0_prints_and_evaluates(data, capsys):
    first, second = train(data, "--batch-size", "8", workers=2)

    assert len(first.evaluation_accuracy) == 1
    assert second.evaluation_accuracy == []
    assert capsys.readouterr().out.count("Starting Epoch 0:") == 1


def test_a_part_smaller_than_a_batch_is_an_error_that_says_so(data):
    with pytest.raises(asyncps.errors.ConfigError, match=r"40 images, .* batch of 64"):
        train(data, "--batch-size", "64", workers=2)


def test_the_printout_has_singas_lines(command, capsys):
    assert command("--epochs", "2") == 0

    number = r"\d+\.\d+"
    lines = capsys.readouterr().out.splitlines()
    for epoch in range(2):
        at = lines.index(f"Starting Epoch {epoch}:")
        pattern = f"Training loss = {number}, training accuracy = {number}"
        assert re.fullmatch(pattern, lines[at + 1])
        pattern = f"Evaluation accuracy = {number}, Elapsed Time = {number}s"
        assert re.fullmatch(pattern, lines[at + 2])
        assert re.fullmatch(rf"Epoch {epoch}: \d+ images/s over all workers", lines[at + 3])
    assert re.fullmatch(rf"Final evaluation accuracy = {number}, \d+ images/s", lines[-1])


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("f16", {"type": "f16"}),
        ("topk,ratio=0.01,values=f16", {"type": "topk", "ratio": 0.01, "values": "f16"}),
        ("f16,error_feedback=false", {"type": "f16", "error_feedback": False}),
    ],
)
def test_compression_of_the_command_line_is_what_the_store_takes(text, spec):
    assert arguments("--compression", text).compression == spec


@pytest.mark.parametrize("text", ["topk,ratio", "topk,=1", "topk,ratio="])
def test_an_option_of_compression_that_is_no_pair_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        arguments("--compression", text)
    assert "NAME=VALUE" in capsys.readouterr().err


def test_an_unknown_compression_is_an_error_of_the_command_line(command, capsys):
    assert command("--compression", "3bit") == 2

    assert "unknown type of compression" in capsys.readouterr().err


def test_gradients_of_large_layers_are_compressed(data):
    words = ["--compression", "topk,ratio=0.01", "--batch-size", "8"]

    def work(store):
        mnist_cnn.train(store, data, arguments(*words), np)
        return {key: told["codec"] for key, told in store.compression_report().items()}

    first, second = on_cluster(work, workers=2)

    assert first == second
    assert sorted(key for key, codec in first.items() if codec == "topk") == [
        "conv2.weight", "dense1.weight"]


def test_an_accuracy_below_the_target_is_exit_code_1(command, capsys):
    assert command("--target-accuracy", "1.01") == 1

    assert "is below the target 1.01" in capsys.readouterr().out


def test_an_accuracy_at_the_target_is_exit_code_0(command):
    assert command("--target-accuracy", "0") == 0


@pytest.fixture(scope="module")
def warm_matplotlib(tmp_path_factory):
    """Its first drawing opens font files and keeps them, which is not a leak of ours."""
    pytest.importorskip("matplotlib")
    history = mnist_cnn.History([1.0], [0.5], [0.5])
    mnist_cnn.draw(history, tmp_path_factory.mktemp("warm") / "figure.png")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_matplotlib")
def test_a_figure_is_drawn_where_it_was_asked_for(command, tmp_path, capsys):
    path = tmp_path / "new folder" / "figure.png"

    assert command("--figure", str(path)) == 0

    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().out


def test_data_that_is_missing_is_told_on_stderr_with_exit_code_2(command, monkeypatch, capsys):
    def missing(*_):
        raise mnist_cnn.DatasetError("the images are not there")

    monkeypatch.setattr(mnist_cnn, "load", missing)

    assert command() == 2
    assert "the images are not there" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--epochs", "0"], ["--batch-size", "-1"], ["--dataset", "x"]])
def test_a_wrong_option_ends_with_a_usage_line(words, capsys):
    with pytest.raises(SystemExit) as ended:
        mnist_cnn.main(words)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
