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
    `stretto run --restarts N` a process that dies is started again and gets in.

    From one change to the next the processes are one generation, with a default process group of
    its own. Rank 0 is a process that was there before, so all take its state: as one object, which
    has come as a whole or not at all if rank 0 dies meanwhile.

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

    The processes meet in the store of `stretto run`. Without a launcher it is a job of one process;
    other launchers are refused with ValueError (docs/elastic_jobs.md).
    """

    def __init__(
        self,
        min_size: int = 1,
        join_timeout: float = 300.0,
        timeout: datetime.timedelta | None = None,
        pg_options: Options | None = None,
    ) -> None:
        """Enters the job. Blocks until its store is there.

        min_size: no generation begins with fewer processes: join() waits for more. The same in all
            processes.
        join_timeout: how long join() waits for others, and then may take to connect; in seconds.
        timeout, pg_options: of the process groups, as for init_process_group().
        """
        from stretto import _module

        module = _module()
        self._timeout = timeout
        self._options = pg_options or module.Options()
        # At most 30 years: init_process_group() takes any timedelta, our clock does not.
        seconds = None if timeout is None else min(timeout.total_seconds(), 1e9)
        self._job: Any = module.ElasticJob(min_size, join_timeout, seconds, self._options)

    def join(self) -> bool:
        """Makes the default process group of the next generation, in the place of the last one:
        all groups of that are destroyed, and models have to be wrapped again. Returns False, and
        makes none, if the job has finished.

        Waits for all processes of the last generation that live, and for those that come
        meanwhile; the first one waits for as many as the launcher starts. Begins anew if a process
        dies meanwhile. Raises DistBackendError if too few come within join_timeout, and says who
        is missing; it may be called again then. A new process that could not connect to the others
        has left the job: further calls raise DistBackendError, and another ElasticJob may enter.

        Raises again the last DistBackendError of a generation if that was no loss, because the next
        one would fail alike: where ranks call different things, say. A program that has handled it
        and has gone on to has_newcomers() or finish() does not get it again."""
        import torch.distributed as dist

        job = self._entered()
        if dist.is_initialized():
            job.check_last_failure()  # Before the groups go: others hear of it by them.
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
        """All steps are done: from now on join() returns False in every process, so that those
        that come later, or again, do not begin from the start. One rank suffices."""
        self._entered().finish()

    def has_newcomers(self) -> bool:
        """Whether a process waits to get in; then all ranks have to call join(). Collective, by
        the default group. Takes some hundred microseconds, because rank 0 asks the store."""
        from stretto import _backend

        return self._entered().has_newcomers(_backend(None))

    @property
    def generation(self) -> int:
        """The number of the generation that join() has begun last, from 1; 0: none yet."""
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
        """leave(); other ranks hear of the exception, if one ends the block."""
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
