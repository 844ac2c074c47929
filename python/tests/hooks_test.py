# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Training with PyTorch's DistributedDataParallel and compressed gradients."""

from __future__ import annotations

import copy
import datetime
import io
import os
import tempfile
import time
import unittest

import ranks
import torch
import torch.distributed as dist
from ranks import refusal
from stretto import hooks
from torch.nn.parallel import DistributedDataParallel


class Training:
    """Trains a small network in buckets of one layer each, on this rank's half of the data."""

    def __init__(self, rank: int, hook: hooks.Hook | None = None,
                 group: dist.ProcessGroup | None = None) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32),
                  torch.nn.Tanh(), torch.nn.Linear(32, 4)]  # fmt: skip
        self.model = DistributedDataParallel(
            torch.nn.Sequential(*layers), bucket_cap_mb=0.01, process_group=group)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.hook = hook.register(self.model) if hook else None
        inputs = torch.randn(64, 32)
        self.data = inputs[rank::2]
        self.targets = (inputs @ torch.randn(32, 4)).tanh()[rank::2]

    def steps(self, count: int) -> float:
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = (self.model(self.data) - self.targets).square().mean()
            loss.backward()
            self.optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return mean.item()

    def parameters(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


class Mixed(torch.nn.Module):
    """A module with parameters of three types, which share no bucket."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.waves = torch.nn.Parameter(torch.randn(2, 2000, dtype=torch.complex64))
        self.short = torch.nn.Parameter(torch.randn(2000).to(torch.bfloat16))
        self.plain = torch.nn.Parameter(torch.randn(2000))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return ((self.waves * values).abs() + self.short + self.plain).square().mean()


def two_backwards(model: DistributedDataParallel, rank: int) -> None:
    """Runs two backward passes of a model of Mixed."""
    for _ in range(2):
        model.zero_grad()
        model(torch.full((2000,), rank + 1.0)).backward()


def all_equal(values: torch.Tensor) -> bool:
    least, most = values.clone(), values.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return torch.equal(least, most)


def lossy() -> list[hooks.Hook]:
    return [hooks.top_k(0.05, min_elements=100), hooks.top_k(0.05, min_elements=100, exact=False),
            hooks.threshold(0.001, values="bf16"), hooks.int8(), hooks.one_bit(),
            hooks.int8(exchange="divide"), hooks.threshold(0.001, exchange="combine"),
            hooks.power_sgd(2, dense_steps=2)]  # fmt: skip


class HooksTest(unittest.TestCase):
    def test_a_failure_in_a_hook_is_one_of_the_group(self) -> None:
        """The failure is recorded, although no operation of PyTorch's was called."""

        def body(rank: int, size: int, path: str) -> None:
            os.environ["TORCH_FR_DUMP_TEMP_FILE"] = f"{folder}/rank_"
            ranks.start(path, rank, size)
            training = Training(rank, hooks.int8())
            training.steps(2)  # After the second step, PyTorch no longer rebuilds buckets.
            if rank == 1:
                os._exit(9)
            assert "rank 1" in ranks.failure(lambda: training.steps(1))
            assert os.listdir(folder) == ["rank_0"]

        with tempfile.TemporaryDirectory() as folder:
            ranks.run(body, deaths=1)

    def test_as_good_as_dense(self) -> None:
        def body(rank: int, size: int) -> None:
            dense = Training(rank)
            first, last = dense.steps(1), dense.steps(99)
            for hook, tolerance in ((hooks.top_k(1.0), 1e-5), (hooks.f16(), 1e-2),
                                    (hooks.bf16(), 5e-2)):  # fmt: skip
                other = Training(rank, hook)
                other.steps(100)
                difference = (other.parameters() - dense.parameters()).abs().max()
                assert difference < tolerance, (hook.name, difference)
                assert all_equal(other.parameters()), hook.name
            for hook in lossy():
                other = Training(rank, hook)
                found = other.steps(100)
                assert found < last + 0.2 * (first - last), (hook.name, first, last, found)
                assert all_equal(other.parameters()), hook.name
            sparse = hooks.top_k(0.05, min_elements=100)
            lost = hooks.top_k(0.05, min_elements=100, error_feedback=False)
            assert Training(rank, sparse).steps(100) < Training(rank, lost).steps(100)

        ranks.with_group(body)

    def test_goes_on_where_it_was_saved(self) -> None:
        def body(rank: int, size: int) -> None:
            for hook, again in zip(lossy(), lossy()):
                through = Training(rank, hook)
                through.steps(3)
                resumed = Training(rank)
                again.load(hook.save())
                resumed.model.module.load_state_dict(through.model.module.state_dict())
                again.register(resumed.model)
                through.steps(3)
                resumed.steps(3)
                assert torch.equal(resumed.parameters(), through.parameters()), hook.name
                assert again.save() == hook.save(), hook.name

        ranks.with_group(body)

    def test_a_model_can_be_copied_and_saved_whole(self) -> None:
        def body(rank: int, size: int) -> None:
            rules = [("2.*", hooks.int8()), ("*.bias", None)]
            hook = hooks.top_k(0.05, min_elements=100, rules=rules)
            training = Training(rank, copy.deepcopy(hook))
            training.steps(1)
            file = io.BytesIO()
            torch.save(training.model, file)
            file.seek(0)
            for model in (copy.deepcopy(training.model), torch.load(file, weights_only=False)):
                [(reduce, _)] = model._comm_hooks
                assert reduce.__self__.name == training.hook.name
                assert reduce.__self__.save() == training.hook.save()
                model(training.data).sum().backward()  # The copy has no hook registered.
                assert all_equal(model.module[0].weight.grad)
            training.steps(1)
            assert training.hook.last_step()["step"] == 2
            assert all_equal(training.parameters())

        ranks.with_group(body)

    def test_the_timeout_that_the_group_has_now_holds(self) -> None:
        def body(rank: int, size: int) -> None:
            training = Training(rank, hooks.top_k(0.05, min_elements=100))
            training.steps(1)
            short = datetime.timedelta(seconds=1)
            dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(short)
            began = time.monotonic()
            said = ranks.first(lambda: refusal(lambda: training.steps(1)))
            if rank == 0:
                assert "rank 1" in said, said
            else:
                refusal(lambda: training.steps(1))
            assert time.monotonic() - began < 4

        ranks.with_group(body)

    def test_goes_on_with_another_number_of_ranks(self) -> None:
        def body(rank: int, size: int) -> None:
            both = hooks.top_k(0.05, min_elements=100)
            Training(rank, both).steps(3)
            states: list[bytes] = [b""] * size
            dist.all_gather_object(states, both.save())
            [together] = hooks.redistribute(states, 1)
            alone = [dist.new_group([each]) for each in range(size)][rank]
            wrong, hook = (hooks.top_k(0.05, min_elements=100) for _ in range(2))
            wrong.load(states[rank])
            assert "of 2" in refusal(lambda: Training(rank, wrong, alone))
            hook.load(together)
            assert hook.save() == together
            Training(rank, hook, alone).steps(3)
            assert hook.save() != together
            assert "no saved state" in refusal(lambda: hooks.redistribute([together[:9]], 2))

        ranks.with_group(body)

    def test_tells_what_a_step_has_sent(self) -> None:
        def body(rank: int, size: int) -> None:
            hook = hooks.top_k(0.05, min_elements=100, measure_norms=True)
            training = Training(rank, hook)
            training.steps(2)
            step = hook.last_step()
            assert step["step"] == 2 and step["compressed"], step
            assert step["elements"] == 32 * 64 + 64 * 32 + 4 * 32, step
            assert step["sent_values"] == 2 * 103 + 7, step
            assert 0 < step["message_bytes"] < step["gradient_bytes"] / 10, step
            assert step["residual_norm"] > 0 and step["encode_seconds"] > 0, step
            assert step["measured"] is None, step
            choices = [(each["compressed"], each["reason"]) for each in step["choices"]]
            assert choices and set(choices) == {(True, "always")}, step
            tried = hooks.top_k(0.05, min_elements=100, automatic=True)
            Training(rank, tried).steps(17)
            measured = tried.last_step()["measured"]
            kinds = {"dense_seconds", "codec_seconds", "other_seconds", "saved_seconds"}
            assert set(measured) == kinds and measured["codec_seconds"] > 0, measured
            halved = hooks.f16()
            Training(rank, halved).steps(1)
            assert halved.last_step() == {}
            kept = hooks.f16(clip=0.001, measure_norms=True)
            Training(rank, kept).steps(2)
            assert kept.last_step()["residual_norm"] > 0.01, kept.last_step()
            ruled = hooks.top_k(0.05, rules=[("2.*", hooks.int8()), ("*.weight", None)])
            Training(rank, ruled).steps(1)
            assert ruled.last_step()["elements"] == 64 * 32 + 32, ruled.last_step()

        ranks.with_group(body)

    def test_what_nobody_has_used_waits(self) -> None:
        class Branches(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.always, self.seldom = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

            def forward(self, values: torch.Tensor, both: bool) -> torch.Tensor:
                result = self.always(values)
                return result + self.seldom(values) if both else result

        def gradient(rank: int, hook: hooks.Hook, uses: list[bool]) -> torch.Tensor:
            torch.manual_seed(1)
            model = DistributedDataParallel(Branches(), find_unused_parameters=True)
            hook.register(model)
            values = torch.randn(8, 32) + rank
            for both in uses:
                model.zero_grad()
                model(values, both).square().sum().backward()
            found = model.module.seldom.weight.grad
            assert found is not None
            return found

        def body(rank: int, size: int) -> None:
            for make in (lambda: hooks.top_k(0.1), lambda: hooks.top_k(0.1, momentum=0.9),
                         lambda: hooks.power_sgd(2)):  # fmt: skip
                through = gradient(rank, make(), [True, True])
                later = gradient(rank, make(), [True, False, False, True])
                assert torch.equal(later, through), make().name

        ranks.with_group(body)

    def test_parameters_of_other_types_travel_as_they_are(self) -> None:
        def body(rank: int, size: int) -> None:
            dense, other = (DistributedDataParallel(Mixed()) for _ in range(2))
            hook = hooks.top_k(0.1).register(other)
            for model in (dense, other):
                two_backwards(model, rank)
            assert hook.last_step()["elements"] == 2000, hook.last_step()
            for name in ("waves", "short"):
                found = getattr(other.module, name).grad
                assert torch.equal(found, getattr(dense.module, name).grad), name

        ranks.with_group(body)

    def test_all_buckets_of_a_static_graph_are_reduced(self) -> None:
        """In the first backward pass, PyTorch gives all of these buckets the index 0."""

        def body(rank: int, size: int) -> None:
            for make in (lambda: hooks.f16(), lambda: hooks.top_k(0.1)):
                plain = DistributedDataParallel(Mixed())
                static = DistributedDataParallel(Mixed(), static_graph=True)
                for model in (plain, static):
                    make().register(model)
                    two_backwards(model, rank)
                for expected, found in zip(plain.parameters(), static.parameters()):
                    assert expected.grad is not None and found.grad is not None
                    assert torch.equal(found.grad, expected.grad), make().name

        ranks.with_group(body)

    def test_says_what_does_not_fit(self) -> None:
        def body(rank: int, size: int) -> str:
            assert "none of: f32" in refusal(lambda: hooks.top_k(values="f64"))
            assert "divided" in hooks.int8(exchange="divide").name
            assert "no codec 'top'" in refusal(lambda: hooks.Hook("top"))
            assert "densty" in refusal(lambda: hooks.top_k(densty=0.1))
            assert "density" in refusal(lambda: hooks.int8(density=0.1))
            assert "density" in refusal(lambda: hooks.top_k(2.0))
            layer = torch.nn.Linear(2, 2)
            assert "not a Linear: wrap" in refusal(lambda: hooks.f16().register(layer))
            assert "density='few'" in refusal(lambda: hooks.top_k("few"))  # type: ignore[arg-type]
            assert "rank=-1" in refusal(lambda: hooks.power_sgd(-1))
            inner = hooks.int8(momentum=0.9)
            assert "momentum" in refusal(lambda: hooks.top_k(rules=[("*", inner)]))
            for rule in ("*", ("*",), ("*", 3), (3, None)):
                text = refusal(lambda rule=rule: hooks.int8(rules=[rule]))
                assert "a rule is a pair" in text and text.endswith(f"not {rule!r}"), text
            gloo = dist.new_group(backend="gloo")
            on_gloo = DistributedDataParallel(torch.nn.Linear(4, 4), process_group=gloo)
            assert "gloo" in refusal(lambda: hooks.int8().register(on_gloo))
            skipping = DistributedDataParallel(torch.nn.Linear(4, 4), find_unused_parameters=True,
                                               skip_all_reduce_unused_params=True)  # fmt: skip
            text = refusal(lambda: hooks.int8().register(skipping))
            assert "without skip_all_reduce_unused_params" in text, text
            with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
                single = DistributedDataParallel(torch.nn.Linear(4, 4))
            assert "has no buckets" in refusal(lambda: hooks.int8().register(single))
            layer = torch.nn.Linear(4, 4)
            frozen = DistributedDataParallel(layer)
            layer.bias.requires_grad_(False)
            text = refusal(lambda: hooks.int8().register(frozen))
            assert "reduces 2 parameters, and 1 require" in text, text
            rows = DistributedDataParallel(torch.nn.Embedding(9, 200, sparse=True))
            hooks.int8().register(rows)
            assert "sparse" in refusal(lambda: rows(torch.tensor([1])).sum().backward())
            shared = hooks.int8()
            first = Training(rank, shared)
            second = Training(rank, shared)
            assert "a hook of its own" in refusal(lambda: first.steps(1))
            second.steps(1)
            # An infinity on one rank ends the step on both.
            training = Training(rank, hooks.int8(non_finite="stop"))
            if rank == 0:
                training.data[0, 0] = float("inf")
            assert "rank 0" in refusal(lambda: training.steps(1))
            halves = [hooks.f16(), hooks.bf16(), hooks.f16(clip=1.0)]
            for one, other in ((0, 1), (0, 2)):
                text = refusal(lambda: Training(rank, halves[other if rank else one]))
                assert "rank 0" in text and halves[other].name in text, text
            return refusal(lambda: Training(rank, hooks.top_k(0.1 * (rank + 1))))

        for text in ranks.with_group(body):
            self.assertIn("top_k(0.1)", text)
            self.assertIn("top_k(0.2)", text)
