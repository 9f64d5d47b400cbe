"""Runs one role in this process: options, log, signals, lifeline, network, orderly end.

Every role is written against `RoleContext` (roles/context.py); `run_role` makes one for a process, tests make their
own.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from adamctl.config.names import printable
from adamctl.errors import AdamctlError, ConfigurationError, MembershipLostError, RunFailedError, UnreachableError
from adamctl.importing import importing
from adamctl.net import loop as event_loop
from adamctl.net.tls.credentials import Credentials, environment_credentials
from adamctl.roles.certificate import CertificateWatch
from adamctl.roles.context import RoleContext
from adamctl.roles.failure_detector import FailureDetector
from adamctl.roles.garbage import collect_old, collect_seldom
from adamctl.roles.health import serve_health
from adamctl.roles.process import (
    CommonOptions,
    ReadyReport,
    bound_arenas,
    end_by_force,
    leave_no_folder,
    logging_to,
    node_name,
    signals_to,
    unix_socket_address,
    watch_lifeline,
)
from adamctl.roles.registry import Role
from adamctl.roles.service_manager import STOPPING, ServiceManager

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd.client import EtcdClient

__all__ = ["CommonOptions", "RoleContext", "run_role"]

CANCEL_DEADLINE_S = 3.0
BEACON_ATTEMPT_S_MAX = 2.0
RESTART = 75
"""An exit status, EX_TEMPFAIL, for programs that start roles without the command line."""


def run_role(role: Role, options: CommonOptions, role_options: Mapping[str, Any]) -> int:
    """Runs a role until it ends and returns the process's exit code; messages go to stderr and the log file.

    0 at the end of the run or when told by a SHUTDOWN request; 130, 143, 129 and 138 after SIGINT, SIGTERM, SIGHUP and
    END_SIGNAL; the code of an `AdamctlError`; 1 with a traceback for any other exception. SIGHUP makes a role with a
    certificate read it again instead, and a role that a front or an agent has started heeds neither SIGINT nor SIGTERM.
    RESTART if the process is no longer a member and the role starts over in that case: the caller does that, with
    `adamctl.roles.process.restart_process`.
    """
    report: ReadyReport | None = None
    log = logging.getLogger("adamctl")
    os.umask(0o077)  # stores, checkpoints, logs and sockets are private to this user
    if role.arenas is not None:
        bound_arenas(role.arenas)
    try:
        tls = environment_credentials(os.environ)
        node = node_name(role.name, options, None if tls is None else tls.current.identity)
        report = ReadyReport(options.ready_fd, role.name, node, ServiceManager.of(os.environ, os.getpid()))
        with logging_to(role.name, node, options) as log:
            try:
                with unix_socket_address(node, options.socket_folder) as socket_address:
                    return event_loop.run(_run(role, options, role_options, node, socket_address, log, report, tls))
            except Exception as error:
                return _tell(error, log, report)
            finally:
                leave_no_folder(options.socket_folder)
    except AdamctlError as error:  # before there was a log
        print(printable(f"error: {error}", keep="\n"), file=sys.stderr)
        if report is not None:
            report.failed(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


async def _run(
    role: Role,
    options: CommonOptions,
    role_options: Mapping[str, Any],
    node: str,
    socket_address: str | None,
    log: logging.Logger,
    report: ReadyReport,
    tls: Credentials | None,
) -> int:
    from adamctl.net.stream import StreamTransport

    host = f"[{options.bind}]" if ":" in options.bind else options.bind
    port = role.default_port if options.port is None else options.port
    context = RoleContext(
        role=role.name,
        node=node,
        options=role_options,
        transport=StreamTransport(tls=tls),
        controller=None,
        stopping=asyncio.Event(),
        log=log,
        token=options.token,
        common=options,
        certificate=None if tls is None else CertificateWatch(tls, log),
        listen=(f"tcp://{host}:{port}", *((socket_address,) if socket_address else ())),
        ready_report=report,
    )
    health = await serve_health(options.health, context) if options.health else None
    if health is not None:
        log.info("health at port %d", health.port)
    client = _client_for(context, options.controller, tls) if role.needs_controller else None
    if options.lifeline_fd is not None:
        by_force = partial(end_by_force, socket_address, options.socket_folder)
        watch_lifeline(options.lifeline_fd, _failing(context), by_force)
    function = _function(role)
    collect_seldom()
    task = asyncio.ensure_future(function(context))
    beside = (report.service_manager.beat(), collect_old(lambda: context.ready))
    beating = [asyncio.ensure_future(one) for one in beside]
    try:
        with signals_to(lambda number: _on_signal(context, task, number)):
            async with nullcontext() if context.certificate is None else context.certificate.running():
                await _until_ended(context, task, lambda: _tell_stopping(role, context, task, report))
        failure = _failure(context, task)
        # Before this process leaves: after that, others fail because of it.
        if isinstance(failure, MembershipLostError) and role.restarts:
            log.warning("%s; starting over", failure)
            _hand_on(client)
            exit_code = RESTART
        else:
            exit_code = context.exit_code if failure is None else _tell(failure, log, report)
    finally:
        await context.close()
        if client is not None:
            await client.close()
        for one in beating:
            one.cancel()
        if health is not None:
            await health.close()
    if not task.done():
        # Closing the loop would wait for this task for ever.
        end_by_force(socket_address, options.socket_folder)
    return exit_code


def _client_for(
    context: RoleContext, controllers: Sequence[str], tls: Credentials | None
) -> ControllerClient | EtcdClient:
    """Gives a role the configuration service and its membership; returns their client, to be closed at the end."""
    from adamctl.net.stream import StreamTransport
    from adamctl.roles.configuration import configuration_addresses
    from adamctl.roles.controller.client import cluster_client
    from adamctl.roles.controller.known_addresses import KnownAddresses

    addresses = KnownAddresses(configuration_addresses(controllers))
    addresses.take_over()
    client = cluster_client(context.transport, addresses, context.hello, log=context.log)
    context.controller = context.membership = client
    if not client.notices_ends:
        context.failure_detector = FailureDetector(
            client, client, context.transport, context.hello, stopping=context.stopping, log=context.log
        )

    def make_beacon_sender(lease_s: float) -> ControllerClient | EtcdClient:
        attempt_s = min(BEACON_ATTEMPT_S_MAX, lease_s / 2)
        transport = StreamTransport(tls=tls)
        return cluster_client(transport, addresses, context.hello, attempt_s=attempt_s, log=context.log)

    context.make_beacon_sender = make_beacon_sender
    return client


def _hand_on(client: ControllerClient | EtcdClient | None) -> None:
    """Leaves to the process that takes this one's place where the controllers are now."""
    from adamctl.roles.controller.client import ControllerClient

    if isinstance(client, ControllerClient):
        client.known.hand_on()


def _failing(context: RoleContext) -> Callable[[], None]:
    """Returns a function to call, from any thread, when the process that started this role is gone."""
    loop = asyncio.get_running_loop()
    gone = UnreachableError("the process that started this role is gone")

    def on_end() -> None:
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(context.fail, gone)

    return on_end


def _tell(error: Exception, log: logging.Logger, report: ReadyReport) -> int:
    """Logs why the role fails, reports it to the process that started this one, and returns the exit code."""
    if isinstance(error, AdamctlError):
        log.error("%s", error)
    else:
        log.error("the role failed", exc_info=error)
    report.failed(error)
    return error.exit_code if isinstance(error, AdamctlError) else 1


def _failure(context: RoleContext, task: asyncio.Future[None]) -> Exception | None:
    """Returns the error that the role failed with, if any: the first cause, not its consequences."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if context.failure is None and not (context.stopping.is_set() and isinstance(error, UnreachableError)):
        if error is not None and not isinstance(error, Exception):
            raise error
        return error
    if error is not None:
        context.log.info("while stopping: %s", error)  # other processes stop too, in no particular order
    return context.failure


def _function(role: Role) -> Callable[[RoleContext], Coroutine[Any, Any, None]]:
    module, _, name = role.run.partition(":")
    try:
        with importing():
            function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"role {role.name} cannot be started: {role.run}: {error}") from error
    result: Callable[[RoleContext], Coroutine[Any, Any, None]] = function
    return result


def _tell_stopping(role: Role, context: RoleContext, task: asyncio.Future[None], report: ReadyReport) -> None:
    """Tells the service manager that the process will end; not if it starts over, or it would be ended."""
    failure = context.failure or (task.exception() if task.done() and not task.cancelled() else None)
    if not (isinstance(failure, MembershipLostError) and role.restarts):
        report.service_manager.tell(STOPPING)


async def _until_ended(context: RoleContext, task: asyncio.Future[None], ending: Callable[[], None]) -> None:
    """Returns when the role has ended, at most `--stop-deadline` after it was asked to (0 if it was not ready).

    Calls `ending` when it was asked to, or ends by itself.
    """
    stopping = asyncio.ensure_future(context.stopping.wait())
    waiting: set[asyncio.Future[Any]] = {task, stopping}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    ending()
    stopping.cancel()
    if not task.done() and context.ready:
        deadline_s = context.drain_s + context.common.stop_deadline_s
        await asyncio.wait({task}, timeout=deadline_s)
        if not task.done():
            context.log.warning("did not end within %g s; cancelled", deadline_s)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_DEADLINE_S)
    if not task.done():
        stuck = RunFailedError(f"{context.role} {context.node} does not stop; ended by force")
        if context.failure is not None:
            context.log.error("%s", stuck)
        context.failure = context.failure or stuck


def _on_signal(context: RoleContext, task: asyncio.Future[None], number: int) -> None:
    if number == signal.SIGHUP and context.certificate is not None:
        context.certificate.look(anew=True)
        return
    name = signal.Signals(number).name
    if context.common.is_owned and number in (signal.SIGINT, signal.SIGTERM):
        # From whoever ends all processes of a job at once; its parent may still need this one to save the run's work.
        context.log.info("received %s; ends when its parent does, or says so", name)
        return
    if context.stopping.is_set():
        if number == signal.SIGHUP:
            return  # a closed terminal may cause two signals, from the system and from the shell
        task.cancel()
    drain_s = context.drain_on_term_s if number == signal.SIGTERM else 0.0
    context.stop(f"received {name}", exit_code=128 + number, drain_s=drain_s)
