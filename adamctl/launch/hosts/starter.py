"""Starts roles where the keeper has put them: beside the front, or at agents, once the controllers have addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
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

PORT_TRIES, PORT_AGAIN_S = 10, 0.5
"""How often a host is asked for a port; it is lost before that, if it is."""


@dataclass
class Starter:
    """Used by the front's event loop only.

    Attributes:
        order: gives a host an order, which is made of its number; returns the number.
        free_port: asks a host for a free port; 0 if it does not say.
        address_of: returns the address of a host.
        spawn: runs work beside the front; an error that it ends with ends the run.
        certificates: of the roles; None: they speak without TLS.
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
    controllers: tuple[str, ...] = ()
    _peers: dict[str, str] = field(default_factory=dict)
    _deferred: dict[str, Placed] = field(default_factory=dict)
    _beginning: int = 0

    def put(self, placed: Placed) -> None:
        """Starts a role, or remembers it until it is known where the controllers are."""
        if self.controllers:
            self.start(placed)
        elif placed.role != "controller":
            self._deferred[placed.node] = placed
        elif placed.host == FRONT:
            (port,) = free_ports(1, self.run.bind)
            self._start_at_front(beside_front(self.run, placed, (), port))
            self._controllers_known((f"tcp://{bracketed(self.run.advertise)}:{port}",))
        else:
            self._deferred[placed.node] = placed
            if sum(one.role == "controller" for one in self._deferred.values()) == 1:
                self.spawn(self._form_controllers())

    def start(self, placed: Placed, peers: Mapping[str, str] | None = None) -> None:
        """Starts a role; controllers are known. `peers`: for a controller that is no member yet, name -> address."""
        if placed.host == FRONT:
            self._start_at_front(beside_front(self.run, placed, self.controllers, 0))
            return
        start = on_host(self.run, placed, self.controllers, peers or self._peers)
        own = None if self.certificates is None else self.certificates.issued(placed.role, placed.node)
        attempt = self.order(
            placed.host,
            lambda number: HostStart(number, placed.role, placed.node, start.arguments, start.folder, start.needs, own),
        )
        self.there.started(placed, attempt)

    def start_beside(self, placed: Placed, living: Sequence[str], port: int) -> str:
        """Starts a controller that waits beside the living ones; returns the address at which it introduces itself."""
        address = f"{bracketed(self.address_of(placed.host))}:{port}"
        self.start(placed, {**{node: self._peers[node] for node in living}, placed.node: address})
        return f"tcp://{address}"

    def controllers_are(self, peers: Mapping[str, str]) -> None:
        """The members are others than before, name -> address; what is started from now on is told so."""
        self._peers = {node: address.removeprefix("tcp://") for node, address in peers.items()}
        self.controllers = tuple(f"tcp://{address}" for address in self._peers.values())

    def begin_anew(self) -> None:
        """Forgets the controllers: those of the next beginning are others. What is started here ends."""
        self._beginning += 1
        self.controllers, self._peers, self._deferred = (), {}, {}
        for node in tuple(self.local.pids()):
            self.local.forget(node)

    def _start_at_front(self, command: RoleCommand) -> None:
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
        self._start_at_front(beside_front(again, Placed("coordinator", COORDINATOR, FRONT), self.controllers, 0))
        return True

    async def _form_controllers(self) -> None:
        """Asks the hosts of the controllers for ports; then their addresses are known, and all others start.

        A host that is lost meanwhile has the run begin anew, without it.

        Raises:
            RunFailedError: one of these hosts is there, and does not say.
        """
        beginning = self._beginning
        await asyncio.sleep(0)  # until all controllers are among the deferred ones
        homes = {one.node: one.host for one in self._deferred.values() if one.role == "controller"}
        for _ in range(PORT_TRIES):
            ports = await asyncio.gather(*map(self.free_port, homes.values()))
            if self._beginning != beginning:
                return
            if all(ports):
                break
            await asyncio.sleep(PORT_AGAIN_S)
        else:
            silent = ", ".join(host for host, port in zip(homes.values(), ports, strict=True) if not port)
            raise RunFailedError(f"the run cannot begin: {silent} should have a controller and names no free port")
        for (node, host), port in zip(homes.items(), ports, strict=True):
            self._peers[node] = f"{bracketed(self.address_of(host))}:{port}"
        self._controllers_known(tuple(f"tcp://{address}" for address in self._peers.values()))

    def _controllers_known(self, addresses: tuple[str, ...]) -> None:
        self.controllers = addresses
        deferred, self._deferred = self._deferred, {}
        for placed in deferred.values():
            self.start(placed)


def bracketed(host: str) -> str:
    """Returns a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
