# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Compares stretto.hooks with parameters on a device to the same hooks on the CPU."""

from __future__ import annotations

from typing import Callable

import torch
import torch.distributed as dist
from device_ranks import SEED_LOCK, Rank
from ranks import refusal
from stretto import hooks
from torch.nn.parallel import DistributedDataParallel


class Branches(torch.nn.Module):
    """Layers with more elements than a hook leaves uncompressed; one layer may be left out of a
    step."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(32, 64)
        self.seldom = torch.nn.Linear(64, 64)
        self.scale = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))
        self.waves = torch.nn.ParameterList(
            torch.full((count,), complex(0.5, 0.5)) for count in (2, 3)
        )
        self.last = torch.nn.Linear(64, 4)

    def forward(self, values: torch.Tensor, all_of_it: bool = True) -> torch.Tensor:
        values = self.first(values).relu()
        if all_of_it:
            values = values + self.seldom(values)
        if values.device != self.scale.device:
            values = values.cpu().to(self.scale.device)  # The double copies only this way.
        waves = torch.stack([(wave * (1 + 2j)).abs().mean() for wave in self.waves])
        return self.last(values) * self.scale * waves.sum()


class Training:
    """Trains in buckets of one layer each, on this rank's share of the data."""

    def __init__(
        self,
        one: Rank,
        device: torch.device,
        hook: hooks.Hook,
        may_leave_out: bool = False,
        last: torch.device | None = None,
    ) -> None:
        with SEED_LOCK:
            torch.manual_seed(1)
            module = Branches()
        if last is not None:
            module.last.to(last)
            module.scale = torch.nn.Parameter(module.scale.to(last))
            module.waves.to(last)
            module.first.to(device), module.seldom.to(device)
        else:
            module.to(device)
        self.model = DistributedDataParallel(
            module,
            process_group=one.group,
            bucket_cap_mb=0.005,
            find_unused_parameters=may_leave_out,
        )
        self.hook = hook.register(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        data = torch.linspace(-1, 1, 24 * 32).reshape(24, 32).sin()
        self.data = data[one.rank :: one.size].to(device)

    def steps(self, count: int, all_of_it: bool = True) -> Training:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(self.data, all_of_it).square().mean().backward()
            self.optimizer.step()
        return self

    def loss(self) -> float:
        """Returns the mean loss over all ranks."""
        mean = self.model(self.data).detach().square().mean()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=self.model.process_group)
        return mean.item()

    def parameters(self) -> torch.Tensor:
        parameters = [each.detach().cpu().flatten() for each in self.model.parameters()]
        return torch.cat([each.to(torch.complex128) for each in parameters])


def codecs(one: Rank) -> list[Callable[[], hooks.Hook]]:
    made: list[Callable[[], hooks.Hook]] = [
        lambda: hooks.top_k(0.05, error_feedback=True),  # It is true by default.
        lambda: hooks.top_k(0.05, values="int8"),
        lambda: hooks.threshold(0.001, values="bf16"),
        lambda: hooks.int8(),
        lambda: hooks.one_bit(),
        lambda: hooks.f16(clip=0.01),
        lambda: hooks.int8(stochastic=True),
        lambda: hooks.power_sgd(2),
    ]
    if one.kind != "stretto":
        made.append(lambda: hooks.int8(exchange="divide"))  # With "stretto", the host does this.
    return made


def assert_same(found: Training, wanted: Training, tolerance: float = 0.0) -> None:
    difference = (found.parameters() - wanted.parameters()).abs().max().item()
    assert difference <= tolerance, (found.hook.name, difference)


def all_ranks_learn_the_same(one: Rank) -> None:
    """This also runs on a GPU, whose gradients differ from the CPU's."""
    for make in (*codecs(one), hooks.f16, hooks.bf16, lambda: hooks.top_k(0.05, momentum=0.5)):
        training = Training(one, one.device, make())
        first = training.loss()
        training.steps(10)
        assert training.loss() < 0.9 * first, (training.hook.name, first, training.loss())
        mean = training.parameters()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=one.group)
        assert torch.allclose(mean, training.parameters(), rtol=1e-12), training.hook.name


def compresses_as_on_the_cpu(one: Rank) -> None:
    for make in codecs(one):
        there = Training(one, one.device, make()).steps(4)
        here = Training(one, torch.device("cpu"), make()).steps(4)
        assert "on a device" in there.hook.name, there.hook.name
        assert_same(there, here, 1e-6 if "power_sgd" in here.hook.name else 0.0)
        step, wanted = there.hook.last_step(), here.hook.last_step()
        assert step["step"] == 4 and step["elements"] == wanted["elements"], (step, wanted)
        assert len(step["choices"]) == len(wanted["choices"]) > 2, (step, wanted)


def halves(one: Rank) -> None:
    for make in (hooks.f16, hooks.bf16):
        there = Training(one, one.device, make()).steps(4)
        here = Training(one, torch.device("cpu"), make()).steps(4)
        assert_same(there, here, 2e-4)
        assert there.hook.name.endswith(" on a device") and there.hook.last_step() == {}
        assert there.hook.save() == here.hook.save()
    large = Training(one, one.device, hooks.f16())
    large.data.mul_(1e6)
    large.model(large.data).square().mean().backward()  # The gradients overflow.
    assert not large.model.module.first.weight.grad.cpu().isfinite().all()


def goes_on(one: Rank) -> None:
    """Training continues after a state was saved on the device or on the CPU, or the hook was moved
    to another model."""
    for make in (*codecs(one)[::3], *codecs(one)[7:]):  # Sparse, dense, drawn, low rank, divided.
        through = Training(one, one.device, make()).steps(5)
        saved = Training(one, one.device, make()).steps(3)
        again = make()
        again.load(saved.hook.save())
        assert again.save() == saved.hook.save()
        resumed = Training(one, one.device, again)
        resumed.model.load_state_dict(saved.model.state_dict())
        assert again.save() == saved.hook.save()
        assert_same(resumed.steps(2), through)
        wrapped = Training(one, one.device, saved.hook)
        wrapped.model.load_state_dict(saved.model.state_dict())
        assert_same(wrapped.steps(2), through)
        elsewhere = Training(one, torch.device("cpu"), make()).steps(3)
        moved = Training(one, one.device, elsewhere.hook)
        moved.model.load_state_dict(elsewhere.model.state_dict())
        moved.steps(1)
        back = Training(one, torch.device("cpu"), moved.hook)
        back.model.load_state_dict(moved.model.state_dict())
        assert_same(back.steps(1), through, 1e-6 if "power_sgd" in make().name else 0.0)


def what_nobody_has_used_waits(one: Rank) -> None:
    for make in (lambda: hooks.top_k(0.05), lambda: hooks.power_sgd(2)):
        later = Training(one, one.device, make(), may_leave_out=True)
        here = Training(one, torch.device("cpu"), make(), may_leave_out=True)
        for training in (later, here):
            training.steps(2).steps(2, all_of_it=False).steps(2)
        assert_same(later, here, 1e-6 if "power_sgd" in here.hook.name else 0.0)


def the_host_does_the_rest(one: Rank) -> None:
    """Hooks that compress only on the CPU, with a model on one device or on several."""
    cpu = torch.device("cpu")
    makes: list[Callable[[], hooks.Hook]] = [
        lambda: hooks.top_k(0.05, momentum=0.9),
        lambda: hooks.int8(min_elements=10),
        lambda: hooks.int8(rules=[("first.*", None)]),
        lambda: hooks.top_k(0.05, exact=False),
        lambda: hooks.top_k(0.05, exchange="combine"),
        lambda: hooks.threshold(0.001, exchange="divide"),
    ]
    for make in makes:
        there, here = (Training(one, device, make()).steps(4) for device in (one.device, cpu))
        assert there.hook.name == here.hook.name
        assert_same(there, here)
        assert there.hook.save() == here.hook.save()
    if one.kind == "stretto":  # Others get no tensors outside their devices.
        last = torch.device(one.device.type, one.device.index + one.size)
        for make in (hooks.int8, hooks.f16):
            apart = Training(one, one.device, make(), last=last).steps(4)
            assert_same(apart, Training(one, cpu, make()).steps(4))


def a_hook_that_is_refused_stays_where_it_is(one: Rank) -> None:
    for device in (torch.device("cpu"), one.device):
        first = Training(one, device, hooks.int8()).steps(1)
        other = first.hook if one.rank == 0 else hooks.f16()
        layer = torch.nn.Linear(40, 40).to(one.device)
        model = DistributedDataParallel(layer, process_group=one.group)
        said = refusal(lambda: other.register(model))
        assert "f16 on a device" in said and "int8" in said, said
        first.steps(1)


ON_DOUBLES = (
    all_ranks_learn_the_same,
    compresses_as_on_the_cpu,
    halves,
    goes_on,
    what_nobody_has_used_waits,
    the_host_does_the_rest,
    a_hook_that_is_refused_stays_where_it_is,
)
