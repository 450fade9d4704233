"""VGG-16 and ResNet-50 as chains of layers, from their shapes: what PipeDream was shown on.

A layer takes the longer of its FLOPs at the GPU's fp32 peak and of its bytes at its memory
bandwidth. Sources: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", ICLR 2015, Table 1, D; He et al., "Deep Residual Learning for Image Recognition", CVPR
2016, Table 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simulator.costs import Costs, uniform
from simulator.schedule import Kind

__all__ = ["V100_PCIE", "Layer", "Speed", "chain_costs", "resnet50", "vgg16"]

BYTES = 4  # of an fp32 element
PIXELS = 224  # of an image's side


@dataclass(frozen=True)
class Speed:
    """What a GPU does in a second."""

    flops: float  # fp32 [FLOP/s]
    memory_bandwidth: float  # [bytes/s]


class Layer(NamedTuple):
    """One layer of a chain, for one minibatch."""

    name: str
    forward: float  # [s]
    backward: float  # [s]
    weight_bytes: float  # [bytes]
    output_bytes: float  # sent to the next layer; its gradient is as large [bytes]


def chain_costs(layers: Sequence[Layer]) -> Costs:
    """Costs with one stage for each layer, as planners take them."""
    plain = uniform(len(layers), 1.0, 2.0)
    seconds = np.zeros_like(plain.seconds)
    seconds[Kind.F] = [layer.forward for layer in layers]
    seconds[Kind.B] = [layer.backward for layer in layers]
    seconds[Kind.I] = seconds[Kind.W] = seconds[Kind.B] / 2
    weights = np.array([layer.weight_bytes for layer in layers])
    return replace(
        plain,
        seconds=seconds,
        boundary_bytes=np.array([layer.output_bytes for layer in layers]),
        reduce_bytes=weights,
        weight_bytes=weights,
    )


V100_PCIE = Speed(14e12, 900e9)  # source: NVIDIA Tesla V100 datasheet, PCIe column


@dataclass(frozen=True)
class _Net:
    """Builds the layers of one network for one minibatch."""

    batch: int  # images [1]
    speed: Speed

    def bytes_of(self, channels: int, side: int) -> float:
        """An activation. [bytes]"""
        return float(BYTES * self.batch * channels * side * side)

    def product(self, macs: float, weights: float, moved: float) -> tuple[float, float]:
        """Forward of a convolution or dense layer, and its backward, two products. [s]

        `macs` are multiply-adds of one image; `moved` are its input and output. [bytes]
        """
        flops = 2 * macs * self.batch / self.speed.flops
        read = (moved + BYTES * weights) / self.speed.memory_bandwidth
        return max(flops, read), 2 * max(flops, read)

    def stream(self, nbytes: float) -> float:
        """An elementwise kernel. [s]"""
        return nbytes / self.speed.memory_bandwidth

    def convolution(
        self,
        name: str,
        channels: tuple[int, int],
        kernel: int,
        sides: tuple[int, int],
        *,
        norm: bool = False,
    ) -> Layer:
        """A convolution with its ReLU, and batch normalisation in between.

        ReLU reads and writes, and back reads two and writes one; normalisation reads twice and
        writes, and back reads four times and writes.
        """
        inside, outside = channels
        weights = float(kernel * kernel * inside * outside)
        result = self.bytes_of(outside, sides[1])
        ahead, back = self.product(
            weights * sides[1] ** 2, weights, self.bytes_of(inside, sides[0]) + result
        )
        passes = (2 + 3 * norm, 3 + 5 * norm)
        extra = 2 * outside if norm else outside
        return Layer(
            name,
            ahead + self.stream(passes[0] * result),
            back + self.stream(passes[1] * result),
            BYTES * (weights + extra),
            result,
        )

    def dense(self, name: str, inside: int, outside: int) -> Layer:
        """A dense layer with bias."""
        weights = float(inside * outside)
        result = self.bytes_of(outside, 1)
        ahead, back = self.product(weights, weights, self.bytes_of(inside, 1) + result)
        return Layer(name, ahead, back, BYTES * (weights + outside), result)

    def pool(self, name: str, channels: int, sides: tuple[int, int]) -> Layer:
        """A pooling layer: reads its input and writes its output, and the other way round."""
        before, after = self.bytes_of(channels, sides[0]), self.bytes_of(channels, sides[1])
        seconds = self.stream(before + after)
        return Layer(name, seconds, seconds, 0.0, after)


def vgg16(batch: int, speed: Speed = V100_PCIE) -> tuple[Layer, ...]:
    """VGG-16's 21 layers: 13 convolutions, 5 poolings, 3 dense layers.

    >>> layers = vgg16(64)
    >>> len(layers), sum(layer.weight_bytes for layer in layers) / 4  # 138,357,544 parameters
    (21, 138357544.0)
    """
    net = _Net(batch, speed)
    layers, channels, side = [], 3, PIXELS
    for block, (width, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for at in range(1, depth + 1):
            name = f"conv{block}_{at}"
            layers.append(net.convolution(name, (channels, width), 3, (side, side)))
            channels = width
        layers.append(net.pool(f"pool{block}", width, (side, side // 2)))
        side //= 2
    layers.append(net.dense("fc6", channels * side * side, 4096))
    layers.append(net.dense("fc7", 4096, 4096))
    layers.append(net.dense("fc8", 4096, 1000))
    return tuple(layers)


def resnet50(batch: int, speed: Speed = V100_PCIE) -> tuple[Layer, ...]:
    """ResNet-50 as a chain of its 16 blocks, with what comes before and after them.

    >>> layers = resnet50(64)
    >>> len(layers), sum(layer.weight_bytes for layer in layers) / 4  # 25,557,032 parameters
    (20, 25557032.0)
    """
    net = _Net(batch, speed)
    layers = [
        net.convolution("conv1", (3, 64), 7, (PIXELS, PIXELS // 2), norm=True),
        net.pool("pool1", 64, (PIXELS // 2, PIXELS // 4)),
    ]
    channels, side = 64, PIXELS // 4
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), 2):
        for at in range(1, depth + 1):
            stride = 2 if at == 1 and stage > 2 else 1
            parts = list(_bottleneck(net, channels, width, side, stride))
            layers.append(_joined(f"conv{stage}_{at}", parts))
            channels, side = 4 * width, side // stride
    layers.append(net.pool("pool5", channels, (side, 1)))
    layers.append(net.dense("fc", channels, 1000))
    return tuple(layers)


def _bottleneck(net: _Net, channels: int, width: int, side: int, stride: int) -> Iterator[Layer]:
    """1x1, 3x3 and 1x1 convolutions, and one on the way around them where shapes change."""
    after = side // stride
    yield net.convolution("a", (channels, width), 1, (side, side), norm=True)
    yield net.convolution("b", (width, width), 3, (side, after), norm=True)
    yield net.convolution("c", (width, 4 * width), 1, (after, after), norm=True)
    if channels != 4 * width:
        yield net.convolution("around", (channels, 4 * width), 1, (side, after), norm=True)


def _joined(name: str, parts: list[Layer]) -> Layer:
    """One layer of several, which hands on what the third puts out."""
    return Layer(
        name,
        sum(part.forward for part in parts),
        sum(part.backward for part in parts),
        sum(part.weight_bytes for part in parts),
        parts[2].output_bytes,
    )
