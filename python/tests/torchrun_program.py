# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Started by torchrun: nothing says that there is a backend stretto but its name."""

import torch
import torch.distributed as dist

dist.init_process_group("stretto")
came = torch.ones(1)
dist.all_reduce(came)
if dist.get_rank() == 0:
    print(f"{int(came.item())} of {dist.get_world_size()} ranks", flush=True)
# No destroy_process_group(): the end of the process is the end of the group.
