"""In place of a connection to parameter servers, where a replica has none: its parameters are in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from adamctl.config.experiment import Experiment
from adamctl.config.records import JobRecord, job_key
from adamctl.errors import ConfigurationError
from adamctl.kernels.rules.make import load_rule
from adamctl.model.layout import ParameterLayout
from adamctl.net.transport import Request
from adamctl.roles.configuration import read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.outgoing_file import Streams
from adamctl.roles.ps.client.own_parameters import OwnParameters, checkpoint_roots
from adamctl.roles.ps.client.remote_checkpoint import RemoteCheckpoint, Start, checkpoint_place
from adamctl.roles.worker.own.updates import OwnUpdates
from adamctl.roles.worker.replica import Replica
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointPartRequest, CheckpointRequest


class OwnPlace:
    """One session's parameters. Used only on the event loop."""

    def __init__(
        self,
        context: RoleContext,
        job: str,
        experiment: Experiment,
        layout: ParameterLayout,
        held: Sequence[int] | None = None,
        owned: Sequence[int] | None = None,
    ) -> None:
        """`held`, `owned`: see `OwnParameters`; None: all shards."""
        every = range(len(layout.shards))
        self._context, self._job, self._experiment = context, job, experiment
        self._parameters = OwnParameters(
            experiment, layout, every if held is None else held, every if owned is None else owned
        )
        self._roots = checkpoint_roots(context.options)
        self._coordinator = ""
        self._start: Start = ""
        self._remote: RemoteCheckpoint | None = None
        self.streams = Streams(context.log)
        self._parameters_only = False
        self._updates: OwnUpdates | None = None
        self._saving: set[asyncio.Task[None]] = set()

    async def attach(self, deadline_s: float = 0.0) -> None:
        """Reads what the job begins from, and loads the kernels of its rule.

        Raises:
            ConfigurationError: the job is gone.
            RemoteError: it begins from a checkpoint that is in no folder which this worker may read, and which the
                coordinator does not give.
        """
        assert self._context.controller is not None
        found = await read_record(self._context.controller, job_key(self._job), JobRecord)
        if found is None:
            raise ConfigurationError(f"run {self._job} is not known any more")
        self._coordinator, self._parameters_only = found[0].coordinator, found[0].parameters_only
        self._start, self._remote = await checkpoint_place(self._context, self._job, found[0], self._roots)
        await asyncio.to_thread(load_rule, self._experiment.optimizer.rule)

    def updates_of(self, replica: Replica, on_failure: Callable[[BaseException], None]) -> OwnUpdates:
        """Returns what updates a replica's weights. `on_failure` is told if that fails."""
        self._updates = OwnUpdates(
            replica, self._parameters, self._start, on_failure, parameters_only=self._parameters_only
        )
        return self._updates

    def transports(self) -> dict[str, str]:
        """Returns no connections."""
        return {}

    def save(self, request: Request, message: CheckpointRequest) -> None:
        """Serves the coordinator, which asks for this member's part of a checkpoint."""
        if self._updates is None or message.job != self._job:
            request.fail(ErrorCode.NOT_READY, f"job {message.job!r} is not trained here yet")
        elif request.peer.node != self._coordinator:
            text = f"job {message.job!r} is coordinated by {self._coordinator}, not by {request.peer.node}"
            request.fail(ErrorCode.NOT_ALLOWED, text)
        else:
            self.streams.expect(request.connection_id)
            saving = self._updates.save(request, message, self._context.node, self._roots, self.streams)
            self._spawn(saving)

    def part(self, request: Request, message: CheckpointPartRequest) -> None:
        """Serves the coordinator, which fetches this member's part."""
        self._spawn(self.streams.part(request, message))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._saving.add(task)
        task.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        self.streams.close()
        if self._remote is not None:
            await self._remote.close()
        for task in self._saving:
            task.cancel()
        await asyncio.gather(*self._saving, return_exceptions=True)
