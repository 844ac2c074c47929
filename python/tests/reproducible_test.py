# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Tests that stretto.ReproducibleGradients gives the same bits with any number of ranks."""

from __future__ import annotations

import math
import unittest

import ranks
import torch
from ranks import refusal
from torch import nn

import stretto

MICRO_BATCHES = 7


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def trained(rank: int, size: int) -> list[list[float]]:
    """Returns the parameters after some steps."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    gradients = stretto.ReproducibleGradients(model.parameters())
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(MICRO_BATCHES, 5, 6, generator=generator) * 3
        optimizer.zero_grad()
        for part in batch[rank::size]:
            model(part).square().mean().backward()
            gradients.add()
        assert gradients.reduce() == MICRO_BATCHES
        optimizer.step()
    return [each.detach().flatten().tolist() for each in model.parameters()]


class ReproducibleTest(unittest.TestCase):
    def test_training_has_the_same_bits_on_any_number_of_ranks(self) -> None:
        expected = ranks.with_group(trained, 1)[0]
        for size in (2, 3, 4):
            for found in ranks.with_group(trained, size):
                self.assertEqual(found, expected, size)

    def test_means(self) -> None:
        def body(rank: int, size: int) -> None:
            unused, used, half = torch.zeros(2), torch.zeros(2, 3), torch.zeros(3).bfloat16()
            gradients = stretto.ReproducibleGradients([unused, used, half, used])
            for _ in range(rank):
                used.grad = torch.full((2, 3), 0.1)
                half.grad = torch.ones(3).bfloat16()
                gradients.add()
                assert used.grad is None
            assert gradients.reduce() == 3  # Rank 1 has added once, rank 2 twice.
            assert unused.grad is None
            assert torch.equal(used.grad, torch.full((2, 3), 0.1))
            assert torch.equal(half.grad, torch.ones(3).bfloat16())

        ranks.with_group(body, 3)

    def test_what_has_no_integers_makes_all_nan(self) -> None:
        def body(rank: int, size: int) -> None:
            parameters = [torch.zeros(2), torch.zeros(3)]
            gradients = stretto.ReproducibleGradients(parameters)
            for value in (2.0**24, math.inf, math.nan, 1.0):
                for each in parameters:
                    each.grad = torch.ones_like(each)
                if rank == 1:
                    parameters[1].grad[2] = value
                gradients.add()
                gradients.reduce()
                for each in parameters:
                    assert each.grad.isnan().all() == (value != 1), each.grad

        ranks.with_group(body, 2)

    def test_refusals(self) -> None:
        def body(rank: int, size: int) -> None:
            text = refusal(lambda: stretto.ReproducibleGradients([torch.zeros(2).double()]))
            assert "parameter 0 is not a dense tensor of float32, float16 or bfloat16" in text
            elsewhere = [torch.zeros(2), torch.zeros(2, device="meta")]
            text = refusal(lambda: stretto.ReproducibleGradients(elsewhere))
            assert "parameter 1 is on another device than the first" in text
            parameter = torch.zeros(2, 2)
            gradients = stretto.ReproducibleGradients([parameter])
            parameter.grad = torch.ones(2, 2).to_sparse()
            assert "the gradient of parameter 0 is sparse" in refusal(gradients.add)
            parameter.grad = torch.ones(2, 2)
            gradients.add()
            gradients.reduce()
            parameter.grad += 1
            assert "that of the last reduce()" in refusal(gradients.add)

        ranks.with_group(body, 1)

    def test_ranks_with_other_parameters(self) -> None:
        def body(rank: int, size: int) -> None:
            parameters = [torch.zeros(5 + rank), torch.zeros(2)]
            text = refusal(lambda: stretto.ReproducibleGradients(parameters))
            assert "rank 1 has other parameters than rank 0" in text
            parameters = [torch.zeros(2, dtype=torch.float64 if rank == 1 else torch.float32)]
            text = refusal(lambda: stretto.ReproducibleGradients(parameters))
            assert "rank 1: parameter 0 is not a dense tensor" in text

        ranks.with_group(body, 2)

    def test_the_layout_is_that_of_the_parameter(self) -> None:
        def body(rank: int, size: int) -> None:
            parameter = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
            gradients = stretto.ReproducibleGradients([parameter])
            parameter.grad = torch.arange(120.0).view(2, 3, 4, 5)
            gradients.add()
            gradients.reduce()
            assert torch.equal(parameter.grad, torch.arange(120.0).view(2, 3, 4, 5))
            assert parameter.grad.stride() == parameter.stride()

        ranks.with_group(body, 2)
