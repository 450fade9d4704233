"""VGG-19 and ResNet-152 layer by layer, and what a layer costs on a GPU in fp32.

A layer's time is its FLOPs over the speed at which the GPU has been seen to train ResNet-152, three
forwards for a training step. Sources: Simonyan and Zisserman, "Very Deep Convolutional Networks for
Large-Scale Image Recognition", ICLR 2015, Table 1, column E; He et al., "Deep Residual Learning for
Image Recognition", CVPR 2016, Table 1.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simulator.costs import Costs, uniform
from simulator.job import GPU
from simulator.schedule import Kind

__all__ = ["ConvLayer", "convnet_costs", "resnet152", "training_speed", "vgg19"]

FP32 = 4  # bytes of one element
STEP = 3  # forwards that a training step is worth: backward for input and weights, one each

# ResNet-152 in training, images/s in fp32 on one GPU under TensorFlow 1.12, and the fp32 peak of
# the GPU that it was measured on. Source: Lambda, "RTX 2080 Ti Deep Learning Benchmarks with
# TensorFlow", 2019. The last two GPUs are not in it: RTX 2080 and GTX 1080 Ti, the same
# architectures, lend them their share of the peak.
MEASURED = {
    "TITAN V": (107.0, 14.9e12),
    "TITAN RTX": (129.0, 16.3e12),
    "GeForce RTX 2060": (83.0, 10.1e12),
    "Quadro P4000": (81.0, 11.3e12),
}


class ConvLayer(NamedTuple):
    """A layer, or a residual block, of one image."""

    name: str
    flops: float  # of the forward, two for each multiply-add [FLOP]
    parameters: int  # [1]
    output: int  # elements handed to the next layer [1]
    kept: int  # elements kept from the forward to the backward [1]


def vgg19() -> tuple[ConvLayer, ...]:
    """VGG-19 on 224 x 224 images: 16 convolutions, each with the pool behind it, and 3 products.

    >>> sum(layer.parameters for layer in vgg19())
    143667240
    >>> round(sum(layer.flops for layer in vgg19()) / 2e9, 1)  # 1e9 multiply-adds
    19.6
    """
    layers: list[ConvLayer] = []
    channels, side = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for at in range(count):
            flops, parameters = _convolution(3, channels, width, side)
            output = kept = width * side**2  # after bias and ReLU, in place
            if at == count - 1:
                side //= 2
                output = width * side**2
                kept += output
            name = f"conv {len(layers) + 1}"
            layers.append(ConvLayer(name, flops, parameters + width, output, kept))
            channels = width
    inputs = channels * side**2
    for at, width in enumerate((4096, 4096, 1000)):
        product = 2.0 * inputs * width
        layers.append(ConvLayer(f"fc {at + 1}", product, (inputs + 1) * width, width, width))
        inputs = width
    return tuple(layers)


def resnet152() -> tuple[ConvLayer, ...]:
    """ResNet-152 on 224 x 224 images: the stem, 50 residual blocks, and the head.

    Each convolution is followed by a batch normalisation, so its output and the ReLU's are kept.

    >>> sum(layer.parameters for layer in resnet152())
    60192808
    >>> round(sum(layer.flops for layer in resnet152()) / 2e9, 1)  # Table 1: 11.3e9 multiply-adds
    11.3
    """
    flops, parameters = _convolution(7, 3, 64, 112)
    pooled = 64 * 56**2
    stem = ConvLayer("stem", flops, parameters + 2 * 64, pooled, 2 * 64 * 112**2 + pooled)
    layers, channels = [stem], 64
    for stage, (width, count) in enumerate(((64, 3), (128, 8), (256, 36), (512, 3))):
        side = 56 >> stage
        for at in range(count):
            layers.append(_block(f"block {len(layers)}", channels, width, side, first=at == 0))
            channels = 4 * width
    head = 2.0 * channels * 1000
    layers.append(ConvLayer("head", head, (channels + 1) * 1000, 1000, channels + 1000))
    return tuple(layers)


def training_speed(gpu: GPU) -> float:
    """FLOP/s at which a GPU trains a convolutional network in fp32.

    Raises:
        ValueError: no measurement is known for the GPU, or its fp32 peak is missing.
    """
    if gpu.name not in MEASURED or "fp32" not in gpu.peak_flops:
        raise ValueError(
            f"the speed of {gpu.name} on convolutions in fp32 is not known; "
            f"use one of {', '.join(MEASURED)}"
        )
    rate, peak = MEASURED[gpu.name]
    work = STEP * sum(layer.flops for layer in resnet152())
    return rate * work / peak * gpu.peak_flops["fp32"]


def convnet_costs(layers: tuple[ConvLayer, ...], gpu: GPU, batch: int) -> Costs:
    """Costs with one stage for each layer, of a minibatch of `batch` images on one GPU in fp32.

    A backward takes twice its forward. Weights and their gradients are on the GPU; the optimizer's
    state is on the parameter server.
    """
    flops = np.array([layer.flops for layer in layers])
    forward = batch * flops / training_speed(gpu)
    seconds = np.zeros((len(Kind), len(layers)))
    seconds[Kind.F], seconds[Kind.B] = forward, (STEP - 1) * forward
    seconds[Kind.I] = seconds[Kind.W] = forward
    weights = FP32 * np.array([layer.parameters for layer in layers], float)
    kept = FP32 * batch * np.array([layer.kept for layer in layers], float)
    return replace(
        uniform(len(layers), 1.0, 2.0),
        seconds=seconds,
        boundary_bytes=FP32 * batch * np.array([layer.output for layer in layers], float),
        reduce_bytes=weights,
        weight_bytes=weights,
        gradient_bytes=weights,
        activation_bytes=kept,
        input_grad_bytes=np.zeros(len(layers)),
    )


def _convolution(kernel: int, inputs: int, outputs: int, side: int) -> tuple[float, int]:
    """FLOPs of one image and weights of a convolution whose output is side x side."""
    weights = kernel**2 * inputs * outputs
    return 2.0 * weights * side**2, weights


def _block(name: str, inputs: int, width: int, side: int, *, first: bool) -> ConvLayer:
    """A bottleneck: 1 x 1, 3 x 3, 1 x 1 convolutions; a stage's first one projects its input."""
    parts = [(1, inputs, width), (3, width, width), (1, width, 4 * width)]
    if first:
        parts.append((1, inputs, 4 * width))
    sizes = [_convolution(*part, side) for part in parts]
    outputs = [outputs for _, _, outputs in parts]
    parameters = sum(weights for _, weights in sizes) + 2 * sum(outputs)  # and of normalisations
    kept = (2 * sum(outputs[:3]) + sum(outputs[3:])) * side**2
    return ConvLayer(name, sum(flops for flops, _ in sizes), parameters, 4 * width * side**2, kept)
