# SPDX-License-Identifier: Apache-2.0
"""The trainer's networks, of all workers side by side (learning/transformer.cpp, classifiers.cpp, resnets.cpp).

A parameter has the workers as its first dimension, so one product of batches of matrices, or one convolution in groups,
computes what all of them do, and the gradient of the sum of their losses holds each worker's own. The modules are made in
the trainer's order, and so draw the trainer's first weights.
"""

import math

import torch
from torch import nn
from torch.nn import functional

CHARACTERS, WIDTH, HEADS, BLOCKS = 256, 256, 4, 4
DEVIATION = 0.02  # of the transformer's first weights


def _linear(p, name, x):
    """Workers x samples x features."""
    return torch.baddbmm(p[f"{name}.bias"].unsqueeze(1), x, p[f"{name}.weight"].transpose(1, 2))


def _layer_norm(p, name, x):
    return functional.layer_norm(x, x.shape[-1:]) * p[f"{name}.weight"].unsqueeze(1) + p[f"{name}.bias"].unsqueeze(1)


class Transformer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.length, = shape
        self.characters = nn.Embedding(CHARACTERS, WIDTH)
        self.positions = nn.Parameter(DEVIATION * torch.randn(self.length, WIDTH))
        self.blocks = nn.ModuleList()
        self.norm = nn.LayerNorm(WIDTH)
        self.head = self._small(WIDTH, CHARACTERS)
        with torch.no_grad():
            self.characters.weight.normal_(0, DEVIATION)
        into_sum = DEVIATION / math.sqrt(2 * BLOCKS)
        for _ in range(BLOCKS):
            block = nn.Module()
            block.norm1 = nn.LayerNorm(WIDTH)
            block.qkv = self._small(WIDTH, 3 * WIDTH)
            block.attended = self._small(WIDTH, WIDTH, into_sum)
            block.norm2 = nn.LayerNorm(WIDTH)
            block.mlp1 = self._small(WIDTH, 4 * WIDTH)
            block.mlp2 = self._small(4 * WIDTH, WIDTH, into_sum)
            self.blocks.append(block)

    @staticmethod
    def _small(inputs, outputs, deviation=DEVIATION):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.normal_(0, deviation)
            layer.bias.zero_()
        return layer

    def logits(self, p, buffers, characters, training):
        """`characters`: workers x samples x length. Returns workers x (samples * length) x 256."""
        workers, samples, length = characters.shape
        # A table that is looked up in by a product: its gradient is one, too, without atomics.
        alphabet = torch.arange(CHARACTERS, device=characters.device)
        chosen = (characters.reshape(workers, -1, 1) == alphabet).float()
        x = torch.bmm(chosen, p["characters.weight"]).view(workers, samples, length, WIDTH)
        x = (x + p["positions"].unsqueeze(1)).view(workers, -1, WIDTH)
        ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for k in range(BLOCKS):
            name = f"blocks.{k}"
            heads = self._attend(_linear(p, f"{name}.qkv", _layer_norm(p, f"{name}.norm1", x)), samples, ahead)
            x = x + _linear(p, f"{name}.attended", heads)
            inner = functional.gelu(_linear(p, f"{name}.mlp1", _layer_norm(p, f"{name}.norm2", x)))
            x = x + _linear(p, f"{name}.mlp2", inner)
        return _linear(p, "head", _layer_norm(p, "norm", x))

    @staticmethod
    def _attend(qkv, samples, ahead):
        workers, length, of_head = len(qkv), len(ahead), WIDTH // HEADS
        q, k, v = qkv.view(workers * samples, length, 3, HEADS, of_head).permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-2, -1)) * of_head ** -0.5
        weights = scores.masked_fill(ahead, -math.inf).softmax(-1)
        return torch.matmul(weights, v).transpose(1, 2).reshape(workers, -1, WIDTH)


def _side_by_side(images):
    """Workers x samples x channels x ..., as samples x (workers * channels) x ..."""
    return images.transpose(0, 1).flatten(1, 2)


def _features(x, workers):
    """Samples x (workers * features), as workers x samples x features."""
    return x.view(len(x), workers, -1).transpose(0, 1)


def _conv(p, name, x, **keywords):
    weight = p[f"{name}.weight"]
    bias = p[f"{name}.bias"].flatten() if f"{name}.bias" in p else None
    return functional.conv2d(x, weight.flatten(0, 1), bias, groups=len(weight), **keywords)


class LeNet(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        channels, height, width = shape
        after = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        self.conv1 = nn.Conv2d(channels, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(50 * math.prod(after), 500)
        self.fc2 = nn.Linear(500, classes)

    def logits(self, p, buffers, images, training):
        x = _side_by_side(images)
        for name in ("conv1", "conv2"):
            x = functional.max_pool2d(_conv(p, name, x), 2).relu()
        return _linear(p, "fc2", _linear(p, "fc1", _features(x, len(images))).relu())


class ResNet20(nn.Module):
    WIDTHS, BLOCKS = (16, 32, 64), 3

    def __init__(self, shape, classes):
        super().__init__()
        self.conv = self._conv_of(shape[0], self.WIDTHS[0], 3, 1)
        self.norm = nn.BatchNorm2d(self.WIDTHS[0])
        self.blocks = nn.Sequential()
        self.fc = nn.Linear(self.WIDTHS[-1], classes)
        inputs = self.WIDTHS[0]
        for stage, width in enumerate(self.WIDTHS):
            for k in range(self.BLOCKS):
                self.blocks.append(self._block(inputs, width, 2 if stage > 0 and k == 0 else 1))
                inputs = width

    @staticmethod
    def _conv_of(inputs, outputs, size, stride):
        return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)

    def _block(self, inputs, width, stride):
        block = nn.Module()
        block.conv1, block.norm1 = self._conv_of(inputs, width, 3, stride), nn.BatchNorm2d(width)
        block.conv2, block.norm2 = self._conv_of(width, width, 3, 1), nn.BatchNorm2d(width)
        if stride != 1 or inputs != width:
            block.shortcut = nn.Sequential(self._conv_of(inputs, width, 1, stride), nn.BatchNorm2d(width))
        return block

    def logits(self, p, buffers, images, training):
        def norm(name, x):
            mean, variance = (buffers[f"{name}.running_{what}"].view(-1) for what in ("mean", "var"))
            return functional.batch_norm(x, mean, variance, p[f"{name}.weight"].flatten(), p[f"{name}.bias"].flatten(), training)

        x = norm("norm", _conv(p, "conv", _side_by_side(images), padding=1)).relu()
        for k in range(len(self.blocks)):
            name, straight = f"blocks.{k}", x
            stride = 2 if f"{name}.shortcut.0.weight" in p else 1
            if stride == 2:
                straight = norm(f"{name}.shortcut.1", _conv(p, f"{name}.shortcut.0", x, stride=2))
            x = norm(f"{name}.norm1", _conv(p, f"{name}.conv1", x, stride=stride, padding=1)).relu()
            x = (norm(f"{name}.norm2", _conv(p, f"{name}.conv2", x, padding=1)) + straight).relu()
        return _linear(p, "fc", _features(x.mean((2, 3)), len(images)))


class Fleet:
    """A network of `workers`, whose gradients stand in one array: workers x parameters.

    `weights` is copies x parameters: one copy that all workers have, or one a worker.
    """

    def __init__(self, model, data, workers, copies, seed, device):
        torch.manual_seed(seed)
        if model == "transformer":
            self.network = Transformer(data.shape)
        else:
            self.network = {"lenet": LeNet, "resnet20": ResNet20}[model](data.shape, data.classes)
        self.workers = workers
        self.layers = {name: tuple(parameter.shape) for name, parameter in self.network.named_parameters()}
        first = torch.cat([parameter.detach().flatten() for parameter in self.network.parameters()])
        self.weights = first.to(device).repeat(copies, 1)
        self.gradients = torch.zeros(workers, self.weights.shape[1], device=device)
        self.buffers = {name: buffer.to(device).repeat(workers, 1) for name, buffer in self.network.named_buffers()
                        if buffer.is_floating_point()}

    def views(self, flat):
        """Of copies x parameters: each layer, copies x its shape."""
        parts = flat.split([math.prod(shape) for shape in self.layers.values()], 1)
        return {name: part.view(len(flat), *shape) for (name, shape), part in zip(self.layers.items(), parts)}

    def back_propagate(self, inputs, targets):
        """Fills `gradients`, and returns the workers' losses."""
        leaves = {name: part.expand(self.workers, *part.shape[1:]).detach().requires_grad_()
                  for name, part in self.views(self.weights).items()}
        logits = self.network.logits(leaves, self.buffers, inputs, True).flatten(0, 1)
        losses = functional.cross_entropy(logits, targets.flatten(), reduction="none").view(self.workers, -1).mean(1)
        found = torch.autograd.grad(losses.sum(), list(leaves.values()))
        torch.cat([gradient.reshape(self.workers, -1) for gradient in found], 1, out=self.gradients)
        return losses.detach()

    @torch.no_grad()
    def predict(self, inputs):
        """By the first copy and the mean of the workers' running statistics; one row a prediction."""
        buffers = {name: buffer.mean(0, keepdim=True) for name, buffer in self.buffers.items()}
        return self.network.logits(self.views(self.weights[:1]), buffers, inputs.unsqueeze(0), False).flatten(0, 1)
