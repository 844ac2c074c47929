#!/usr/bin/env python3
# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Gloo as it is shipped inside PyTorch, as a driver of bench/peers.py.

Calls the process group's Gloo backend itself: what torch.distributed adds on top of it in Python is
not measured.
"""

import argparse
import ctypes
import datetime
import os
import sys
import traceback

import torch
import torch.distributed as dist

PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p,
                           ctypes.c_size_t, ctypes.c_size_t)
CALL = ctypes.CFUNCTYPE(ctypes.c_int)
NO_SUCH_OPERATION = 1
FAILED = 2


def tensor_at(address, count):
    if not count:
        return torch.empty(0)
    memory = (ctypes.c_float * count).from_address(address)
    return torch.frombuffer(memory, dtype=torch.float32)


class Calls:
    """Makes the functions that the bridge calls: one without arguments for each job."""

    def __init__(self, backend):
        self.backend = backend
        self.current = None

    def make(self, operation, source, target, count, share):
        """Returns the function for a job, or None if Gloo has no such operation."""
        backend = self.backend
        operation, _, at_once = operation.partition("*")
        if at_once:
            if operation != "all_reduce" or source != target:
                return None
            parts = torch.chunk(tensor_at(target, count), int(at_once))

            def several():
                for work in [backend.allreduce([part]) for part in parts]:
                    work.wait()
            return several
        if operation == "all_reduce" and source == target:
            tensors = [tensor_at(target, count)]
            return lambda: backend.allreduce(tensors).wait()
        if operation == "broadcast":
            tensor = tensor_at(target, count)
            return lambda: backend.broadcast(tensor, 0).wait()
        if operation == "reduce":
            tensors = [tensor_at(target, count)]
            return lambda: backend.reduce(tensors, dist.ReduceOptions()).wait()
        if operation == "all_gather":
            output, share_of_input = tensor_at(target, count), tensor_at(source, share)
            return lambda: backend._allgather_base(output, share_of_input).wait()
        if operation == "reduce_scatter":
            output, whole = tensor_at(target, share), tensor_at(source, count)
            return lambda: backend._reduce_scatter_base(output, whole).wait()
        if operation == "all_to_all":
            output, whole = tensor_at(target, count), tensor_at(source, count)
            return lambda: backend.alltoall_base(output, whole, [], []).wait()
        if operation == "barrier":
            return lambda: backend.barrier().wait()
        return None

    def prepare(self, operation, source, target, count, share):
        try:
            self.current = self.make(operation.decode(), source, target, count, share)
            return NO_SUCH_OPERATION if self.current is None else 0
        except Exception:  # No exception may pass through C++.
            traceback.print_exc()
            return FAILED

    def call(self):
        try:
            self.current()
            return 0
        except Exception:
            traceback.print_exc()
            return FAILED


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bridge", required=True, help="the library made of python_bridge.cc")
    parser.add_argument("--board", required=True)
    parser.add_argument("--meet", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    store = dist.FileStore(os.path.join(arguments.meet, "store"), arguments.ranks)
    dist.init_process_group("gloo", store=store, rank=arguments.rank, world_size=arguments.ranks,
                            timeout=datetime.timedelta(seconds=60))
    group = dist.distributed_c10d._get_default_group()
    calls = Calls(group._get_backend(torch.device("cpu")))
    prepare, call = PREPARE(calls.prepare), CALL(calls.call)
    # PyDLL keeps the interpreter's lock, so calls back into Python need not take it.
    drive = ctypes.PyDLL(arguments.bridge).stretto_bench_drive
    drive.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int,
                      ctypes.c_char_p, PREPARE, CALL]
    status = drive(arguments.board.encode(), arguments.meet.encode(), arguments.rank,
                   arguments.ranks, f"torch {torch.__version__}".encode(), prepare, call)
    # Destroying the group can take Gloo a minute if a rank has already gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
