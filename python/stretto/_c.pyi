# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""The compiled module; for use by the package only."""

import torch
from torch._C._distributed_c10d import Store

class JoinOptions:
    def __init__(
        self,
        network_timeout: float | None,
        warn_after: float | None,
        disable_shared_memory: bool,
        backend: str | None,
    ) -> None: ...

class DdpCommHook:
    def __init__(self, kind: str, options: dict[str, object], /) -> None: ...
    def attach(
        self, backend: object, names: list[str], parameters: list[torch.Tensor], /
    ) -> None: ...
    def reduce(
        self,
        index: int,
        is_last: bool,
        buffer: torch.Tensor,
        gradients: list[torch.Tensor],
        numbers: list[int],
        /,
    ) -> None: ...
    def name(self) -> str: ...
    def last_step(self) -> dict[str, float]: ...
    def save(self) -> bytes: ...
    def load(self, state: bytes, /) -> None: ...

def redistribute(states: list[bytes], ranks: int, /) -> list[bytes]: ...
def create(
    store: Store,
    rank: int,
    size: int,
    timeout_seconds: float,
    group_name: str,
    global_ranks: list[int],
    join_options: JoinOptions,
    /,
) -> object: ...
def shut_down_all(reason: str, /) -> None: ...
def note(backend: object, activity: str, /) -> None: ...
def describe_links(backend: object, /) -> str: ...
def explain(backend: object, collective: str, tensor: torch.Tensor, /) -> str: ...
def flight_record() -> bytes: ...
def time_all_reduces(
    backend: object, tensors: list[torch.Tensor], repeat: int, clock: int, /
) -> list[float]: ...
