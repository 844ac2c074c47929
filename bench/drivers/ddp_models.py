# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The models of bench/drivers/ddp_models.h in Python: same order, same numbers, same bits."""

import math

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        for i in range(4):
            setattr(self, f"layer{i}", nn.Linear(width, width))

    def forward(self, x):
        x = self.layer0(x)
        for i in range(1, 4):
            x = getattr(self, f"layer{i}")(torch.relu(x))
        return x


def convolution(inputs, outputs, size, stride):
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = None
        if stride != 1 or inputs != outputs:
            self.shortcut = convolution(inputs, outputs, 1, stride)
            self.shortcut_norm = nn.BatchNorm2d(outputs)

    def forward(self, x):
        inside = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inside + (self.shortcut_norm(self.shortcut(x)) if self.shortcut else x))


class ResNet(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.stem = convolution(3, channels, 7, 2)
        self.norm = nn.BatchNorm2d(channels)
        blocks, inputs = [], channels
        for stage in range(4):
            outputs = channels << stage
            blocks.append(Residual(inputs, outputs, 1 if stage == 0 else 2))
            blocks.append(Residual(outputs, outputs, 1))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(channels * 8, classes)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.last(self.blocks(x).flatten(2).mean(2))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape

        def split(part):
            return part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        queries, keys, values = self.qkv(self.norm1(x)).chunk(3, -1)
        scores = split(queries).matmul(split(keys).transpose(-2, -1))
        scores = scores / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = torch.softmax(scores.masked_fill(future, -1e9), -1)
        seen = scores.matmul(split(values)).transpose(1, 2)
        x = x + self.projection(seen.reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, words, context, width, heads, blocks):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.last = nn.Linear(width, words, bias=False)

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.last(self.blocks(x)).flatten(0, 1)


class Crumbs(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.crumbs = nn.ParameterList([nn.Parameter(torch.randn(16)) for _ in range(count)])

    def forward(self, x):
        return torch.stack(list(self.crumbs)) * x


def make_model(name, small):
    torch.manual_seed(1)
    if name == "mlp":
        return Mlp(32 if small else 1024)
    if name == "resnet":
        return ResNet(4 if small else 64, 16 if small else 1000)
    if name == "transformer":
        return Transformer(64, 8, 16, 2, 1) if small else Transformer(2048, 64, 256, 8, 4)
    return Crumbs(50 if small else 1000)


def make_batch(name, small, rank):
    """Returns the inputs and targets of a rank, the same in every step."""
    torch.manual_seed(100 + rank)
    if name == "mlp":
        width, examples = (32, 8) if small else (1024, 64)
        return torch.randn(examples, width), torch.randint(0, width, (examples,))
    if name == "resnet":
        image, examples, classes = (32, 4, 16) if small else (64, 8, 1000)
        return torch.randn(examples, 3, image, image), torch.randint(0, classes, (examples,))
    if name == "transformer":
        words, context = (64, 8) if small else (2048, 64)
        return torch.randint(0, words, (4, context)), torch.randint(0, words, (4 * context,))
    return torch.randn(16), torch.randint(0, 16, (50 if small else 1000,))
