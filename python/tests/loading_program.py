# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Prints the milliseconds by which stretto delays the loading of torch, plus its own loading time.

Run with TORCH_DEVICE_BACKEND_AUTOLOAD=0, so that PyTorch's search for stretto, and the functions of
stretto that `import torch` would call, run inside the measured time.
"""

import time

import torch
import torch.distributed as dist

assert "stretto" not in dist.Backend.backend_list
begun = time.perf_counter()
torch._import_device_backends()
assert "stretto" in dist.Backend.backend_list
import stretto  # noqa: E402

stretto._module()
print((time.perf_counter() - begun) * 1e3)
