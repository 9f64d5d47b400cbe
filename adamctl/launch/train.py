"""`train` without its flags: one run, with its own roles on this machine or on an existing cluster."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.config.resolved import write_resolved
from adamctl.kernels.threads import available_cores
from adamctl.launch.checking import look_at_data
from adamctl.launch.compiling import compile_kernels
from adamctl.launch.front import Front, Outcome, nearest
from adamctl.launch.joining import find_controller, listening
from adamctl.launch.known_runs import sweep_stores
from adamctl.launch.live_runs import Noted, state_folder
from adamctl.launch.partitions import Place, check_memory, measure_here, settle, write_record
from adamctl.launch.plan import CONTROLLER, COORDINATOR, STORES, controller_address, coordinator_role, local_roles
from adamctl.launch.reckoning import Machine, check_sizes
from adamctl.launch.resuming import find_resume
from adamctl.launch.roles import LocalRoles
from adamctl.launch.run_folder import LOGS, create_run_folder
from adamctl.launch.run_token import kept_token, make_token, sweep_tokens
from adamctl.launch.supervision import Supervision
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import Reporter
from adamctl.metrics.serving import check_port, metrics_of_run
from adamctl.optimizers.configured import check as check_algorithm
from adamctl.roles.controller.etcd.url import is_etcd
from adamctl.roles.private_folder import private_folder
from adamctl.roles.role_process import RoleCommand


@dataclass(frozen=True)
class TrainOptions:
    """How to run an experiment.

    Attributes:
        join: controllers of a running cluster, or the URL of its etcd; empty: every role is started here.
        resume: `auto`, `none` or the path of a checkpoint or run folder.
        runs: folder of run folders.
        environment: this process's environment, passed on to roles.
        token: the cluster's secret, for this process and the roles that it starts; empty without `join`: one is created
            for this run and kept in its folder.
        readings: whether the reporter shows processor time and memory of processes.
        detached: whether no terminal shows the run.
        begun: called with the run folder when it is made.
        metrics_port: where the cluster's metrics are served on loopback while the run lasts; None: nowhere.
        bind, advertise: with `join`, the host that the coordinator listens on, and the one that workers are told;
            empty: as `listening` says.
    """

    join: tuple[str, ...]
    resume: str
    runs: Path
    environment: Mapping[str, str]
    token: str = ""
    readings: bool = False
    detached: bool = False
    begun: Callable[[Path], None] = lambda folder: None
    metrics_port: int | None = None
    bind: str = ""
    advertise: str = ""


def train(experiment: Experiment, options: TrainOptions, reporter: Reporter) -> tuple[Outcome, Path]:
    """Runs an experiment to its end and returns how it ended and its run folder. Blocks; call it in the main thread.

    Raises:
        ConfigurationError: the port of metrics is taken, the run folder cannot be made, there is nothing to resume
            from, a batch algorithm does not take its settings, or the data do not fit.
        DamagedDataError: the data are damaged.
        RunFailedError: a process cannot be started, or the coordinator falls silent.
        UnreachableError: the controller to join does not answer, or a role does not start in time.
        HandshakeError: the controller to join refuses us: wrong token or version.
    """
    check_algorithm(experiment)
    if options.metrics_port is not None:
        check_port(options.metrics_port)
    where = listening(options.join, options.bind, options.advertise)
    resume = find_resume(options.resume, experiment, options.runs, state_folder(options.environment), reporter.note)
    if options.join:
        _find_controller(options, reporter)
    place = Place(None if options.join else Machine.here())
    if place.machine is not None:
        check_sizes(experiment, place.machine)
    check_memory(experiment, place, reporter.note)
    if not options.join:
        experiment = look_at_data(experiment, reporter.note)
        compile_kernels(experiment, options.environment, available_cores(), reporter.note)
    settled = settle(experiment, place, resume, reporter.note, measure_here)
    experiment = settled.experiment
    folder = create_run_folder(options.runs, experiment.name)
    file = write_resolved(experiment, folder)
    write_record(settled, folder)
    for swept in sweep_stores(options.runs, state_folder(options.environment)):
        reporter.note(f"{swept}: removed its parameter servers' stores; it ended without a report over a day ago")
    sweep_tokens(options.runs)
    options.begun(folder)
    with private_folder() as sockets, ExitStack() as stack:
        if not options.join:
            options = replace(options, token=options.token or make_token())
            stack.enter_context(kept_token(folder, options.token))
        note = Noted(folder, state_folder(options.environment), detached=options.detached, controllers=options.join)
        stack.callback(note.remove)
        if note.problem:
            reporter.note(f"other commands cannot find this run automatically: {note.problem}")
        if options.join:
            common = ("--socket-folder", str(sockets))
            controllers = tuple(part for address in options.join for part in (_flag_of(address), address))
            node = f"{COORDINATOR}-{experiment.name}-{os.getpid()}"
            commands: Sequence[RoleCommand] = (
                coordinator_role(file.absolute(), folder.absolute(), resume, (*controllers, *common, *where), node),
            )
        else:
            node = COORDINATOR
            commands = local_roles(experiment, file.absolute(), folder.absolute(), sockets, available_cores(), resume)
        token = {"ADAMCTL_TOKEN": options.token} if options.token else {}  # everybody can see arguments
        roles = LocalRoles(commands, folder / LOGS, {**options.environment, **token})
        front = _front(roles, commands, node, options, reporter, _held_elsewhere(experiment), note)
        controllers = options.join or (controller_address(sockets),)
        outcome = _run(front, metrics_of_run(options.metrics_port, controllers, options.token, reporter.note))
    state = outcome.progress.state if outcome.progress is not None else ""
    if not outcome.exit_code or outcome.signal or state == "stopped":  # a failure's stores may tell why
        shutil.rmtree(folder / STORES, ignore_errors=True)
    return outcome, folder


def _held_elsewhere(experiment: Experiment) -> bool:
    """Returns whether a parameter server's data survive its process."""
    return experiment.cluster.store == "disk" or experiment.cluster.replication > 1


def _run(front: Front, beside: AbstractAsyncContextManager[None]) -> Outcome:
    from adamctl.net import loop

    async def run() -> Outcome:
        async with beside:
            return await front.run()

    return loop.run(run())


def _flag_of(address: str) -> str:
    return "--config-store" if is_etcd(address) else "--controller"


def _find_controller(options: TrainOptions, reporter: Reporter) -> None:
    from adamctl.net import loop
    from adamctl.net.handshake import make_hello
    from adamctl.net.stream import StreamTransport

    hello = make_hello("front", f"front-{os.getpid()}", 0, options.token)
    loop.run(find_controller(StreamTransport(), options.join, hello, reporter.note))


def _front(
    roles: LocalRoles,
    commands: Sequence[RoleCommand],
    node: str,
    options: TrainOptions,
    reporter: Reporter,
    stored: bool,
    note: Noted,
) -> Front:
    from adamctl.net.stream import StreamTransport

    def on_serving(served: str, addresses: Sequence[str]) -> None:
        if served == CONTROLLER:
            note.update(controllers=nearest(addresses))
        elif served == node:
            note.update(coordinator=nearest(addresses))
        reachable = [address for address in addresses if address.startswith("tcp://")]
        if served == CONTROLLER and reachable:
            reporter.note(f"watch it with: adamctl top --controller {reachable[0].removeprefix('tcp://')}")

    roles_of = {command.node: command.role for command in commands}
    return Front(
        roles,
        Supervision(roles_of, stored=("ps",) if stored else ()),
        node,
        StreamTransport(),
        reporter,
        options.token,
        _reader(roles_of) if options.readings else lambda pids: {},
        on_serving,
        options.join,
    )


def _reader(roles: Mapping[str, str]) -> Callable[[Mapping[str, int]], Mapping[str, ProcessReading]]:
    from adamctl.launch.readings import Readings

    readings = Readings(roles)
    return lambda pids: readings.read(pids, time.monotonic())
