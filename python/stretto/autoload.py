# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""`import torch` calls this (entry point torch.backends), so it must not load anything itself."""

from __future__ import annotations

import atexit
from typing import Any


def register() -> None:
    """Registers the backend "stretto" for init_process_group()."""
    import torch.distributed as dist

    if not dist.is_available() or "STRETTO" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("stretto", _create, extended_api=True, devices=["cpu", "cuda"])
    # Ends groups that were never destroyed, whose threads must not outlive Python. Functions that a
    # program registers with atexit after `import torch` run before, and may use the groups.
    from stretto import _end_groups

    atexit.register(_end_groups)


def _create(place: Any, options: Any) -> Any:
    from stretto import _create_backend

    return _create_backend(place, options)
