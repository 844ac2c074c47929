# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The models that bench_backend.py trains."""

from __future__ import annotations

import torch
from torch import nn


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
        self.embedding = nn.Embedding(1000, 128)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layers(self.embedding(tokens))


class Block(nn.Module):
    """A block of a ResNet: two convolutions and the shortcut around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.around = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return (self.through(images) + self.around(images)).relu()


def resnet18() -> nn.Module:
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    for inner, outer, stride in [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]:
        layers += [Block(inner, outer, stride), Block(outer, outer, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def models(wanted: str) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(),
                        nn.Linear(1024, 512))
    known = {
        "mlp": (mlp, torch.randn(16, 512)),
        "resnet18": (resnet18(), torch.randn(2, 3, 32, 32)),
        "transformer": (Transformer(), torch.randint(0, 1000, (2, 32))),
    }
    return {name: known[name] for name in wanted.split(",")}
