"""The coordinator process: carries out one run, from its experiment to its summary."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from adamctl.config.class_weights import class_weights
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of as partition_plan
from adamctl.config.resolved import read_resolved
from adamctl.errors import AdamctlError, ConfigurationError, MisfitError, RunFailedError, UnreachableError
from adamctl.model.custom.plain import experiment_from_user
from adamctl.model.layout import build_layout
from adamctl.model.metric import takes_targets, target_numbers
from adamctl.model.shapes import infer
from adamctl.optimizers.configured import check_copies
from adamctl.roles.configuration import ConfigurationStore, Waiting
from adamctl.roles.context import RoleContext
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.batch_start import check_examples, make_batch
from adamctl.roles.coordinator.checkpoint.members import MemberCheckpoints
from adamctl.roles.coordinator.checkpoint.serving import ServedCheckpoint
from adamctl.roles.coordinator.checkpoint.writer import CheckpointWriter, find_start
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.instructions import WriteCheckpoint
from adamctl.roles.coordinator.core.losses import LossCore
from adamctl.roles.coordinator.core.progress import RoleRow
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.data_reading import DataReading
from adamctl.roles.coordinator.job import Servers, choose_name, create_job, end_job, find_servers, partitions_of
from adamctl.roles.coordinator.losses import Losses
from adamctl.roles.coordinator.plan import loss_plan, run_plan
from adamctl.roles.coordinator.records import RunRecords
from adamctl.roles.coordinator.room import check_room, jobs_in_step
from adamctl.roles.coordinator.service import RunService
from adamctl.roles.data.client.data_client import DataClient, DataSet, check_answers
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.wire.messages import RunJoinReply
from adamctl.wire.unreadable import UNREADABLE

METRICS_EVERY_S: Final = 5.0
TELL_WORKERS_S: Final = 1.5
TELL_FRONT_S: Final = 1.5
END_JOB_S: Final = 3.0
NAMES_CHOSEN_MAX: Final = 10  # attempts, each lost to another run


async def run(context: RoleContext) -> None:
    """Runs one job to its end.

    Raises:
        ConfigurationError: the experiment, the data or the checkpoint to resume from does not fit.
        UnreachableError: servers or workers did not come within `--wait`.
        RunFailedError: the run failed; the message is the first cause.
    """
    options = context.options
    experiment = load(options.get("experiment"), options.get("set") or ())
    folder, resume = Path(options.get("run_dir") or "."), options.get("resume") or "none"
    coordinator = Coordinator(
        context, experiment, folder, resume, float(options.get("wait") or 60.0), bool(options.get("tended"))
    )
    await coordinator.run(options.get("job"))


def load(path: str | None, settings: Sequence[str] = ()) -> Experiment:
    """Reads the experiment that `--experiment` names: TOML, with what `--set` changes, or JSON by its ending."""
    if not path:
        raise ConfigurationError("--experiment: expected the file of a resolved experiment; found none")
    if not path.endswith(".json"):
        return read_resolved(path, settings)
    try:
        return msgspec.convert(experiment_from_user(msgspec.json.decode(Path(path).read_bytes())), Experiment)
    except (OSError, *UNREADABLE) as error:
        raise ConfigurationError(f"--experiment {path}: {error}") from error


class Coordinator:
    """Sets up a run, follows it, and ends it."""

    def __init__(
        self, context: RoleContext, experiment: Experiment, folder: Path, resume: str, wait_s: float, tended: bool
    ) -> None:
        """`tended`: the program that started this process also starts the others of the run."""
        assert context.controller is not None
        self.context, self.experiment, self.folder = context, experiment, folder
        self.store: ConfigurationStore = context.controller
        self.resume, self.wait_s, self.tended = resume, wait_s, tended
        partitions = partitions_of(experiment)
        self.layout = build_layout(
            experiment.model, experiment.cluster.ps, partition_plan(experiment, partitions).owners
        )
        check_copies(experiment, self.layout)
        self.job, self.asked_for = "", False
        self._cause: AdamctlError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._parameters: ParameterClient | None = None
        self._losses: Losses | None = None
        self._created = False

    async def run(self, job: str | None) -> None:
        loop = asyncio.get_running_loop()
        try:
            self.records = RunRecords(self.folder, self._say)
        except OSError as error:
            raise ConfigurationError(f"--run-dir {self.folder}: {error.strerror}; choose a writable folder") from error
        self.asked_for = bool(job)
        self.job = await choose_name(self.store, job or self.experiment.name, self.asked_for)
        core = RunCore(run_plan(self.experiment, self.job, self.wait_s, self.tended), loop.time())
        self.service = service = RunService(core, self.experiment, self.context.log)
        service.role_counts = {"controller": 1, "coordinator": 1}
        service.on_evaluated = lambda result: self.records.evaluation(result, service.progress())
        service.on_finished = self.records.summary
        service.on_checkpoint = lambda order: self._spawn(self._checkpoint(order))
        self.context.status = service.status
        try:
            await self.context.serve(service.handle, on_disconnect=service.disconnected)
            service.rows = (RoleRow(role="coordinator", node=self.context.node, state="running"),)
            self._spawn(self._set_up())
            self._spawn(self._stop_when_told())
            self._spawn(self._write_metrics())
            await service.final.wait()
            await self._tell_everybody()
        finally:
            await self._close()
        if core.run.final_state == "failed" and self._cause is None and "worker" not in service.role_counts:
            raise UnreachableError(core.run.cause)  # no worker ever came
        if core.run.final_state == "failed" and core.run.ending is not None and core.run.ending.reason == "misfit":
            raise MisfitError(core.run.cause)
        if core.run.final_state == "failed":
            raise self._cause or RunFailedError(f"run {self.job} failed: {core.run.cause}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs an activity; its failure ends the run."""
        try:
            await work
        except AdamctlError as error:
            self._fail(error)
        except Exception as error:
            self.context.log.exception("the coordinator failed")
            self._fail(RunFailedError(f"{type(error).__name__}: {error}"))

    def _fail(self, error: AdamctlError) -> None:
        if self._cause is None and not self.service.core.run.final_state:
            self._cause = error
        self.service.step(events.Failed(str(error)))

    # --- setting up -------------------------------------------------------------------------------------------------

    async def _set_up(self) -> None:
        experiment, service = self.experiment, self.service
        resumed = await asyncio.to_thread(find_start, self.resume, self.folder, self.experiment, self.layout)
        servers = await find_servers(
            self.store, experiment, self.job, self.wait_s, self._waiting_for, advise=not self.tended
        )
        await self._check_room(servers)
        service.data_servers = tuple(node.node for node in servers.data)
        data_client = DataClient.from_context(self.context, service.data_servers)
        opening = asyncio.ensure_future(data_client.open(experiment.data, experiment.model.input, experiment.seed))
        try:
            restore, snapshot = ("", None) if resumed is None else (str(resumed[0]), resumed[1])
            if resumed is not None:
                service.began_from = await asyncio.to_thread(ServedCheckpoint, resumed[0])
            await self._create_job(servers, restore, parameters_only=bool(restore) and snapshot is None)
            await self._check_room(servers)  # another job may have begun at the same moment: the first one stays
            self._watch(servers)
            holders = await self._holders_of_parameters()
            self._writer = CheckpointWriter(self.folder, self.job, experiment, self.layout, holders, service.say)
            service.checkpoints = self._writer.folder
            await self._writer.prepare(None if snapshot is None else snapshot.checkpoint)
            with Waiting("the data set to be opened", log=self.context.log):
                data = await opening
            self._writer.classes = data.classes
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await data_client.close()
        self._begin(servers, data, snapshot)

    async def _holders_of_parameters(self) -> ParameterClient | MemberCheckpoints:
        """Returns who writes checkpoints: the servers, or without any the members of the replica."""
        if self.experiment.has_own_parameters:
            members = self.service.core.run.members
            return MemberCheckpoints(self.context, len(self.layout.shards), lambda: self.job, members)
        parameters = ParameterClient.from_context(self.context, self.job, notice=self.service.say)
        self._parameters = parameters
        await parameters.attach(deadline_s=self.wait_s)
        return parameters

    async def _create_job(self, servers: Servers, restore: str, parameters_only: bool) -> None:
        """Creates the job, under the next free name if another run has just taken the chosen one.

        Raises:
            RunFailedError: the user chose the name, or other runs were faster each time.
        """
        for _ in range(NAMES_CHOSEN_MAX):
            served = self.service.began_from
            checksum = served.checksum if served is not None else ""
            start = servers.parameter, self.context.node, restore, parameters_only, checksum
            if await create_job(self.store, self.job, self.experiment, self.layout, *start):
                self._created = True
                return
            if self.asked_for:
                break
            self.job = await choose_name(self.store, self.experiment.name, asked_for=False)
            self.service.step(events.Renamed(self.job))
        raise RunFailedError(f"another run just took the job name {self.job!r}; start again, or choose another --job")

    async def _check_room(self, servers: Servers) -> None:
        if self.experiment.train.in_step:
            others = await jobs_in_step(self.store, self.job)
            check_room(self.experiment, self.layout, servers.parameter, others)

    def _begin(self, servers: Servers, data: DataSet, snapshot: events.RunSnapshot | None) -> None:
        """Begins the run once everything is ready: workers may join."""
        experiment, service = self.experiment, self.service
        examples, evaluated = data.examples.get("train", 0), data.examples.get(experiment.evaluated_on, 0)
        outputs = infer(experiment.model)[-1].output
        if examples < 1:
            raise ConfigurationError(f"data.source {experiment.data.source!r} has no training examples")
        origin = f"data.source {experiment.data.source!r}"
        wanted = target_numbers(experiment.model, outputs[-1])
        has_targets = takes_targets(experiment.model)
        check_answers(data.targets, wanted, has_targets, origin, data.form.elements * data.form.targets_are_inputs)
        if len(data.classes) > outputs[-1] and not has_targets:
            raise ConfigurationError(
                f"model: the last layer has {outputs[-1]} units, but the data has {len(data.classes)} classes; "
                f"set its units to {len(data.classes)}"
            )
        class_weights(experiment.train.class_weights, data.classes, data.class_examples, outputs[-1])  # or refuses
        if experiment.train.target is not None and not evaluated:
            raise ConfigurationError(f"train.target is set, but the {experiment.evaluated_on} split is empty")
        if snapshot is not None:
            check_examples(experiment, snapshot, examples)
        service.join_reply = RunJoinReply(
            self.job, self.layout.hash, experiment.cluster.ps, 0, data.dataset, len(data.classes)
        )
        if self._losses is not None:
            self._losses.any_data_server = data.by_block
        service.role_counts |= {"ps": len(servers.parameter), "data": len(servers.data)}
        advice = "" if self.tended else " (start one with: adamctl worker start)"
        if service.core.run.plan.partitions == 1:
            service.waiting_for = f"waiting for a worker to join{advice}"
        batch = make_batch(experiment, self.layout, examples, snapshot)
        if batch is not None:
            examples = batch.examples
            self._begin_batch(batch)
        client = DataClient.from_context(self.context, service.data_servers)
        service.data_reading = DataReading(client, data)
        self._spawn(service.data_reading.follow())
        service.step(events.Ready(examples, evaluated, snapshot, batch))
        if snapshot is not None:
            service.say(f"resumes from checkpoint {snapshot.checkpoint}, {snapshot.examples} examples into the run")

    def _begin_batch(self, batch: BatchJob) -> None:
        assert self._parameters is not None
        service = self.service
        service.batch = BatchService(
            batch,
            self._parameters.vectors,
            on_commit=lambda committed: self.records.iteration(service.progress()),
            on_moved=lambda: service.step(events.BatchMoved()),
        )
        self._spawn(self._carry_out(service.batch))

    async def _carry_out(self, batch: BatchService) -> None:
        await batch.carry_out()

    def _say(self, text: str) -> None:
        self.service.say(text)

    def _waiting_for(self, text: str) -> None:
        self.service.waiting_for = text

    # --- while it runs ----------------------------------------------------------------------------------------------

    def _watch(self, servers: Servers) -> None:
        nodes = (*servers.parameter, *servers.data)
        own = RoleRow(role="coordinator", node=self.context.node, state="running")
        rows = [RoleRow(role=node.role, node=node.node, state="serving") for node in nodes]
        self.service.rows = (own, *rows)
        core = LossCore(loss_plan(self.experiment), servers.parameter, servers.data)
        self._losses = Losses(core, self.context, self.service, self._spawn, self._fail, self._attach_again)
        self._losses.begin()

    async def _attach_again(self, deadline_s: float) -> None:
        assert self._parameters is not None
        await self._parameters.attach(deadline_s=deadline_s)

    async def _checkpoint(self, order: WriteCheckpoint) -> None:
        ending = self.service.core.run.ending
        complete = ending is not None and not ending.early and ending.checkpoint == order.number
        event: events.CheckpointWritten | events.CheckpointFailed = events.CheckpointWritten(order.number)
        try:
            folder = await self._writer.write(order.number, order.snapshot, complete)
            self.context.log.info("checkpoint %s", folder)
        except (AdamctlError, OSError) as error:
            event = events.CheckpointFailed(order.number, str(error))
        self.service.checkpoint_ended(event)

    async def _stop_when_told(self) -> None:
        await self.context.stopping.wait()
        self.service.step(events.StopWanted(self.context.stop_reason or "told to stop", checkpoint=True))

    async def _write_metrics(self) -> None:
        while True:
            await asyncio.sleep(METRICS_EVERY_S)
            self.records.progress(self.service.progress())

    # --- the end ----------------------------------------------------------------------------------------------------

    async def _tell_everybody(self) -> None:
        """Gives workers and front ends time to learn how the run ended."""
        await _wait_for(self.service.workers_told, TELL_WORKERS_S)
        if self.service.is_watched and not self.context.stopping.is_set():
            await _wait_for(self.service.final_seen, TELL_FRONT_S)

    async def _close(self) -> None:
        self.service.close()
        if self._losses is not None:
            self._losses.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._parameters is not None:
            await self._parameters.close()
        if self._created:
            try:
                async with asyncio.timeout(END_JOB_S):
                    await end_job(self.store, self.job, ours=True)
            except (TimeoutError, UnreachableError) as error:
                self.context.log.warning("could not tell the controller that job %s has ended: %s", self.job, error)
        self.records.close()


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
