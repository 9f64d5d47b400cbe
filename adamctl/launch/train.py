"""`train` without its flags: one run, with its own roles on this machine or on an existing cluster."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.config.resolved import write_resolved
from adamctl.errors import AdamctlError
from adamctl.kernels.threads import available_cores
from adamctl.launch.checking import look_at_data
from adamctl.launch.compiling import compile_kernels
from adamctl.launch.front import Front, Outcome
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run as HostsRun
from adamctl.launch.hosts.starting import (
    LOCAL,
    Secrets,
    make_roles,
    on_hosts,
    run_of,
    trust_of,
    where_to_listen,
)
from adamctl.launch.joining import find_controller, listening
from adamctl.launch.known_runs import note_end, sweep_stores
from adamctl.launch.live_runs import Noted, state_folder
from adamctl.launch.partitions import Place, Settled, check_memory, measure_here, settle, write_record
from adamctl.launch.places.engines import SLURM, check_engine
from adamctl.launch.plan import COORDINATOR, STORES, controller_address, coordinator_role, local_roles
from adamctl.launch.reckoning import Machine, check_sizes
from adamctl.launch.resuming import find_resume
from adamctl.launch.roles import LocalRoles, Roles, nearest
from adamctl.launch.run_certificates import make_run_tls
from adamctl.launch.run_folder import LOGS, create_run_folder, run_name
from adamctl.launch.run_token import kept_token, make_token, sweep_tokens
from adamctl.launch.supervision import Supervision
from adamctl.launch.terminal import handlers_given_back
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import Reporter
from adamctl.metrics.serving import check_port, metrics_of_run, metrics_once_known
from adamctl.model.custom.registry import environment_for, without_native
from adamctl.net.address import TLS_VARIABLE
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import environment_credentials
from adamctl.net.transport import Transport
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
        hosts: the hosts to run on; None: this machine, or the cluster of `join`.
        bind, advertise: with `hosts`, where the front and roles beside it listen, with `join`, where the coordinator
            does; and the host at which others reach them. Empty: as suits the hosts, or the cluster.
        port: with `hosts`, where agents dial the front; 0: any free port.
        tls: with `hosts`, whether TLS is asked for where it is not needed: on loopback, or if ADAMCTL_INSECURE is set.
        detached: whether no terminal shows the run.
        begun: called with the run folder when it is made.
        metrics_port: where the cluster's metrics are served on loopback while the run lasts; None: nowhere.
    """

    join: tuple[str, ...]
    resume: str
    runs: Path
    environment: Mapping[str, str]
    token: str = ""
    readings: bool = False
    hosts: HostsAsked | None = None
    bind: str = ""
    advertise: str = ""
    port: int = 0
    tls: bool = False
    detached: bool = False
    begun: Callable[[Path], None] = lambda folder: None
    metrics_port: int | None = None


def train(experiment: Experiment, options: TrainOptions, reporter: Reporter) -> tuple[Outcome, Path]:
    """Runs an experiment to its end and returns how it ended and its run folder. Blocks; call it in the main thread.

    Raises:
        ConfigurationError: the port of metrics is taken, the run folder cannot be made, there is nothing to resume
            from, a batch algorithm does not take its settings, the data do not fit, or certificates cannot be made.
        DamagedDataError: the data are damaged.
        RunFailedError: a process cannot be started, or the coordinator falls silent.
        UnreachableError: the controller to join does not answer, a role does not start in time, or what the engine
            needs is not here.
        HandshakeError: the controller to join refuses us: wrong token or version.
    """
    check_algorithm(experiment)
    options = replace(options, environment=environment_for(experiment.model, options.environment))
    for path in without_native(experiment.model):
        reporter.note(
            f"{path} has no native calls: steps hold Python's lock, and threads of a worker wait for each other"
        )
    if options.metrics_port is not None:
        check_port(options.metrics_port)
    where = () if options.hosts is not None else listening(options.join, options.bind, options.advertise)
    given = options.environment
    if options.hosts is not None:
        check_engine(options.hosts.engine, given)
        experiment = on_hosts(experiment, options.hosts)
        listen = where_to_listen(options.hosts, options.bind, options.advertise)
        trust = trust_of(options.hosts, listen[0], given, options.tls)
    here = not options.join and (options.hosts is None or options.hosts.engine == LOCAL)
    resume = find_resume(options.resume, experiment, options.runs, state_folder(options.environment), reporter.note)
    if options.join:
        _find_controller(options, reporter)
    else:  # its roles have a token or certificates that are made for the run
        outside = {name: value for name, value in given.items() if name != TLS_VARIABLE}
        options = replace(options, environment=outside)
    place = Place(Machine.here() if here else None)
    if place.machine is not None:
        check_sizes(experiment, place.machine)
    check_memory(experiment, place, reporter.note)
    if here:
        experiment = look_at_data(experiment, reporter.note)
        compile_kernels(experiment, options.environment, available_cores(), reporter.note)
    settled = settle(experiment, place, resume, reporter.note, measure_here)
    experiment = settled.experiment
    folder, file = _begin_folder(settled, options, reporter)
    with _failure_noted(folder), handlers_given_back(), private_folder() as sockets, ExitStack() as stack:
        if not options.join:
            options = replace(options, token=options.token or make_token())
            stack.enter_context(kept_token(folder, options.token))
        note = Noted(folder, state_folder(options.environment), detached=options.detached, controllers=options.join)
        stack.callback(note.remove)
        if note.problem:
            reporter.note(f"other commands cannot find this run automatically: {note.problem}")
        held = _held_elsewhere(experiment)
        if options.hosts is not None:
            run = run_of(experiment, file, folder, sockets, resume, listen, options.port)
            tls = make_run_tls(trust, run_name(folder), folder, options.token, given)
            proofs = Secrets(options.token, trust, tls)
            outcome = _run_on_hosts(run, options.hosts, options, proofs, reporter, held, note)
        else:
            absolute = file.absolute(), folder.absolute()
            node, commands = _commands(experiment, options, *absolute, sockets, resume, where)
            controllers = options.join or (controller_address(sockets),)
            outcome = _run_here(node, commands, folder / LOGS, controllers, options, reporter, held, note)
        _note_end(folder, outcome)
        state = outcome.progress.state if outcome.progress is not None else ""
        if not outcome.exit_code or outcome.signal or state == "stopped":  # a failure's stores may tell why
            shutil.rmtree(folder / STORES, ignore_errors=True)
    return outcome, folder


def _begin_folder(settled: Settled, options: TrainOptions, reporter: Reporter) -> tuple[Path, Path]:
    """Makes the run folder; returns it and the experiment's file. Removes what killed runs have left beside it."""
    folder = create_run_folder(options.runs, settled.experiment.name)
    file = write_resolved(settled.experiment, folder)
    write_record(settled, folder)
    for swept in sweep_stores(options.runs, state_folder(options.environment)):
        reporter.note(f"{swept}: removed its parameter servers' stores; it ended without a report over a day ago")
    sweep_tokens(options.runs)
    options.begun(folder)
    return folder, file


@contextmanager
def _failure_noted(folder: Path) -> Iterator[None]:
    """Notes in the run folder why the run failed, if the block raises."""
    try:
        yield
    except AdamctlError as error:
        note_end(folder, "failed", str(error))
        raise


def _note_end(folder: Path, outcome: Outcome) -> None:
    """Notes in the run folder what its coordinator, which was only told to leave, could not: why the run ended."""
    if outcome.progress is not None and outcome.progress.final:
        return
    if outcome.signal:
        before = "it began" if outcome.progress is None else "its last checkpoint was written"
        note_end(folder, "stopped", f"interrupted by {signal.Signals(outcome.signal).name} before {before}")
    elif outcome.message:
        note_end(folder, "failed", outcome.message)


def _commands(
    experiment: Experiment,
    options: TrainOptions,
    file: Path,
    folder: Path,
    sockets: Path,
    resume: str,
    where: tuple[str, ...],
) -> tuple[str, Sequence[RoleCommand]]:
    """Returns the coordinator's node, and the roles that run on this machine; `where` says where it listens."""
    if not options.join:
        return COORDINATOR, local_roles(experiment, file, folder, sockets, available_cores(), resume)
    common = ("--socket-folder", str(sockets))
    controllers = tuple(part for address in options.join for part in (_flag_of(address), address))
    node = f"{COORDINATOR}-{experiment.name}-{os.getpid()}"
    if (tls := environment_credentials(options.environment)) is not None:
        node = tls.current.identity.part(node)
    return node, (coordinator_role(file, folder, resume, (*controllers, *common, *where), node),)


def _held_elsewhere(experiment: Experiment) -> bool:
    """Returns whether a parameter server's data survive its process."""
    return experiment.cluster.store == "disk" or experiment.cluster.replication > 1


def _run_here(
    node: str,
    commands: Sequence[RoleCommand],
    logs: Path,
    controllers: Sequence[str],
    options: TrainOptions,
    reporter: Reporter,
    stored: bool,
    note: Noted,
) -> Outcome:
    """Runs roles of this machine, and their front. `node`: the coordinator; `controllers`: those of its cluster."""
    from adamctl.net import loop

    token = {"ADAMCTL_TOKEN": options.token} if options.token else {}  # everybody can see arguments
    roles = LocalRoles(commands, logs, {**options.environment, **token})
    roles_of = {command.node: command.role for command in commands}
    supervision = Supervision(roles_of, stored=("ps",) if stored else ())
    transport = StreamTransport() if options.join else StreamTransport(tls=None)
    front = _front(roles, supervision, roles_of, node, options, transport, reporter, note)

    async def whole() -> Outcome:
        async with metrics_of_run(options.metrics_port, controllers, options.token, transport, reporter.note):
            return await front.run()

    return loop.run(whole())


def _run_on_hosts(
    run: HostsRun,
    asked: HostsAsked,
    options: TrainOptions,
    secrets: Secrets,
    reporter: Reporter,
    stored: bool,
    note: Noted,
) -> Outcome:
    from adamctl.launch.places.slurm import stop_deadline_in_job_s
    from adamctl.net import loop

    async def whole() -> Outcome:
        transport = StreamTransport(tls=None if secrets.tls is None else secrets.tls.certificates.operator())
        controllers: asyncio.Future[tuple[str, ...]] = asyncio.get_running_loop().create_future()
        roles, supervision = make_roles(
            run, asked, options.environment, secrets, transport, stored, reporter.note,
            lambda address: note.update(front=(address,)),
        )  # fmt: skip
        kinds = {"controller": "controller"}

        def known(addresses: tuple[str, ...]) -> None:
            if not controllers.done():
                controllers.set_result(addresses)

        front = _front(roles, supervision, kinds, COORDINATOR, options, transport, reporter, note, known)
        if asked.engine == SLURM:
            front.stop_deadline_s = await stop_deadline_in_job_s(options.environment, front.stop_deadline_s)
        async with metrics_once_known(options.metrics_port, controllers, secrets.token, transport, reporter.note):
            return await front.run()

    return loop.run(whole())


def _flag_of(address: str) -> str:
    return "--config-store" if is_etcd(address) else "--controller"


def _find_controller(options: TrainOptions, reporter: Reporter) -> None:
    from adamctl.net import loop
    from adamctl.net.handshake import make_hello

    hello = make_hello("front", f"front-{os.getpid()}", 0, options.token)
    loop.run(find_controller(StreamTransport(), options.join, hello, reporter.note))


def _front(
    roles: Roles,
    supervision: Supervision,
    roles_of: Mapping[str, str],
    node: str,
    options: TrainOptions,
    transport: Transport,
    reporter: Reporter,
    note: Noted,
    on_known: Callable[[tuple[str, ...]], None] = lambda addresses: None,
) -> Front:
    """Returns the front.

    `node` is the coordinator, `roles_of` the roles of this machine; `on_known` is told where the controllers are.
    """

    def on_serving(served: str, addresses: Sequence[str]) -> None:
        if served == node:
            note.update(coordinator=nearest(addresses))

    def on_controllers(addresses: tuple[str, ...]) -> None:
        reachable = [address for address in addresses if address.startswith("tcp://")]
        if reachable and not note.run.controllers:
            reporter.note(f"watch it with: adamctl top --controller {reachable[0].removeprefix('tcp://')}")
        note.update(controllers=addresses)
        on_known(addresses)

    return Front(
        roles,
        supervision,
        node,
        transport,
        reporter,
        options.token,
        _reader(roles_of) if options.readings else lambda pids: {},
        on_serving,
        on_controllers,
        options.join,
        0.0 if options.hosts is None else options.hosts.time_s,
    )


def _reader(roles: Mapping[str, str]) -> Callable[[Mapping[str, int]], Mapping[str, ProcessReading]]:
    from adamctl.launch.readings import Readings

    readings = Readings(roles)
    return lambda pids: readings.read(pids, time.monotonic())
