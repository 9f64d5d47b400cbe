"""The host agent's process: carries out its core's instructions, on real processes and over a connection to the front.

It listens nowhere: it dials the front, and takes orders from nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from adamctl import __version__
from adamctl.config.names import as_name
from adamctl.config.urls import is_url
from adamctl.errors import ConfigurationError, ProofError, UnreachableError
from adamctl.kernels.threads import available_cores
from adamctl.net.address import TLS_VARIABLE, host_id, is_loopback, parse_address
from adamctl.net.sockets import is_insecure
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.by_token import token_credentials
from adamctl.roles.context import RoleContext
from adamctl.roles.folder_lock import FolderLock
from adamctl.roles.host.client import FrontLink
from adamctl.roles.host.core.arguments import Roots
from adamctl.roles.host.core.host_core import LEAVE_GRACE_S, HostCore
from adamctl.roles.host.core.instructions import (
    FindPorts,
    Forget,
    ForgetOthers,
    Instruction,
    KillProcess,
    Leave,
    ReadTail,
    SignalProcess,
    StartProcess,
)
from adamctl.roles.host.processes import LocalProcesses, RoleProcesses, free_ports, until_unused
from adamctl.roles.private_folder import private_folder
from adamctl.roles.process import outward_host
from adamctl.wire.messages import HostEnded, HostFailing, HostJoinReply, HostJoinRequest, HostServing, Order, Report

WATCH_S = 0.05
FLUSH_S = 1.0
"""Seconds in which a front that is there takes the last reports."""
DRAIN_MARGIN_S = 2.0
"""Seconds of `--stop-deadline` that are left, beside those in which roles end, when a drain is given up."""


class HostAgent:
    """One agent. `run` is called once."""

    def __init__(
        self,
        context: RoleContext,
        core: HostCore,
        processes: RoleProcesses,
        front: str,
        join: Callable[[str], HostJoinRequest],
        ports: Callable[[int], Sequence[int]],
        wait_s: float,
    ) -> None:
        """`front` is its address; `join` makes the request to join it; `ports` finds free ports."""
        self._context, self._core, self._processes, self._ports = context, core, processes, ports
        self._wait_s = wait_s
        self._log: logging.Logger = context.log
        self._left: asyncio.Future[Leave] = asyncio.get_running_loop().create_future()
        self._link = FrontLink(
            context.transport, front, context.hello(), core, join, self._on_joined, self._on_orders, context.log
        )

    async def run(self) -> None:
        """Works until the front ends it, gives it up or stays away, or this process is told to end.

        Raises:
            ConfigurationError, HandshakeError: the front does not take this agent in.
            UnreachableError: there is no front, or it stayed away for too long.
        """
        parts = (self._link.keep_up(self._wait_s), self._watch(), self._until_told_to_stop())
        tasks: list[asyncio.Future[None]] = [asyncio.ensure_future(part) for part in parts]
        waiting: list[asyncio.Future[Any]] = [*tasks, self._left]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            left = self._left.result()
            await self._link.flush(FLUSH_S)
            if left.failed and self._context.failure is None:
                raise UnreachableError(f"{left.why}; its roles were ended")
            self._log.info("leaving: %s", left.why)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._processes.close()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _on_joined(self, reply: HostJoinReply) -> None:
        self._log.info("joined the front of run %s", reply.run)
        self._carry_out(self._core.joined(reply, self._now_s()))

    def _on_orders(self, orders: Sequence[Order]) -> None:
        self._carry_out(self._core.ordered(orders, self._now_s()))

    async def _watch(self) -> None:
        """Looks after the processes and the clock."""
        read_s = self._now_s()
        while True:
            self._take(self._processes.changes())
            now_s = self._now_s()
            self._carry_out(self._core.tick(now_s))
            if now_s - read_s >= self._core.readings_every_s:
                read_s = now_s
                self._core.read(self._processes.readings())
                self._link.tell()
            await asyncio.sleep(WATCH_S)

    async def _until_told_to_stop(self) -> None:
        """After a signal, tells the front, which has until the deadline to move what is here; then ends the roles.

        If the process that started this one is gone, nothing is worth waiting for.
        """
        await self._context.stopping.wait()
        deadline_s = self._context.common.stop_deadline_s - LEAVE_GRACE_S - DRAIN_MARGIN_S
        if self._context.failure is None and self._core.run and self._core.roles and deadline_s > 0:
            self._core.drain(deadline_s, self._context.stop_reason)
            self._link.tell()
            await asyncio.sleep(deadline_s)
        self._carry_out(self._core.leave(self._context.stop_reason, False, self._now_s()))
        await asyncio.Event().wait()

    def _take(self, reports: Iterable[Report]) -> None:
        for report in reports:
            match report:
                case HostServing(node=node, attempt=attempt, addresses=addresses, incarnation=incarnation):
                    self._core.serving(node, attempt, addresses, incarnation)
                case HostFailing():
                    self._core.failing(report)
                case HostEnded(node=node, status=status):
                    self._log.info("%s has ended with status %d%s", node, status, report.error and f": {report.error}")
                    self._carry_out(self._core.ended(report, self._now_s()))
            self._link.tell()

    def _carry_out(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartProcess(node=node, role=role):
                    self._log.info("starting %s, a %s", node, role)
                    failed = self._processes.start(instruction)
                    if failed is not None:
                        self._take([failed])
                case SignalProcess(node=node):
                    self._processes.signal(node)
                case KillProcess(node=node):
                    self._log.warning("%s did not end in time; killed", node)
                    self._processes.kill(node)
                case ReadTail(order=order, node=node, lines=lines):
                    self._core.tailed(order, *self._processes.tail(node, lines))
                case FindPorts(order=order, count=count):
                    self._core.found_ports(order, self._ports(count))
                case Forget():
                    self._processes.forget()
                case ForgetOthers(run=of_run):
                    self._processes.forget_others(of_run)
                case Leave():
                    if not self._left.done():
                        self._left.set_result(instruction)
        self._link.tell()


async def run(context: RoleContext) -> None:
    """Runs the agent of this machine; see `adamctl host start --help`."""
    front = str(parse_address(_given(context)))
    cores = context.options.get("cores")
    if cores is not None and cores < 1:
        raise ConfigurationError(f"--cores: expected at least 1; found {cores}")
    host = parse_address(front).host
    outward = outward_host((front,))
    bind = context.common.bind
    if is_loopback(bind) and not is_loopback(host):
        bind = "0.0.0.0"
    address = context.common.advertise or (outward if bind in ("0.0.0.0", "::") else bind)
    process = secrets.randbits(62) | 1

    def join(run: str) -> HostJoinRequest:
        usable = min(cores or available_cores(), available_cores())
        memory_bytes = int(psutil.virtual_memory().total)
        return HostJoinRequest(context.node, process, host_id(), usable, memory_bytes, address, run, __version__)

    root = _root(context, front)
    lock = FolderLock(root, "--root", "an agent")
    by_token = _speaks_by_token(context, front)
    try:
        await until_unused(root)
        with private_folder() as sockets:
            if by_token:
                own = token_credentials(context.token, "host", context.node, sockets / "agent")
                context.transport = StreamTransport(tls=own)
            environment = {**os.environ, **({"ADAMCTL_TOKEN": context.token} if context.token else {})}
            processes = LocalProcesses(root, sockets, bind, address, environment, context.node)
            core = HostCore(_roots(context))
            context.at_work((f"host {context.node} dials the front at {front}",))
            agent = HostAgent(
                context, core, processes, front, join, lambda count: free_ports(count, bind), context.options["wait"]
            )
            await agent.run()
    except ProofError as error:
        raise ProofError(f"{error}{_ADVICE if by_token else ''}") from error
    finally:
        lock.release()


_ADVICE = (
    " (this agent and the front make their certificates of the run's token: give --token-file a copy of secrets/token "
    "of this very run, or --insecure if the run was started with it)"
)


def _speaks_by_token(context: RoleContext, front: str) -> bool:
    """Returns whether this agent makes a certificate of its token to speak TLS with the front on this host.

    So it does unless it has one in ADAMCTL_TLS, or the front is here, or the network is trusted.
    """
    address = parse_address(front)
    if os.environ.get(TLS_VARIABLE) or address.scheme != "tcp":
        return False
    return bool(context.options.get("tls")) or not (is_loopback(address.host) or is_insecure(os.environ))


def _given(context: RoleContext) -> str:
    front = str(context.options.get("front") or "")
    if not front:
        raise ConfigurationError("--front: expected the address of a run's front; adamctl train --hosts shows it")
    return front


def _root(context: RoleContext, front: str) -> Path:
    """Returns this agent's folder; by default another one for each run that this machine is a host of."""
    given = context.options.get("root")
    usual = platformdirs.user_state_path("adamctl", appauthor=False) / "host" / as_name(front)
    return (Path(given).expanduser().absolute() if given else usual) / context.node


def _roots(context: RoleContext) -> Roots:
    """Returns where orders may name paths. Folders are resolved, and both spellings allowed."""

    def spelt(given: Iterable[str]) -> tuple[str, ...]:
        found: list[str] = []
        for one in given:
            if is_url(one):
                found.append(one)
            else:
                path = Path(one).expanduser().absolute()
                found += [str(path), str(path.resolve())]
        return tuple(dict.fromkeys(found))

    return Roots(
        spelt(context.options.get("data_root") or (os.getcwd(),)), spelt(context.options.get("checkpoint_root") or ())
    )
