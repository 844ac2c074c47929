# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Prints the milliseconds that torch takes longer to load because stretto is there, and stretto.

To be run with TORCH_DEVICE_BACKEND_AUTOLOAD=0, so that what `import torch` calls of stretto, and
how PyTorch finds it, comes where it is measured."""

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
