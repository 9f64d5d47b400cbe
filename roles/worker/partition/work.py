"""A worker's part in a run whose replicas have several partitions: it leads a group, or is another member of one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from adamctl.config.class_weights import class_weights
from adamctl.config.partitioning import flight_size, flights_of, plan_of
from adamctl.errors import AdamctlError, RemoteError, RunFailedError, UnreachableError
from adamctl.kernels.backend import choose
from adamctl.kernels.partition.stages import CutNetwork, cut_network, cuts_of
from adamctl.model.layout import ParameterLayout
from adamctl.model.partition.plan import PartitionPlan
from adamctl.net.transport import Connection, Request
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.roles.data.client.data_client import DataClient, DataSet
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.core.open_flights import Patience
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.roles.worker.partition.bundle_engine import BundleEngine
from adamctl.roles.worker.partition.bundle_member import BundleMember
from adamctl.roles.worker.partition.engine import PartitionEngine, held_shards, owned_shards
from adamctl.roles.worker.partition.executor import GroupExecutor
from adamctl.roles.worker.partition.flight_engine import FlightEngine, Parts
from adamctl.roles.worker.partition.group import LEAD, Group
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.partition.links import Links, NeighbourError, NotAttachedError
from adamctl.roles.worker.partition.member_session import MemberSession
from adamctl.roles.worker.partition.threads import SPINS, FlightDone
from adamctl.roles.worker.sandblaster.session import SandblasterRunner
from adamctl.roles.worker.session import SessionRunner
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import GroupWatchRequest, PartAttachRequest, PartDataRequest

ATTACH_DEADLINE_S = 60.0
PATIENCE = Patience()
WATCH_S = 5.0
ENDS_WITHIN_S = 10.0
"""How long the coordinator may take to dissolve a group after it was told."""


class ThreadsHangError(RunFailedError):
    """Threads of this process cannot be stopped, so it cannot go on; another one in its place can."""


class GroupEndedError(RunFailedError):
    """The group was dissolved, or the run is over; nothing that this worker did. `ended`: the run is over."""

    def __init__(self, cause: str, ended: bool) -> None:
        super().__init__(cause)
        self.ended = ended


class GroupWork:
    """One worker's part in one group. Everything runs on the event loop.

    Attributes:
        runner: the session of a lead.
        member: that of another member.
        own: its parameters, where there are no servers.
    """

    def __init__(self, context: RoleContext, job: str, coordinator: CoordinatorClient, joined: Joined) -> None:
        self._context, self._job, self._coordinator, self._joined = context, job, coordinator, joined
        self._experiment = joined.experiment
        self.plan: PartitionPlan = plan_of(self._experiment)
        self.runner: SessionRunner | SandblasterRunner | None = None
        self.member: MemberSession | None = None
        self.own: OwnPlace | None = None
        self._lead: Lead[Any] | None = None
        self._links: Links | None = None
        self._engine: FlightEngine | None = None
        self._group: Group | None = None
        self._telling: asyncio.Task[None] | None = None
        self._own = joined.reply.partition

    def status(self) -> dict[str, object]:
        session = self.runner or self.member
        return {"state": "joining its group", "job": self._job} if session is None else session.status()

    @property
    def has_worked(self) -> bool:
        """Whether the group has finished a flight."""
        return self._engine is not None and self._engine.flights_done > 0

    def handle(self, request: Request) -> None:
        """Serves the other members of the group."""
        session = self._lead or self.member
        if self._links is None or session is None:
            request.fail(ErrorCode.NOT_READY, "this worker is only joining its group; try again")
        elif isinstance(request.message, PartAttachRequest):
            self._links.attached(request)
        elif isinstance(request.message, PartDataRequest):
            self._links.arrived(request)
        elif refused := self._refusal(request):
            request.fail(ErrorCode.NOT_ALLOWED, refused)
        else:
            session.handle(request)

    def _refusal(self, request: Request) -> str:
        """Returns why a sender may not ask this of a member of the group; what is of another group is answered so."""
        group, message = self._group, request.message
        of_group = group is not None and getattr(message, "group_epoch", 0) == group.epoch
        return group.refusal(request.peer, message) if group is not None and of_group else ""

    def place(self, request: Request) -> memoryview | None:
        """Says where the body of a block from another member goes."""
        return None if self._links is None else self._links.place(request)

    async def run(
        self,
        layout: ParameterLayout,
        threads: int,
        cores: int,
        session: int,
        connect: Callable[[str], Awaitable[Connection]],
    ) -> str:
        """Works until the run or the group ends; returns the reason of the first.

        Args:
            session: how many sessions this process has had before.
            connect: connects to a node.

        Raises:
            GroupEndedError: the group was dissolved; the worker should join again.
            ThreadsHangError: this process must end.
            AdamctlError: this worker failed, or a server did.
        """
        experiment, context, joined = self._experiment, self._context, self._joined
        network = cut_network(experiment.model, cuts_of(self.plan), choose())
        group = self._group = Group(
            self._job, joined.reply.group_epoch, self._own, joined.members, self.plan.hash,
            flight_size(experiment, threads), flights_of(experiment, threads),
        )  # fmt: skip
        here = sum(one.host == joined.members[self._own].host for one in joined.members)
        parts = Parts(group, network, layout, experiment, threads, SPINS if here * threads < cores else 0, context.log)
        parameters = self._parameters_of(layout, network, session)
        data = DataClient.from_context(context, joined.data_servers)
        self._links = Links(group, network, connect)
        watching = asyncio.create_task(self._watch(group))
        working: asyncio.Task[str] | None = None
        try:
            _, dataset = await asyncio.gather(
                parameters.attach(deadline_s=ATTACH_DEADLINE_S),
                data.open(experiment.data, experiment.model.input, experiment.seed),
            )
            working = asyncio.create_task(self._work(_weighted(parts, dataset), parameters, data, dataset))
            await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise watching.exception() or RunFailedError("the coordinator is not watched any more")
        except AdamctlError as failure:
            self._tell(group, failure)
            if isinstance(failure, NeighbourError):  # not this member's fault: the coordinator says so
                await asyncio.wait({watching}, timeout=ENDS_WITHIN_S)
                if watching.done() and isinstance(ended := watching.exception(), GroupEndedError):
                    raise ended from failure
            raise
        finally:
            for task in (watching, working):
                if task is not None:
                    task.cancel()
                    with suppress(BaseException):
                        await task
            if self._lead is not None and self.runner is None:
                await self._lead.close()
            if self._telling is not None:
                await self._telling
            if self._engine is not None:
                await self._engine.close()  # the task that was about to may have been cancelled while it did
            await data.close()
            await parameters.close()
            if self._engine is not None and self._engine.hangs:
                raise ThreadsHangError(
                    f"run {self._job}: threads of {group.name(self._own)} do not stop; this process ends, and another "
                    "one can take its place"
                )
            await self._links.close()

    def _parameters_of(self, layout: ParameterLayout, network: CutNetwork, session: int) -> ParameterClient | OwnPlace:
        experiment, context, own = self._experiment, self._context, self._own
        if experiment.has_own_parameters:
            held, owned = held_shards(layout, network, own), owned_shards(layout, own)
            self.own = OwnPlace(context, self._job, experiment, layout, held, owned)
            return self.own
        return ParameterClient.from_context(
            context, self._job, wire_push=experiment.train.wire_push, wire_pull=experiment.train.wire_pull,
            in_step=experiment.train.in_step, connections=experiment.cluster.connections, session=session,
            choose=lambda found: held_shards(found, network, own),
        )  # fmt: skip

    async def _work(
        self, parts: Parts, parameters: ParameterClient | OwnPlace, data: DataClient, dataset: DataSet
    ) -> str:
        assert self._links is not None
        group, context = parts.group, self._context
        is_batch = parts.experiment.optimizer.is_batch
        if self._own != LEAD:
            kind = BundleMember if is_batch else MemberSession
            member = kind(group, self._links, parts.experiment, dataset, data, context.log, parts.threads)
            member.engine = self._make_engine(parts, parameters, member.flight_done, member.fail)
            self.member = member
            return await member.run(context.stopping)
        failures: list[BaseException] = []

        def fail(failure: BaseException) -> None:
            failures.append(failure)
            if isinstance(failure, NeighbourError):
                self._tell(group, failure)  # at once: the others wait, and threads that hang take long to stop
            if self.runner is not None:
                self.runner.fail(failure)

        lead: Lead[Any] = Lead(group, self._links, reporter_of(parts.network), fail, PATIENCE, self.plan.in_short)
        lead.engine = self._make_engine(parts, parameters, lead.flight_done, fail)
        self._lead = lead
        await lead.begin()
        if failures:
            raise failures[0]
        session = Session(
            group.job,
            context.node,
            context.incarnation,
            parts.experiment,
            dataset,
            None,
            parts.experiment.train.batch,
            parts.layout,
            parts.threads,
            1,
            self._coordinator,
            parameters,
            data,
            context.log,
            lead,
            group.epoch,
        )
        if is_batch:
            self.runner = SandblasterRunner(session, executor=GroupExecutor(lead, group.flights))
        else:
            self.runner = SessionRunner(session)
        context.log.info("run %s: replica of %d partitions, led here", group.job, len(group.members))
        try:
            cause = await self.runner.run(context.stopping)
            if self.runner.over:  # if not, the coordinator tells the others, and they join again
                await lead.end(cause)
            return cause
        finally:
            await lead.close()

    def _make_engine(
        self,
        parts: Parts,
        parameters: ParameterClient | OwnPlace,
        done: Callable[[FlightDone], None],
        failed: Callable[[BaseException], None],
    ) -> FlightEngine:
        assert self._links is not None
        if parts.experiment.optimizer.is_batch:
            assert isinstance(parameters, ParameterClient), "batch algorithms have servers"
            self._engine = BundleEngine(parts, self._links, parameters, done, failed)
        else:
            self._engine = PartitionEngine(parts, self._links, parameters, done, failed)
        return self._engine

    async def _watch(self, group: Group) -> None:
        """Waits for news of the group. Raises GroupEndedError when it is no more."""
        while True:
            request = GroupWatchRequest(
                self._context.node, self._context.incarnation, group.epoch, WATCH_S, group.plan_hash,
                str(self.status().get("state", "")),
            )  # fmt: skip
            news = await self._coordinator.watch(request)
            if news.state != "alive":
                raise GroupEndedError(news.cause or f"the group is {news.state}", news.state == "ended")

    def _tell(self, group: Group, failure: AdamctlError) -> None:
        """Tells the coordinator why this member cannot go on, so that the others need not wait for it."""
        if isinstance(failure, GroupEndedError) or self._telling is not None:
            return
        blamed = failure.partition if isinstance(failure, NeighbourError) else self._own
        fault = "unreachable" if isinstance(failure, NotAttachedError) else ""
        self._telling = asyncio.create_task(self._drop(group, blamed, str(failure), fault))

    async def _drop(self, group: Group, blamed: int, why: str, fault: str) -> None:
        context = self._context
        with suppress(UnreachableError, RemoteError):
            await self._coordinator.drop(context.node, context.incarnation, group.epoch, blamed, why, fault)


def reporter_of(network: CutNetwork) -> int:
    """Returns the partition that tells the loss: the first with a part of the last stage."""
    return next(number for number, part in enumerate(network.stages[-1].parts) if part is not None)


def _weighted(parts: Parts, dataset: DataSet) -> Parts:
    """Returns the parts with what the classes of the data weigh in the loss."""
    given, network = parts.experiment.train.class_weights, parts.network
    outputs = network.stages[-1].layers[-1].operation.output_shape[0]
    weights = class_weights(given, dataset.classes, dataset.class_examples, outputs)
    return parts if weights is None else replace(parts, network=replace(network, class_weights=tuple(weights)))
