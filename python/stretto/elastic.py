# Copyright the stretto authors.
# SPDX-License-Identifier: Apache-2.0

"""Jobs whose processes come and go; public as stretto.ElasticJob."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from stretto import Options


class ElasticJob:
    """A job whose processes come and go while the others keep their memory and go on. Under
    `stretto run --restarts N` a process that dies is started again and joins the others.

    From one change to the next the processes are one generation, with its own default process
    group. Rank 0 is a process that was there before, so all take its state. It is broadcast as one
    object, so that it arrives as a whole, or not at all if rank 0 dies meanwhile.

        with stretto.ElasticJob() as job:
            step = 0
            while job.join():  # False: the job has finished.
                try:
                    newest = [step, network.state_dict(), optimizer.state_dict()]
                    dist.broadcast_object_list(newest, src=0)
                    step = newest[0]
                    network.load_state_dict(newest[1])
                    optimizer.load_state_dict(newest[2])
                    model = DistributedDataParallel(network)
                    while step < steps and not job.has_newcomers():
                        train_step(model, step)
                        step += 1
                    if step == steps:
                        job.finish()
                except dist.DistBackendError as error:  # A loss, or join() raises it again.
                    print(error)

    The processes meet in the store of `stretto run`. Without a launcher the job has one process;
    under other launchers the constructor raises ValueError (docs/elastic_jobs.md).
    """

    def __init__(
        self,
        min_size: int = 1,
        join_timeout: float = 300.0,
        timeout: datetime.timedelta | None = None,
        pg_options: Options | None = None,
    ) -> None:
        """Enters the job. Blocks until its store can be reached.

        min_size: the least number of processes of a generation: join() waits for them. The same in
            all processes.
        join_timeout: how long join() waits for others, and then may take to connect; in seconds.
        timeout, pg_options: of the process groups, as for init_process_group().
        """
        from stretto import _module

        module = _module()
        if not isinstance(timeout, datetime.timedelta | None):
            raise TypeError(f"timeout is a datetime.timedelta, not {timeout!r}")
        if timeout is not None:  # 30 years at most: PyTorch cannot count datetime.timedelta.max.
            timeout = min(timeout, datetime.timedelta(seconds=1e9))
        self._timeout = timeout
        self._options = pg_options or module.Options()
        seconds = None if timeout is None else timeout.total_seconds()
        self._job: Any = module.ElasticJob(min_size, join_timeout, seconds, self._options)

    def join(self) -> bool:
        """Makes the default process group of the next generation. It destroys all groups of the
        last generation, so models have to be wrapped again. Returns False, and makes no group, if
        the job has finished.

        Waits for all living processes of the last generation, and for those that enter meanwhile;
        the first generation waits for as many as the launcher starts. Starts over if a process
        dies meanwhile. If too few arrive within join_timeout, raises DistBackendError, which says
        who is missing; the program may call it again. A new process that could not connect to the
        others has left the job: further calls raise DistBackendError, and another ElasticJob may
        enter.

        Raises the last DistBackendError of a generation again if it was not the loss of a process,
        because the next generation would fail in the same way, for example when ranks call
        different collectives. A program that has handled the error and has gone on to
        has_newcomers() or finish() does not get it again."""
        import torch.distributed as dist

        job = self._entered()
        if dist.is_initialized():
            job.check_last_failure()  # First: the groups tell the other ranks.
        self._destroy_groups()
        place = job.join()
        if place is None:
            return False
        store, rank, size = place
        dist.init_process_group(
            "stretto",
            store=store,
            rank=rank,
            world_size=size,
            timeout=self._timeout,
            pg_options=self._options,
        )
        return True

    def finish(self) -> None:
        """Says that all steps are done: from now on join() returns False in every process, so that
        processes that enter later do not train from the start. It suffices that one rank calls
        it."""
        self._entered().finish()

    def has_newcomers(self) -> bool:
        """Whether a process waits to enter; then all ranks have to call join(). Collective in the
        default group. Takes some hundred microseconds, because rank 0 asks the store."""
        from stretto import _backend

        return self._entered().has_newcomers(_backend(None))

    @property
    def generation(self) -> int:
        """The number of the generation that join() began last, from 1; 0 before the first."""
        return self._entered().generation()

    def leave(self) -> None:
        """Destroys the process groups and leaves the job, which goes on without this process."""
        if self._job is not None:
            self._destroy_groups()
            self._job = None

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Calls leave(). If an exception ends the block, the other ranks are told of it."""
        from stretto import _end_groups

        try:
            if error is not None and not (isinstance(error, SystemExit) and not error.code):
                _end_groups(error)
        finally:
            self.leave()

    def _entered(self) -> Any:
        if self._job is None:
            raise ValueError("this process has left the job: a new ElasticJob enters it again")
        return self._job

    @staticmethod
    def _destroy_groups() -> None:
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
