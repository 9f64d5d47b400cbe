"""Starts roles where the keeper has put them: beside the front, or at agents, once the controllers have addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from adamctl.errors import RunFailedError
from adamctl.launch.hosts.commands import Run, beside_front, on_host
from adamctl.launch.hosts.placement import FRONT, Placed
from adamctl.launch.hosts.roles_there import RolesThere
from adamctl.launch.plan import COORDINATOR
from adamctl.launch.roles import LocalRoles
from adamctl.launch.run_certificates import RunCertificates
from adamctl.launch.run_folder import checkpoints
from adamctl.roles.host.processes import free_ports
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import HostStart


@dataclass
class Starter:
    """Used by the front's event loop only.

    Attributes:
        order: gives a host an order, which is made of its number; returns the number.
        free_port: asks a host for a free port; 0 if it does not say.
        address_of: returns the address of a host.
        spawn: runs work beside the front; an error that it ends with ends the run.
        certificates: of the roles; None: they speak without TLS.
        on_controllers: told the addresses of the controllers when they are known.
        controllers: their addresses; empty until they are known.
    """

    run: Run
    local: LocalRoles
    there: RolesThere
    order: Callable[[str, Callable[[int], Any]], int]
    free_port: Callable[[str], Awaitable[int]]
    address_of: Callable[[str], str]
    spawn: Callable[[Any], None]
    certificates: RunCertificates | None = None
    on_controllers: Callable[[tuple[str, ...]], None] = lambda addresses: None
    controllers: tuple[str, ...] = ()
    _peers: dict[str, str] = field(default_factory=dict)
    _deferred: dict[str, Placed] = field(default_factory=dict)

    def put(self, placed: Placed) -> None:
        """Starts a role, or remembers it until it is known where the controllers are."""
        if self.controllers:
            self.start(placed)
        elif placed.role != "controller":
            self._deferred[placed.node] = placed
        elif placed.host == FRONT:
            (port,) = free_ports(1, self.run.bind)
            self._start_beside(beside_front(self.run, placed, (), port))
            self._controllers_are((f"tcp://{bracketed(self.run.advertise)}:{port}",))
        else:
            self._deferred[placed.node] = placed
            if sum(one.role == "controller" for one in self._deferred.values()) == 1:
                self.spawn(self._form_controllers())

    def start(self, placed: Placed) -> None:
        """Starts a role; controllers are known."""
        if placed.host == FRONT:
            self._start_beside(beside_front(self.run, placed, self.controllers, 0))
            return
        start = on_host(self.run, placed, self.controllers, self._peers)
        own = None if self.certificates is None else self.certificates.issued(placed.role, placed.node)
        attempt = self.order(
            placed.host,
            lambda number: HostStart(number, placed.role, placed.node, start.arguments, start.folder, start.needs, own),
        )
        self.there.started(placed, attempt)

    def _start_beside(self, command: RoleCommand) -> None:
        if self.certificates is not None:
            flags = self.certificates.beside(command.role, command.node)
            command = replace(command, arguments=(*command.arguments, *flags))
        self.local.add(command)
        self.local.start_one(command.node)

    def resume_coordinator(self) -> bool:
        """Starts the coordinator again from the newest checkpoint of its run; whether there is one."""
        if not checkpoints(self.run.folder):
            return False
        again = replace(self.run, resume=str(self.run.folder))
        self._start_beside(beside_front(again, Placed("coordinator", COORDINATOR, FRONT), self.controllers, 0))
        return True

    async def _form_controllers(self) -> None:
        """Asks the hosts of the controllers for ports; then their addresses are known, and all others start.

        Raises:
            RunFailedError: one of these hosts does not say.
        """
        await asyncio.sleep(0)  # until all controllers are among the deferred ones
        homes = {one.node: one.host for one in self._deferred.values() if one.role == "controller"}
        ports = await asyncio.gather(*map(self.free_port, homes.values()))
        if not all(ports):
            silent = ", ".join(host for host, port in zip(homes.values(), ports, strict=True) if not port)
            raise RunFailedError(f"the run cannot begin: {silent} should have a controller and names no free port")
        for (node, host), port in zip(homes.items(), ports, strict=True):
            self._peers[node] = f"{bracketed(self.address_of(host))}:{port}"
        self._controllers_are(tuple(f"tcp://{address}" for address in self._peers.values()))

    def _controllers_are(self, addresses: tuple[str, ...]) -> None:
        self.controllers = addresses
        self.on_controllers(addresses)
        deferred, self._deferred = self._deferred, {}
        for placed in deferred.values():
            self.start(placed)


def bracketed(host: str) -> str:
    """Returns a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
