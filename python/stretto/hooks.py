# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Communication hooks for PyTorch's DistributedDataParallel: gradients in fewer bytes.

    hook = stretto.hooks.top_k(0.01).register(model)

All ranks must use the same hook with the same settings; otherwise register() raises
DistBackendError, which shows both. What a message leaves out of a gradient (its residual) is added
to the gradient in the next step. Of stretto's sources, docs/compression.md tells what each hook is
good for, and docs/gpu.md which hooks work on a GPU: for the others, gradients are copied to the
CPU.

Options of all:
    error_feedback: keep residuals. Without it, what messages leave out is lost.
    rules: pairs of a pattern and a hook, as in [("*.embedding.*", int8()), ("*.bias", None)]. A
        gradient whose name matches the pattern is compressed by that hook; None: not at all. A *
        matches any letters, and the first pattern that matches decides.
    min_elements: gradients with fewer elements that match no rule are not compressed.
    dense_steps: the number of steps, from the first on, in which nothing is compressed.
    momentum, mask_momentum, clip_norm: what Deep Gradient Compression does before it compresses;
        then the optimizer must have no momentum of its own. Masking is off by default.
    non_finite: infinities and NaN are sent ("send"), end training on all ranks ("stop"), or count
        as zero ("zero").
    exchange: all ranks get the messages of all ("gather"); or each rank adds up one part of each
        gradient and sends all a message of the sum ("divide") or the whole sum ("combine"); or the
        one of these that is predicted to be the fastest ("automatic").
    automatic: compress only as long as measurements show that it pays.
    seed: for random choices.
    measure_norms: also measure the norms in last_step(), which reads all elements once more.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "Hook", "bf16", "f16", "int8", "one_bit", "power_sgd", "redistribute", "threshold", "top_k",
]  # fmt: skip


def _parts_of(rule: Any) -> tuple[str, str, dict[str, Any]]:
    match rule:
        case (str(pattern), None):
            return pattern, "dense", {}
        case (str(pattern), Hook()):
            return pattern, *rule[1]._made_of
    raise TypeError(f"a rule is a pair: a pattern, and a hook or None; not {rule!r}")


class Hook:
    """How the gradients of one model are reduced. The functions of this module make hooks."""

    def __init__(self, kind: str, **options: Any) -> None:
        from stretto import _module

        self._made_of = (kind, options)
        if "rules" in options:
            options = options | {"rules": [_parts_of(rule) for rule in options["rules"]]}
        self._hook = _module().DdpCommHook(kind, options)
        self._numbers: dict[Any, int] = {}
        self._started: list[tuple[Any, Any]] = []  # In this step.
        self._reduced = 0  # Gradients in the started buckets.
        self._halves = ""  # Names what rounds on a device instead of the hook, if it does.

    def __getstate__(self) -> tuple[str, dict[str, Any], bytes]:
        """For copies: PyTorch copies and saves a model with its hooks, but does not register them
        with the copy."""
        return (*self._made_of, self.save())

    def __setstate__(self, state: tuple[str, dict[str, Any], bytes]) -> None:
        kind, options, kept = state
        Hook.__init__(self, kind, **options)
        self.load(kept)

    @property
    def name(self) -> str:
        """The name of the hook, with its settings."""
        return self._halves or self._hook.name()

    def last_step(self) -> dict[str, Any]:
        """Statistics of this rank's last step; the keys are the fields of CompressionStatistics.
        Empty for f16() and bf16() without options, which measure nothing."""
        return self._hook.last_step()

    def register(self, model: Any) -> Hook:
        """Registers this hook with a DistributedDataParallel whose group's backend is stretto. All
        ranks call it, before the first backward. Returns the hook. Raises ValueError if the model
        leaves out buckets or has none, or does not reduce exactly the parameters that require a
        gradient now."""
        import torch
        import torch.distributed as dist
        from stretto import _backend

        if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise TypeError(
                f"register() takes a DistributedDataParallel, not a {type(model).__name__}: wrap "
                "the model before"
            )
        if getattr(model, "skip_all_reduce_unused_params", False):
            raise ValueError(
                "this DistributedDataParallel leaves out buckets that nobody has used, which "
                "stretto.hooks wait for: make it without skip_all_reduce_unused_params"
            )
        if getattr(model, "_use_python_reducer", False):
            raise ValueError(
                "this DistributedDataParallel has no buckets, but hands each gradient to hooks by "
                'itself: make it without torch._dynamo.config.optimize_ddp = "python_reducer"'
            )
        named = {
            name: parameter
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and name not in model.parameters_to_ignore
        }
        held = model._get_ddp_logging_data()["num_parameter_tensors"]
        if held != len(named):
            raise ValueError(
                f"this DistributedDataParallel reduces {held} parameters, and {len(named)} require "
                "a gradient now: set requires_grad before it is made, and not after"
            )
        backend = _backend(model.process_group)
        parameters = list(named.values())
        kind, options = self._made_of
        devices = {str(each.device) for each in parameters}
        if kind in HALVES and not options and len(devices) == 1 and devices != {"cpu"}:
            name = f"{kind} on a device"
            self._hook.agree(backend, name)
            self._halves = name
            group = model.process_group
            if group is dist.group.WORLD:
                group = None  # So that the model can be copied and saved.
            model.register_comm_hook((group, kind), _reduce_halves)
            return self
        may_be_unused = model.find_unused_parameters or model.static_graph
        self._hook.attach(backend, list(named), parameters, may_be_unused)
        self._halves = ""
        self._numbers = {parameter: number for number, parameter in enumerate(parameters)}
        self._begin_step()
        model.register_comm_hook(self._numbers, self._reduce)
        return self

    def save(self) -> bytes:
        """Returns what this rank has to save, besides the model and the optimizer, to continue
        training with the same bits: residuals, momenta, the step."""
        return self._hook.save()

    def load(self, state: bytes) -> None:
        """Restores what save() returned on the same rank of the same number of ranks (for another
        number, see redistribute()). Call it before or after register(). If other ranks share hosts
        now, residuals and momenta are lost, with a warning."""
        self._hook.load(state)

    def _begin_step(self) -> None:
        self._started.clear()
        self._reduced = 0

    # It has no annotations, because PyTorch accepts only its own types here, and not as text.
    def _reduce(self, registered, bucket):  # type: ignore[no-untyped-def]
        import torch

        if registered is not self._numbers:
            raise ValueError(
                f"the hook '{self.name}' has been registered with another model since, whose "
                "residuals it keeps now: give each model a hook of its own"
            )
        buffer = bucket.buffer()
        devices = [] if buffer.is_cpu else [buffer.device]
        future: Any = torch.futures.Future(devices=devices)
        parameters = bucket.parameters()
        numbers = [registered[parameter] for parameter in parameters]
        # The parameters show which bucket is the last one, because in the first step of a static
        # graph PyTorch gives all buckets the index 0.
        index = len(self._started)
        self._started.append((future, buffer))
        self._reduced += len(numbers)
        last = self._reduced == len(registered)
        # PyTorch's buckets hold complex parameters as real numbers.
        whole = buffer.view(parameters[0].dtype) if parameters[0].is_complex() else buffer
        self._hook.reduce(index, last, whole, [each.numel() for each in parameters], numbers)
        if last:  # All buckets are reduced now, so all futures end here, on the waiting thread.
            for each, reduced in self._started:
                each.set_result(reduced)
            self._begin_step()
        return future


HALVES = {"f16": "float16", "bf16": "bfloat16"}  # As PyTorch calls them.


def _reduce_halves(to, bucket):  # type: ignore[no-untyped-def]
    """f16() and bf16() on a device. Infinities stay, because gradient scalers look for them."""
    import torch
    import torch.distributed as dist

    group, kind = to
    buffer = bucket.buffer()
    is_halved = buffer.dtype == torch.float32 and not bucket.parameters()[0].is_complex()
    sent = buffer.to(getattr(torch, HALVES[kind])) if is_halved else buffer
    work: Any = dist.all_reduce(sent, dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda _: buffer.copy_(sent) if is_halved else buffer)


def f16(**options: Any) -> Hook:
    """Sends half of the bytes: each gradient is rounded once, and the rounded values are added in
    float32; NCCL adds them in its own way. There are no residuals unless options are given: then
    what is rounded off, and what exceeds 65504 or `clip`, is sent later."""
    return Hook("f16", **options)


def bf16(**options: Any) -> Hook:
    """As f16(), with the range of float32 and fewer digits."""
    return Hook("bf16", **options)


def redistribute(states: list[bytes], ranks: int) -> list[bytes]:
    """Converts what save() returned on ranks 0, 1, 2, ... for another number of ranks. What has not
    been sent yet counts in the next mean as it would have. One rank calls this, and distributes the
    results. Not for f16() and bf16() without options, which keep nothing, nor for several hosts
    with several ranks each, where each rank has a part of the gradients."""
    from stretto import _module

    return _module().redistribute(states, ranks)


def top_k(
    density: float = 0.01, *, values: str = "f32", warm_up_steps: int = 0, **options: Any
) -> Hook:
    """Sends the elements with the greatest magnitudes; `density` is their share of all elements.
    `values` is f32, bf16 or int8. For `warm_up_steps` steps the density falls from 1 to `density`.
    With exact=False, sends the elements that reach the last step's limit: half to twice as many."""
    return Hook("top_k", density=density, values=values, warm_up_steps=warm_up_steps, **options)


def threshold(limit: float, *, values: str = "f32", **options: Any) -> Hook:
    """Sends the elements whose magnitude is at least `limit`."""
    return Hook("threshold", limit=limit, values=values, **options)


def int8(*, stochastic: bool = False, **options: Any) -> Hook:
    """Sends a quarter of the bytes: 256 elements share a scale."""
    return Hook("int8", stochastic=stochastic, **options)


def one_bit(*, stochastic: bool = False, **options: Any) -> Hook:
    """Sends the signs; 512 elements share a scale. `stochastic` needs error_feedback=False."""
    return Hook("one_bit", stochastic=stochastic, **options)


def power_sgd(rank: int = 2, **options: Any) -> Hook:
    """Sends two matrices of this rank, whose product approximates the gradient, for gradients that
    this makes smaller."""
    return Hook("power_sgd", rank=rank, **options)
