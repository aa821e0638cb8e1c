"""SINGA's convolutional network for 28x28 images, forward and backward, in NumPy or CuPy.

Arrays are NHWC: image, row, column, channel. A convolution is one matrix product: the patches
under the kernel become the rows of a matrix (im2col), the kernel its right-hand side.

Every layer has ``params`` and ``grads`` (two dicts with the same names), ``forward`` and
``backward``. The loss is summed over the batch, so gradients are sums as well; whoever applies
them divides by the number of images (``rescale_grad`` of the servers' optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or cupy.ndarray


class Layer:
    """A layer without parameters; the base of all."""

    def __init__(self, xp: ModuleType) -> None:
        self.xp = xp  # numpy or cupy
        self.params: dict[str, Array] = {}
        self.grads: dict[str, Array] = {}

    def forward(self, x: Array) -> Array:
        """The output; what backward needs is kept."""
        raise NotImplementedError

    def backward(self, g: Array) -> Array:
        """Fills ``grads`` from the output's gradient and returns the input's."""
        raise NotImplementedError


class Parameter:
    """One array of a layer, and its gradient: what `asyncps.Trainer` works on."""

    def __init__(self, layer: Layer, name: str) -> None:
        self.layer, self.name = layer, name

    @property
    def data(self) -> Array:
        return self.layer.params[self.name]

    @property
    def grad(self) -> Array | None:
        return self.layer.grads.get(self.name)


class Dense(Layer):
    """y = x W + b, with He's initial weights (He et al. 2015: variance 2 / inputs)."""

    def __init__(self, xp: ModuleType, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        super().__init__(xp)
        weight = rng.normal(0, math.sqrt(2 / inputs), (inputs, outputs)).astype("f4")
        self.params = {"weight": xp.asarray(weight), "bias": xp.zeros(outputs, "f4")}

    def forward(self, x: Array) -> Array:
        self.x = x
        y = x @ self.params["weight"]
        y += self.params["bias"]
        return y

    def backward(self, g: Array) -> Array:
        self.set_gradients(g)
        return g @ self.params["weight"].T

    def set_gradients(self, g: Array) -> None:
        # Summing rows by a product with ones is many times faster than g.sum(axis=0).
        self.grads = {"weight": self.x.T @ g, "bias": self.xp.ones(len(g), g.dtype) @ g}


class Convolution(Dense):
    """A square kernel over the image, without padding: a dense layer on every patch.

    The first layer of a network is told so: nobody wants the gradient of the images.
    """

    def __init__(
        self,
        xp: ModuleType,
        rng: np.random.Generator,
        channels: int,
        filters: int,
        kernel: int,
        *,
        first: bool = False,
    ) -> None:
        super().__init__(xp, rng, kernel * kernel * channels, filters)
        self.kernel = kernel
        self.first = first

    def forward(self, x: Array) -> Array:
        k = self.kernel
        images, height, width, channels = self.input_shape = x.shape
        rows, columns = height - k + 1, width - k + 1
        image, row, column, channel = x.strides
        patches = self.xp.lib.stride_tricks.as_strided(
            x,
            (images, rows, columns, k, k, channels),
            (image, row, column, row, column, channel),
        )
        y = super().forward(patches.reshape(images * rows * columns, k * k * channels))
        return y.reshape(images, rows, columns, -1)

    def backward(self, g: Array) -> Array:
        images, rows, columns, filters = g.shape
        g = g.reshape(-1, filters)
        self.set_gradients(g)
        if self.first:
            return None
        # Add each patch to where it came from (col2im): first along the rows, then along the
        # columns, so that the inner loops run over k * channels neighbours.
        k, (_, height, width, channels) = self.kernel, self.input_shape
        patches = g @ self.params["weight"].T
        patches = patches.reshape(images, rows, columns, k, k * channels)
        strips = self.xp.zeros((images, height, columns, k * channels), g.dtype)
        for i in range(k):
            strips[:, i : i + rows] += patches[:, :, :, i]
        dx = self.xp.zeros((images, height, width, channels), g.dtype)
        for j in range(k):
            dx[:, :, j : j + columns] += strips[..., j * channels : (j + 1) * channels]
        return dx


class ReLU(Layer):
    """y = max(x, 0)."""

    def forward(self, x: Array) -> Array:
        self.positive = x > 0
        return x * self.positive

    def backward(self, g: Array) -> Array:
        return g * self.positive


class MaxPool(Layer):
    """The largest of each 2x2 square: the larger of two rows, then of two columns.

    Of equal values the first one gets the gradient.
    """

    def forward(self, x: Array) -> Array:
        upper, lower = x[:, 0::2], x[:, 1::2]
        self.upper_wins = upper >= lower
        x = self.xp.maximum(upper, lower)
        left, right = x[:, :, 0::2], x[:, :, 1::2]
        self.left_wins = left >= right
        return self.xp.maximum(left, right)

    def backward(self, g: Array) -> Array:
        images, rows, columns, channels = g.shape
        dx = self.xp.empty((images, rows, 2 * columns, channels), g.dtype)
        dx[:, :, 0::2] = g * self.left_wins
        dx[:, :, 1::2] = g - dx[:, :, 0::2]
        g, dx = dx, self.xp.empty((images, 2 * rows, 2 * columns, channels), g.dtype)
        dx[:, 0::2] = g * self.upper_wins
        dx[:, 1::2] = g - dx[:, 0::2]
        return dx


class Flatten(Layer):
    """One row an image."""

    def forward(self, x: Array) -> Array:
        self.input_shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, g: Array) -> Array:
        return g.reshape(self.input_shape)


def softmax_cross_entropy(xp: ModuleType, logits: Array, labels: Array) -> tuple[Array, Array]:
    """The loss, summed over the batch, and its gradient with respect to the logits."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    gradient = xp.exp(shifted)
    total = gradient.sum(axis=1, keepdims=True)
    gradient /= total
    rows = xp.arange(len(labels))
    loss = (xp.log(total[:, 0]) - shifted[rows, labels]).sum()
    gradient[rows, labels] -= 1
    return loss, gradient


class Network:
    """Named layers, one behind the other."""

    def __init__(self, layers: dict[str, Layer]) -> None:
        self.layers = layers

    def forward(self, x: Array) -> Array:
        """The logits."""
        for layer in self.layers.values():
            x = layer.forward(x)
        return x

    def backward(self, g: Array) -> None:
        """All gradients."""
        for layer in reversed(self.layers.values()):
            g = layer.backward(g)

    def gradients(self, g: Array) -> Iterator[tuple[Array, Array]]:
        """Each array that is learned with its gradient, as the backward pass makes them.

        A layer's come when nobody needs its arrays any more: they may be changed at once.
        """
        for layer in reversed(self.layers.values()):
            g = layer.backward(g)
            for name, gradient in layer.grads.items():
                yield layer.params[name], gradient

    def parameters(self) -> dict[str, Parameter]:
        """All that is learned, first layers first."""
        return {
            f"{name}.{param}": Parameter(layer, param)
            for name, layer in self.layers.items()
            for param in layer.params
        }

    def count_parameters(self) -> int:
        return sum(parameter.data.size for parameter in self.parameters().values())

    def count_correct(self, images: Array, labels: Array, batch_size: int = 250) -> int:
        """How many images get their right label."""
        return sum(
            int((self.forward(images[i : i + batch_size]).argmax(axis=1) == part).sum())
            for i in range(0, len(images), batch_size)
            for part in [labels[i : i + batch_size]]
        )


def singa_cnn(xp: ModuleType, seed: int) -> Network:
    """The network of SINGA's MNIST example; 431,080 parameters, for images of 28x28x1."""
    rng = np.random.default_rng(seed)
    return Network(
        {
            "conv1": Convolution(xp, rng, 1, 20, 5, first=True),
            "relu1": ReLU(xp),
            "pool1": MaxPool(xp),
            "conv2": Convolution(xp, rng, 20, 50, 5),
            "relu2": ReLU(xp),
            "pool2": MaxPool(xp),
            "flatten": Flatten(xp),
            "dense1": Dense(xp, rng, 4 * 4 * 50, 500),
            "relu3": ReLU(xp),
            "dense2": Dense(xp, rng, 500, 10),
        }
    )
