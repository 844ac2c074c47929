# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""A program for torchrun that names the backend stretto and does not import it."""

import torch
import torch.distributed as dist

dist.init_process_group("stretto")
came = torch.ones(1)
dist.all_reduce(came)
if dist.get_rank() == 0:
    print(f"{int(came.item())} of {dist.get_world_size()} ranks", flush=True)
# destroy_process_group() is not called: the end of the process ends the group.
