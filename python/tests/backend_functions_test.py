# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Checks that every virtual function of c10d::Backend, as listed in the installed PyTorch's header,
is overridden with the same signature, or is in a table here that says what a call of it does."""

from __future__ import annotations

import contextlib
import copy
import datetime
import pathlib
import pickle
import re
import sys
import unittest
from typing import Callable
from unittest import mock

import ranks
import torch
import torch.distributed as dist

SOURCE = pathlib.Path(__file__).resolve().parents[2]
THEIRS = "include/torch/csrc/distributed/c10d/Backend.hpp"
OURS = "stretto/c10d/process_group.h"


def backend() -> dist.Backend:
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def estimate_time() -> None:
    with dist.distributed_c10d._time_estimator():
        pass


# Functions that stretto does not override: a call by which a user reaches PyTorch's own version,
# and the text of its refusal; None where PyTorch's version is right and refuses nothing.
LEFT_TO_PYTORCH: dict[str, tuple[Callable[[], object], str | None]] = {
    "supportsTimeEstimation": (estimate_time, "collective time estimator is not supported"),
    # With coalescing, PyTorch would make one Work for a batch of messages, and could not continue
    # after one that fails.
    "supportsCoalescing": (lambda: backend().supports_coalescing, None),
    # PyTorch's Python module has no type for an allocator, so nobody could use one.
    "getMemAllocator": (lambda: backend().mem_allocator, "does not support getMemAllocator"),
    # PyTorch's version stores a name, which the flight recorder shows.
    "setGroupUid": (lambda: dist.group.WORLD._set_group_name("a name"), None),
    # The connections already exist: they are made with the group.
    "eagerConnectSingleDevice": (
        lambda: backend().eager_connect_single_device(torch.device("cpu")),
        None,
    ),
    "suspend": (lambda: backend().suspend(), "does not support suspend"),
    "resume": (lambda: backend().resume(), "does not support resume"),
}
# The same for functions that PyTorch has since 2.14, and since 2.15.
SINCE_2_14: dict[str, tuple[Callable[[], object], str | None]] = {
    "addEphemeralTimeout": (
        lambda: backend()._add_ephemeral_timeout(datetime.timedelta(seconds=1)),
        None,
    ),
    "supportsWindow": (lambda: backend().supports_window, None),
    "new_window": (lambda: backend().new_window(), "does not support new_window"),
    "getBoundDeviceId": (lambda: dist.group.WORLD.bound_device_id, None),
    "setBoundDeviceId": (lambda: setattr(dist.group.WORLD, "bound_device_id", None), None),
    "clone": (lambda: backend().options, None),  # It clones options; ours are a copy anyway.
}
NO_ESTIMATE = "does not support time estimation"
SINCE_2_15: dict[str, tuple[Callable[[], object], str | None]] = {
    "startTimeEstimate": (lambda: backend()._start_time_estimate(), NO_ESTIMATE),
    "endTimeEstimate": (lambda: backend()._end_time_estimate(), NO_ESTIMATE),
    # PyTorch asks this before it registers a completion hook, which Python cannot do.
    "supportsCompletionHooks": (lambda: backend().supports_completion_hooks, None),
    "registerCompletionHook": (lambda: backend().supports_completion_hooks, None),
    "unregisterCompletionHook": (lambda: backend().supports_completion_hooks, None),
}
LEFT_TO_PYTORCH.update(SINCE_2_14 | SINCE_2_15)
# New names by which PyTorch calls the functions with the old names.
FORWARDED = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "gather_single": "gather_into_tensor",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}
# Functions of the tables above that older versions of PyTorch lack.
NOT_IN_ALL_VERSIONS = {"suspend", "resume", *SINCE_2_14, *SINCE_2_15}

ALIASES = {
    "TensorLists": "std::vector<std::vector<at::Tensor>>",
    "Tensors": "std::vector<at::Tensor>",
    "WorkPtr": "c10::intrusive_ptr<Work>",
}


def without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


def parts_of(arguments: str) -> list[str]:
    """Splits at the commas outside of brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in "<({[") - (letter in ">)}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def type_of(parameter: str) -> str:
    """Returns the type without default and name, with PyTorch's aliases of types expanded."""
    parameter = re.sub(r"=.*", "", parameter, flags=re.S).strip()
    named = re.fullmatch(r"(.*[\s&*>])(\w+)", parameter, flags=re.S)
    if named and named[1].strip() not in ("const", "unsigned"):
        parameter = named[1]
    for alias, meant in ALIASES.items():
        parameter = re.sub(rf"\b{alias}\b", meant, parameter)
    parameter = re.sub(r"(?:::)?\bc10d::", "", parameter)
    return re.sub(r"\s*([<>&*,])\s*", r"\1", " ".join(parameter.split()))


def functions_of(text: str, only_virtual: bool) -> dict[str, tuple[list[str], str]]:
    """Returns, by name, the types of the parameters, and `const` if the function is const."""
    text = without_comments(text)
    found = {}
    start = r"\bvirtual\s[^;{}()]*?" if only_virtual else r"[\w>&]\s+"
    for match in re.finditer(start + r"\b(\w+)\s*\(", text):
        depth, end = 1, match.end()
        while depth > 0:
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        parameters = [type_of(part) for part in parts_of(text[match.end() : end - 1])]
        is_const = re.match(r"\s*const\b", text[end:]) is not None
        found[match[1]] = (parameters, "const" if is_const else "")
    return found


def theirs() -> dict[str, tuple[list[str], str]]:
    header = pathlib.Path(torch.__file__).parent / THEIRS
    return functions_of(header.read_text(), only_virtual=True)


def ours() -> dict[str, tuple[list[str], str]]:
    return functions_of((SOURCE / OURS).read_text(), only_virtual=False)


class BackendFunctionsTest(unittest.TestCase):
    def test_the_header_is_understood(self) -> None:
        listed = theirs()
        self.assertGreater(len(listed), 40, sorted(listed))
        tensors = "std::vector<at::Tensor>&"
        self.assertEqual(listed["allreduce"], ([tensors, "const AllreduceOptions&"], ""))
        self.assertEqual(listed["getBackendName"], ([], "const"))
        self.assertEqual(listed["recv"], ([tensors, "int", "int"], ""))
        self.assertEqual(listed["allocateTensor"], (["long", "at::TensorOptions"], ""))

    def test_each_is_ours_or_listed(self) -> None:
        own = ours()
        for name, signature in theirs().items():
            with self.subTest(function=name):
                if name in LEFT_TO_PYTORCH:
                    self.assertNotIn(name, own, "it is ours, and listed as PyTorch's")
                    continue
                if FORWARDED.get(name) in own:
                    continue
                if name not in own:
                    self.fail(
                        f"PyTorch {torch.__version__} has Backend::{name}, which is neither in "
                        f"{OURS} nor in a table of this test"
                    )
                self.assertEqual(own[name], signature, f"Backend::{name} is not overridden")

    def test_what_becomes_of_the_others(self) -> None:
        lacking = set(LEFT_TO_PYTORCH) - set(theirs())
        self.assertLessEqual(lacking, NOT_IN_ALL_VERSIONS)
        listed = {name: told for name, told in LEFT_TO_PYTORCH.items() if name not in lacking}

        def body(rank: int, size: int) -> dict[str, str | None]:
            told: dict[str, str | None] = {}
            for name, (call, _) in listed.items():
                try:
                    call()
                    told[name] = None
                except (RuntimeError, NotImplementedError) as error:
                    told[name] = str(error)
            return told

        for name, text in ranks.with_group(body, 1)[0].items():
            sentence = listed[name][1]
            with self.subTest(function=name):
                if sentence is None:
                    self.assertIsNone(text)
                else:
                    self.assertRegex(text or "", sentence)


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def sum_in(group: dist.ProcessGroup) -> float:
    tensor = torch.tensor([float(dist.get_rank() + 1)])
    group.allreduce([tensor]).wait()
    return tensor.item()


def last_timeout() -> float:
    """Returns the timeout of the last operation, in seconds."""
    import stretto

    return pickle.loads(stretto._module().flight_record())["entries"][-1]["timeout_ms"] / 1e3


class SeldomCalledTest(unittest.TestCase):
    """Functions that PyTorch's Python code does not call by itself on a CPU."""

    def test_groups_are_split_and_merged(self) -> None:
        def body(rank: int, size: int, path: str) -> tuple[float | None, float]:
            ranks.start(path, rank, size)
            shorter = datetime.timedelta(seconds=ranks.TIMEOUT_SECONDS / 2)
            pair = world().split_group([2, 0], group_name="pair", timeout=shorter)
            of_pair = sum_in(pair) if pair is not None else None
            assert pair is None or last_timeout() == shorter.total_seconds()
            sum_in(world())
            assert last_timeout() == ranks.TIMEOUT_SECONDS
            if pair is not None:
                # The ranks keep their order in the job, whatever the order of the list.
                assert dist.get_process_group_ranks(world()) == [0, 1, 2] and pair.size() == 2
            # Groups of one rank are merged.
            alone = dist.new_group([rank], use_local_synchronization=True)
            store = dist.PrefixStore("merged", dist.FileStore(path + "-merged", size))
            store.set(f"{rank}", "here")
            timeout = datetime.timedelta(seconds=ranks.TIMEOUT_SECONDS)
            merged = alone.merge_remote_group(store, size, timeout, "merged")
            assert merged.size() == size
            of_merged = sum_in(merged)
            dist.destroy_process_group()
            return of_pair, of_merged

        self.assertEqual(ranks.run(body, 3), [(4.0, 6.0), (None, 6.0), (4.0, 6.0)])

    def test_groups_where_the_default_group_has_a_device(self) -> None:
        """PyTorch then splits the default group to make each new group. No operation runs on that
        device."""
        device = torch.device("cuda", 0)
        accelerator = mock.patch.multiple(
            torch.accelerator, is_available=lambda: True, current_accelerator=lambda: device
        )

        def body(rank: int, size: int) -> None:
            import stretto
            from torch.distributed.device_mesh import init_device_mesh

            world().bound_device_id = device
            options = stretto.Options(disable_shared_memory=True)
            with accelerator:
                plain = dist.split_group(split_ranks=[[0, 1]])
                other = dist.split_group(split_ranks=[[0, 1]], pg_options=options)
                mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("rows", "columns"))
            assert mesh.get_group("columns").size() == 1
            copied = copy.deepcopy(other._get_backend(device).options)
            again = other.split_group([1, 0], opts=copied, group_name="again")
            assert sum_in(plain) == sum_in(other) == sum_in(again) == 3
            for group in (other, again):
                assert "tcp to rank" in stretto.describe_links(group)
            alone = dist.new_group([0])  # For this, PyTorch also calls a function on rank 1.
            assert rank == 1 or sum_in(alone) == 1

        ranks.with_group(body, backend="cpu:stretto,cuda:stretto")

    def test_completion_hooks_and_numbers(self) -> None:
        def body(rank: int, size: int) -> list[str]:
            told = []
            group = dist.new_group()
            group._enable_collectives_timing()
            group._register_on_completion_hook(lambda work: told.append(work))
            ours = group._get_backend(torch.device("cpu"))  # The group asks known backends only.
            first = ours._get_sequence_number_for_group()
            for _ in range(3):
                dist.all_reduce(torch.ones(1 << 16), group=group, async_op=True)
            group._wait_for_pending_works()
            assert ours._get_sequence_number_for_group() == first + 3
            assert all(work.active_duration.total_seconds() >= 0 for work in told)
            said = ranks.refusal(lambda: group._register_on_completion_hook(lambda work: None))
            assert "completion hook already" in said, said
            return [str(work.op_type) for work in told]

        for types in ranks.with_group(body):
            self.assertEqual(types, ["OpType.ALLREDUCE"] * 3)

    def test_hooks_are_not_copied(self) -> None:
        """An operation in flight refers to the hook without Python's lock, so it must not change
        the reference count."""

        def body(rank: int, size: int) -> None:
            def hook(work: object) -> None:
                pass

            group = dist.new_group()
            group._register_on_completion_hook(hook)
            before = sys.getrefcount(hook)
            works = [dist.irecv(torch.ones(1), 1 - rank, group) for _ in range(5)]
            assert sys.getrefcount(hook) == before
            for _ in works:
                dist.send(torch.ones(1), 1 - rank, group)
            for work in works:
                work.wait()

        ranks.with_group(body)

    def test_abort_ends_what_others_wait_for(self) -> None:
        """The others are told which rank aborted; other groups, and a group made afterwards, still
        work."""

        def body(rank: int, size: int) -> str:
            group = dist.new_group(group_desc="experts\n")
            sum_in(group)
            text = ""
            if rank == 1:
                group.abort()
            else:
                text = ranks.failure(lambda: dist.all_reduce(torch.ones(1), group=group))
                of_group = group._get_backend(torch.device("cpu"))
                if hasattr(of_group, "get_error"):  # Since PyTorch 2.14.
                    error = of_group.get_error()
                    of_group.shutdown()
                    assert error == of_group.get_error() != type(error).SUCCESS, error
            assert sum_in(world()) == 3 and sum_in(dist.new_group()) == 3
            return text

        text = ranks.with_group(body)[0]
        self.assertIn("rank 1 has called abort()", text)
        self.assertIn('(This is the group "experts ".)', text)

    def test_a_list_that_one_rank_cannot_go_on_with_ends_its_group(self) -> None:
        """Otherwise the other ranks would wait for the rest of the list."""

        def body(rank: int, size: int) -> str:
            group = dist.new_group()
            inputs = [torch.ones(4), torch.ones(2 << 20)]
            outputs = [[torch.empty_like(each) for each in inputs] for _ in range(size)]
            with ranks.little_shared_memory() if rank == 0 else contextlib.nullcontext():
                text = ranks.failure(lambda: dist.all_gather_coalesced(outputs, inputs, group))
            assert sum_in(world()) == 3
            return text

        first, second = ranks.with_group(body)
        self.assertIn("File too large", first)
        self.assertIn("rank 0 aborted", second)

    def test_abort_of_all_groups(self) -> None:
        """After PyTorch's function that aborts all groups, new groups can be made."""

        def body(rank: int, size: int, path: str) -> str:
            ranks.start(path, rank, size)
            child = dist.new_group()
            sum_in(child)
            if rank == 1:
                dist.distributed_c10d._abort_process_group()
            text = ranks.failure(lambda: child.allreduce([torch.ones(1)]).wait())
            if rank == 0:
                ranks.failure(lambda: sum_in(world()))
                dist.destroy_process_group()
            ranks.start(f"{path}-again", rank, size)
            assert sum_in(world()) == 3
            dist.destroy_process_group()
            return text

        for text in ranks.run(body):
            self.assertIn("rank 1 has called abort()", text)
