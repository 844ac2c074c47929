# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""stretto as a backend of torch.distributed: init_process_group("stretto").

A program need not import this module for that: `import torch` registers the backend. The module
adds what PyTorch has no interface for: registered memory, notes for the error messages of other
ranks, how data travels and why, jobs that go on when a process dies, and gradients that do not
depend on the number of ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import datetime
import importlib.util
import multiprocessing.util
import os
import sys
import threading
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from stretto import hooks
from stretto.built_for import TORCH as _BUILT_FOR_TORCH
from stretto.built_for import VERSION as __version__
from stretto.elastic import ElasticJob
from stretto.reproducible import ReproducibleGradients

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from torch.overrides import TorchFunctionMode

    from stretto._c import Options
else:

    def __getattr__(name: str) -> Any:
        """Gets Options from the compiled module, which is loaded only when it is needed."""
        if name != "Options":
            raise AttributeError(f"module 'stretto' has no attribute {name!r}")
        return _module().Options


__all__ = [
    "ElasticJob",
    "Options",
    "ReproducibleGradients",
    "__version__",
    "describe_links",
    "dump_flight_record",
    "empty",
    "explain",
    "hooks",
    "memory",
    "monitored_barrier",
    "note",
    "verify_replicas",
]

if importlib.util.find_spec("torch") is None:
    raise ImportError("stretto is a backend of PyTorch, which is not installed: pip install torch")


def _check_version(torch_version: str) -> None:
    """Raises ImportError for a torch that the compiled module does not fit: loading the module
    would only report a missing symbol."""
    minor = ".".join(torch_version.split(".")[:2])
    if minor != _BUILT_FOR_TORCH:
        raise ImportError(
            f"this stretto was built for torch {_BUILT_FOR_TORCH}, and here is torch "
            f"{torch_version}: build it again (in its sources: pip install --force-reinstall "
            f'--no-deps .), or install "torch=={_BUILT_FOR_TORCH}.*"'
        )


_loaded: Any = None


def _module() -> Any:
    """Returns the compiled module, and loads it when it is first needed."""
    global _loaded
    if _loaded is None:
        import torch
        import torch.distributed as dist

        _check_version(torch.__version__)
        from stretto import _c

        # With this variable, DistributedDataParallel allocates its buckets by the default backend.
        # If there are GPUs, that may be NCCL, whose memory stretto must not decide about.
        if not torch.cuda.is_available():
            os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
            # ShardedTensor would put its copies on the other declared device.
            dist.Backend.backend_capability["stretto"] = ["cpu"]

        # It runs before functions that were registered earlier: the other ranks hear of an
        # exception before those take their time.
        atexit.register(_end_groups_if_failed)
        _loaded = _c
    if multiprocessing.parent_process() is not None and _watched != os.getpid():
        _watch_end_of_child()
    return _loaded


_watched: int | None = None  # The process in which _watch_end_of_child() was called.


def _watch_end_of_child() -> None:
    """Makes the end of a child of multiprocessing end its groups. Before Python 3.13 a forked child
    runs no functions of atexit at its end; since then it runs those that it has registered itself.
    The exception that ends a child is never in sys.last_value; since 3.13 it cannot be found."""
    global _watched
    _watched = os.getpid()
    is_forked = multiprocessing.get_start_method() != "spawn"
    if sys.version_info >= (3, 13):
        if is_forked:
            atexit.register(_end_groups)
        return
    multiprocessing.util.Finalize(None, _end_groups_of_child, (is_forked,), exitpriority=-1)


def _end_groups_of_child(is_forked: bool) -> None:
    error = sys.exc_info()[1]
    trace = None if error is None else error.__traceback__
    if trace is None or trace.tb_frame.f_code is not BaseProcess._bootstrap.__code__:
        error = None  # It is an exception that the parent handled when it forked this child.
    while isinstance(error, SystemExit):  # torch.multiprocessing.spawn ends a child by it.
        error = error.__context__ if error.code else None
    sys.last_value = error  # A forked child still has its parent's.
    if error is None and not is_forked:
        return  # Functions of atexit may use the groups.
    if error is None:
        _join_threads()
    _end_groups()


def _join_threads() -> None:
    """Waits for threads, which may use the groups, as Python does at the end of a process."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def _end_groups_if_failed() -> None:
    if getattr(sys, "last_value", None) is not None:
        _end_groups()


def _end_groups(error: BaseException | None = None) -> None:
    """Ends all groups. If an uncaught exception ends this rank, the other ranks are told of it."""
    if _loaded is None:
        return
    error = error or getattr(sys, "last_value", None)
    _loaded.shut_down_all("" if error is None else _describe_end(error))


def _describe_end(error: BaseException) -> str:
    text = f"has ended by {type(error).__name__}"
    with contextlib.suppress(Exception):  # Its __str__ may raise; groups must end all the same.
        text += f": {error}"
    # File names may contain bytes that are not UTF-8.
    return text.encode("utf-8", "backslashreplace").decode()[:400]


def _find_backend(group: dist.ProcessGroup) -> Any:
    """Returns the group's stretto backend, for whichever of its devices; None if it has none."""
    for device in group._device_types:
        backend = group._get_backend(device)
        backend = getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL.
        if backend.name() == "stretto":
            return backend
    return None


def _create_backend(place: Any, options: Any) -> Any:
    """PyTorch calls this to make a group's backend. `place` is a DistributedBackendOptions."""
    module = _module()
    import torch.distributed as dist
    from torch._C._distributed_c10d import Backend

    world = dist.group.WORLD
    parent = None if world is None else _find_backend(world)
    inherited = None if parent is None else parent.options
    # PyTorch has this attribute since 2.14. Inherited options do not count: they are those of the
    # default group.
    enable_reconfigure = any(
        getattr(each, "enable_reconfigure", False) for each in (place, options)
    )
    if isinstance(options, module.Options):
        options = copy.copy(options)
    # With "cuda:nccl,cpu:stretto" all backends get the same options, which may be NCCL's.
    elif options is None or isinstance(options, Backend.Options):
        options = inherited or module.Options()
    else:
        raise TypeError(
            "pg_options of the backend stretto is a stretto.Options, not a "
            + type(options).__name__
        )
    if inherited is not None:
        options.device = inherited.device  # A process has one, in all its groups.
    return module.create(
        place.store,
        place.group_rank,
        place.group_size,
        place.timeout.total_seconds(),
        place.group_id,
        place.global_ranks_in_group,
        options,
        enable_reconfigure,
    )


def _backend(group: dist.ProcessGroup | None) -> Any:
    import torch.distributed as dist

    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group: call init_process_group first")
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("this rank is not a member of that process group")
    backend = _find_backend(group)
    if backend is None:
        names = ", ".join({group._get_backend(each).name(): 0 for each in group._device_types})
        raise ValueError(f"this process group's backend is {names}, not stretto")
    return backend


def note(activity: str, group: dist.ProcessGroup | None = None) -> None:
    """Notes what this rank does between operations ("loading data"), for the error messages of
    ranks that wait for it. An empty text removes the note."""
    _module().note(_backend(group), activity)


def describe_links(group: dist.ProcessGroup | None = None) -> str:
    """Returns how data reaches the other ranks: "shm to rank 1; tcp to rank 2"."""
    return _module().describe_links(_backend(group))


def explain(
    collective: str, tensor: torch.Tensor, group: dist.ProcessGroup | None = None
) -> str:
    """Returns how a collective ("all_reduce") of a tensor like this one runs here, and why."""
    return _module().explain(_backend(group), collective, tensor)


def verify_replicas(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Raises an error on all ranks unless the parameters of `model` have the same bits on all. The
    error names the first parameter that differs and the ranks, or how many parameters each rank
    has, if the numbers differ. The group remains usable. Collective; 16 bytes travel, and 8 more
    for each parameter if models differ. Use it between steps, now and then: a model that
    DistributedDataParallel trains stays equal unless a program changes it on some ranks only."""
    named = dict(model.named_parameters())
    _module().verify_replicas(_backend(group), list(named), list(named.values()))


def dump_flight_record(prefix: str) -> str:
    """Writes the last operations of this process and their results to a file, whose name is
    `prefix` and this process's rank, and returns the name. PyTorch's torchfrtrace compares the
    files of all ranks. The record has the time at which each operation ended, but not the line of
    Python that called it."""
    import torch.distributed as dist

    path = f"{prefix}{dist.get_rank()}"
    with open(path, "wb") as file:
        file.write(_module().flight_record())
    return path


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: datetime.timedelta | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """A barrier whose failure names all ranks that have not arrived, as that of
    torch.distributed, which only works with Gloo. `wait_all_ranks` changes nothing: all of them
    are named in any case. `timeout`: by default that of the group."""
    backend = _backend(group)
    if timeout is None:
        backend.monitored_barrier(wait_all_ranks=wait_all_ranks)
    else:
        backend.monitored_barrier(timeout, wait_all_ranks)


def empty(
    *size: Any,
    dtype: torch.dtype | None = None,
    group: dist.ProcessGroup | None = None,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Returns an uninitialised tensor in memory that the other ranks of this host have mapped, so
    that collectives on it copy nothing. `size`: as for torch.empty. Not collective; the tensor may
    outlive the group. `device`: the CPU, or the device of this rank's group (docs/gpu.md)."""
    import torch

    like = torch.empty(*size or ((),), dtype=dtype, device="meta")
    if like.is_quantized:  # It would lack the scale, and crash when it is printed.
        raise ValueError(f"stretto.empty makes no quantized tensors, of {dtype}")
    device = torch.device(device)
    flat = _backend(group).allocate_tensor(like.numel(), dtype=like.dtype, device=device)
    return flat.view(like.shape)


def memory(group: dist.ProcessGroup | None = None) -> TorchFunctionMode:
    """Inside `with stretto.memory():`, tensors that torch.empty, zeros, ones, full, rand, randn,
    tensor and arange make on the CPU lie in memory as empty() allocates it; so do the parameters
    of modules made there. Each costs a copy."""
    import torch
    from torch.overrides import TorchFunctionMode

    makers = {
        getattr(torch, name)
        for name in ("empty", "zeros", "ones", "full", "rand", "randn", "tensor", "arange")
    }

    class Memory(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            made = func(*args, **(kwargs or {}))
            if func not in makers or (kwargs and kwargs.get("out") is not None):
                return made
            if made.device.type != "cpu" or made.layout != torch.strided:
                return made
            if not made.is_contiguous():
                return made
            with torch.no_grad():
                mapped = empty(made.shape, dtype=made.dtype, group=group).copy_(made)
            return mapped.requires_grad_(made.requires_grad)

    return Memory()
