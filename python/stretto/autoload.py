# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Called by `import torch` (entry point torch.backends), so it loads nothing by itself."""

from __future__ import annotations

import atexit
from typing import Any


def register() -> None:
    """Makes "stretto" a backend that init_process_group() knows."""
    import torch.distributed as dist

    if not dist.is_available() or "STRETTO" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("stretto", _create, extended_api=True, devices=["cpu", "cuda"])
    # No thread of a group that was never destroyed may outlive Python. What a program gives to
    # atexit after `import torch` runs before this, and may use its groups.
    from stretto import _end_groups

    atexit.register(_end_groups)


def _create(place: Any, options: Any) -> Any:
    from stretto import _create_backend

    return _create_backend(place, options)
