# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""What programs see of the compiled module: Options, which is stretto.Options."""

from torch._C._distributed_c10d import Backend

class Options(Backend.Options):
    def __init__(
        self,
        network_timeout: float | None = None,
        warn_after: float | None = None,
        disable_shared_memory: bool = False,
        backend: str | None = None,
    ) -> None: ...
    network_timeout: float | None
    warn_after: float | None
    disable_shared_memory: bool
    device: int | None
