"""The worker process: finds a run that needs workers, joins it, trains until it ends, and looks for the next.

The kernels that every run uses are loaded or compiled in a thread from the start, so that a run need not wait for them.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from adamctl.config.class_weights import class_weights
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.config.records import JobRecord, job_key
from adamctl.errors import ConfigurationError, MisfitError, RemoteError, RunFailedError, UnreachableError
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.needed import COMMON_KERNELS
from adamctl.kernels.step.network import Network
from adamctl.model.custom.registry import other_source
from adamctl.model.layout import ParameterLayout, build_layout
from adamctl.net.transport import Request
from adamctl.roles.configuration import read_record
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.client import CoordinatorClient, Joined
from adamctl.roles.data.client.data_client import DataClient
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.core.shares import shares_of
from adamctl.roles.worker.divergence import DivergedError
from adamctl.roles.worker.joining import CONNECT_S, RETRY_S, RunFinder, Taken, store_of
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.roles.worker.partition.links import NeighbourError
from adamctl.roles.worker.partition.work import GroupEndedError, GroupWork
from adamctl.roles.worker.sandblaster.session import SandblasterRunner
from adamctl.roles.worker.session import SessionRunner
from adamctl.roles.worker.whole_replica import Session
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    CheckpointPartRequest,
    CheckpointRequest,
    PartAttachRequest,
    PartBundleRequest,
    PartDataRequest,
    PartDoneRequest,
    PartEndRequest,
    PartExamplesRequest,
    PartFlushRequest,
    PartGrantRequest,
    PartPortionsRequest,
    PartPullRequest,
    PartReadyRequest,
    PartStatusRequest,
    PartStepRequest,
    PartTaskRequest,
)

_LOG = logging.getLogger(__name__)

ATTACH_DEADLINE_S = 60.0
ENDS_WITHIN_S = 10.0
REJOINS_MAX = 5
REJOINS_FORGOTTEN_AFTER_S = 300.0
"""After this much training, losses count from zero again: a run of a week may see many servers restarted."""
PARTITION_REQUESTS = (
    PartAttachRequest, PartReadyRequest, PartTaskRequest, PartDoneRequest, PartFlushRequest, PartEndRequest,
    PartDataRequest, PartStatusRequest, PartGrantRequest, PartStepRequest, PartExamplesRequest, PartPullRequest,
    PartPortionsRequest, PartBundleRequest,
)  # fmt: skip


@dataclass
class WorkerProcess:
    """One worker process; at most one session at a time.

    `sessions`: how many it has had. `group_worked`: its last group has finished a flight. `own`: the parameters of a
    session of one process without servers.
    """

    context: RoleContext
    threads: int
    session: SessionRunner | SandblasterRunner | None = None
    group: GroupWork | None = None
    own: OwnPlace | None = None
    sessions: int = 0
    group_worked: bool = False
    jobs_done: set[str] = field(default_factory=set)

    def status(self) -> dict[str, Any]:
        if self.group is not None:
            return self.group.status()
        if self.session is None:
            return {"state": "waiting for a run", "threads": self.threads}
        return self.session.status()

    def handle(self, request: Request) -> None:
        """Serves the other members of a group, and the coordinator of a run without parameter servers."""
        if isinstance(request.message, CheckpointRequest):
            own = self.own if self.group is None else self.group.own
            if own is None:
                request.fail(ErrorCode.NOT_READY, "this worker holds no parameters now")
            else:
                own.save(request, request.message)
        elif isinstance(request.message, CheckpointPartRequest):
            own = self.own if self.group is None else self.group.own
            if own is None:
                request.fail(ErrorCode.NOT_READY, "this worker holds no parameters now")
            else:
                own.part(request, request.message)
        elif isinstance(request.message, PARTITION_REQUESTS):
            if self.group is None:
                request.fail(ErrorCode.NOT_READY, "this worker is in no group now; try again")
            else:
                self.group.handle(request)
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, "a worker serves its group, STATUS and SHUTDOWN alone")

    def disconnected(self, connection: int) -> None:
        """Ends what was fetched over a connection."""
        own = self.own if self.group is None else self.group.own
        if own is not None:
            own.streams.disconnected(connection)

    def place(self, request: Request) -> memoryview | None:
        """Says where the body of a block from another member of its group goes; None: nowhere, it is dropped."""
        if self.group is None or not isinstance(request.message, PartDataRequest):
            return None
        return self.group.place(request)


async def run(context: RoleContext) -> None:
    """Serves runs until told to stop; with `once`, a single one."""
    threads = context.options.get("threads")
    threads = available_cores() if threads is None else threads
    if threads < 1:
        raise ConfigurationError(f"--threads: expected at least 1; found {threads}")
    process = WorkerProcess(context, int(threads))
    context.status = process.status
    loader = ThreadPoolExecutor(1, thread_name_prefix="compile")
    # In parallel: importing the compiler takes half a second.
    compiled = asyncio.get_running_loop().run_in_executor(loader, load_if_compiled, COMMON_KERNELS)
    await context.serve(process.handle, placing=process.place, on_disconnect=process.disconnected)
    stop = asyncio.create_task(context.stopping.wait())
    try:
        await _serve_runs(process, stop, compiled)
    finally:
        stop.cancel()
        loader.shutdown(wait=False)


def _network(context: RoleContext, experiment: Experiment, shares: int) -> Network:
    """Returns the run's network with all kernels loaded, for steps on a share of a batch."""
    network = Network(experiment.model, experiment.train.batch // shares)
    began_s, names = time.monotonic(), list[str]()
    clipping, weighted = experiment.optimizer.clip_norm is not None, experiment.train.class_weights != "none"
    network.compile(names.append, clipping, weighted)
    context.log.info("%d kernels of the model loaded in %.1f s", len(names), time.monotonic() - began_s)
    return network


async def _serve_runs(process: WorkerProcess, stop: asyncio.Task[bool], compiled: asyncio.Future[Any]) -> None:
    context, rejoins = process.context, 0
    while not context.stopping.is_set():
        if process.sessions:
            gc.collect()  # what a session had refers to itself; its memory must not wait until much else was made
        joining = asyncio.create_task(_find_run(process))
        await asyncio.wait({stop, joining}, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()
            return
        job, coordinator, joined = joining.result()
        try:
            await compiled
            reason = await _train(process, job, coordinator, joined)
            context.log.info("run %s: %s", job, reason or "ended")
            process.jobs_done.add(job)
            rejoins = 0
        except GroupEndedError as end:
            context.log.warning("run %s: %s%s", job, end, "" if end.ended else "; joining again")
            if end.ended:
                process.jobs_done.add(job)
        except MisfitError as failure:
            context.log.warning("run %s cannot use this worker: %s", job, failure)
            if not await _ends_soon(context, job) and context.options.get("once"):
                raise
            process.jobs_done.add(job)
        except (UnreachableError, RemoteError, DivergedError, NeighbourError) as failure:
            # A replica that has diverged starts over from the servers' parameters: they refused what was not finite.
            # This counts for good, or it could go on for ever.
            if not isinstance(failure, DivergedError) and _has_trained(process):
                rejoins = 0
            if isinstance(failure, NeighbourError) and process.group_worked:
                rejoins = 0  # another one's death is not counted against this one
            if not isinstance(failure, DivergedError) and await _ends_soon(context, job):
                context.log.info("run %s is over: %s", job, failure)
                process.jobs_done.add(job)
            elif rejoins < REJOINS_MAX:
                rejoins += 1
                context.log.warning("run %s: %s; joining again", job, failure)
            else:
                raise
        finally:
            process.session = None
            await coordinator.close()
        if context.options.get("once") and job in process.jobs_done:
            return


def _has_trained(process: WorkerProcess) -> bool:
    """Whether the session that has just ended trained for long enough."""
    return process.session is not None and process.session.trained_s >= REJOINS_FORGOTTEN_AFTER_S


async def _find_run(process: WorkerProcess) -> Taken:
    """Waits for a running job that accepts this worker."""
    context = process.context
    return await RunFinder(context, process.threads, context.options.get("job"), process.jobs_done).find()


async def _train(process: WorkerProcess, job: str, coordinator: CoordinatorClient, joined: Joined) -> str:
    context, experiment = process.context, joined.experiment
    if joined.reply.partitions > 1:
        return await _work_in_group(process, job, coordinator, joined)
    layout = build_layout(experiment.model, joined.reply.servers_expected)
    if problem := other_source(experiment.model, joined.sources):
        raise RunFailedError(f"run {job}: {problem}")
    if layout.hash != joined.reply.layout_hash:
        raise RunFailedError(f"run {job}: {_other_layout(layout, joined)}")
    train = experiment.train
    threads = 1 if train.in_step else process.threads
    shares = shares_of(experiment, layout.parameter_count, threads)
    # In a thread: it may compile for seconds, during which this worker must still send to the coordinator.
    network = await asyncio.to_thread(_network, context, experiment, shares)
    parameters: ParameterClient | OwnPlace
    if experiment.has_own_parameters:
        parameters = process.own = OwnPlace(context, job, experiment, layout)
    else:
        parameters = ParameterClient.from_context(
            context,
            job,
            wire_push=train.wire_push,
            wire_pull=train.wire_pull,
            in_step=train.in_step,
            connections=experiment.cluster.connections,
            session=process.sessions,
        )
    process.sessions += 1
    data = DataClient.from_context(context, joined.data_servers)
    try:
        _, dataset = await asyncio.gather(
            parameters.attach(deadline_s=ATTACH_DEADLINE_S),
            data.open(experiment.data, experiment.model.input, experiment.seed),
        )
        network.weigh_classes(
            class_weights(train.class_weights, dataset.classes, dataset.class_examples, network.shapes[-1].output[0])
        )
        session = Session(
            job,
            context.node,
            context.incarnation,
            experiment,
            dataset,
            network,
            network.batch_max,
            layout,
            threads,
            shares,
            coordinator,
            parameters,
            data,
            context.log,
        )
        process.session = SandblasterRunner(session) if experiment.optimizer.is_batch else SessionRunner(session)
        context.log.info("run %s: replica %d, threads: %d", job, joined.reply.replica, threads)
        return await process.session.run(context.stopping)
    finally:
        process.own = None
        await data.close()
        await parameters.close()


def _other_layout(layout: ParameterLayout, joined: Joined) -> str:
    return (
        f"this worker derives parameter layout {layout.hash}, the coordinator {joined.reply.layout_hash}; both must "
        "run the same version of adamctl"
    )


async def _fitting_layout(context: RoleContext, coordinator: CoordinatorClient, joined: Joined) -> ParameterLayout:
    """Returns the layout of a run whose plan this worker derives as the coordinator does.

    Raises:
        MisfitError: it derives another plan or layout; the coordinator has been told.
    """
    experiment, reply = joined.experiment, joined.reply
    plan = plan_of(experiment)
    layout = build_layout(experiment.model, reply.servers_expected, plan.owners)
    if problem := other_source(experiment.model, joined.sources):
        pass
    elif reply.plan_hash not in ("", plan.hash):
        problem = (
            f"this worker derives partition plan {plan.hash}, the coordinator {reply.plan_hash}; both must run the "
            "same version of adamctl"
        )
    elif layout.hash != reply.layout_hash:
        problem = _other_layout(layout, joined)
    else:
        return layout
    with suppress(UnreachableError, RemoteError):
        await coordinator.drop(
            context.node, context.incarnation, reply.group_epoch, reply.partition, problem, fault="unfit"
        )
    raise MisfitError(problem)


async def _work_in_group(process: WorkerProcess, job: str, coordinator: CoordinatorClient, joined: Joined) -> str:
    context = process.context
    layout = await _fitting_layout(context, coordinator, joined)
    process.group = GroupWork(context, job, coordinator, joined)
    session, threads = process.sessions, 1 if joined.experiment.train.in_step else process.threads
    process.sessions += 1
    context.log.info(
        "run %s: partition %d of %d of replica %d, threads: %d",
        job, joined.reply.partition, joined.reply.partitions, joined.reply.replica, threads,
    )  # fmt: skip
    try:
        return await process.group.run(
            layout, threads, available_cores(), session, partial(context.connect, deadline_s=CONNECT_S)
        )
    finally:
        process.group_worked = process.group.has_worked
        process.group = None


def available_cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def _ends_soon(context: RoleContext, job: str) -> bool:
    """Says whether a run has ended or ends within seconds: a worker often sees the cause before its coordinator does.

    Asks the configuration service, since the coordinator may be gone already.
    """
    for _ in range(round(ENDS_WITHIN_S / RETRY_S)):
        found = await read_record(store_of(context), job_key(job), JobRecord)
        if found is None or found[0].state == "ended":
            return True
        if context.stopping.is_set():
            return True
        await asyncio.sleep(RETRY_S)
    return False
