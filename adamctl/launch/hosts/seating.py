"""Has a controller that waits take the place of a lost one: asks the cluster until it has.

The front asks as an operator does with `adamctl controller replace`. Whether the lost one may be replaced is for the
controllers to decide: their leader refuses while it hears the lost one, and needs a majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from adamctl.errors import AdamctlError
from adamctl.launch.hosts.decisions import Decision, OfControllers, Say, Seat, Seated, Substitute
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.starter import Starter
from adamctl.launch.supervision import Supervision
from adamctl.net.transport import Transport
from adamctl.roles.controller.client import ControllerClient
from adamctl.wire.messages import Hello

AGAIN_S = 0.5
DEADLINE_S = 5.0
SAID_AFTER_S = 30.0


class Seating:
    """Carries out what is decided about controllers. Used by the front's event loop only."""

    def __init__(
        self,
        transport: Transport,
        hello: Hello,
        keeper: HostKeeper,
        starter: Starter,
        supervision: Supervision,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        decide: Callable[[Iterable[Decision]], None],
    ) -> None:
        """`spawn` runs work beside the front; `decide` carries out what the keeper answers."""
        self._transport, self._hello, self._keeper = transport, hello, keeper
        self._starter, self._supervision = starter, supervision
        self._spawn, self._decide = spawn, decide
        self.open: Callable[[Sequence[str]], ControllerClient] = self._open
        """Returns a client of the controllers at these addresses; tests have others."""
        self._address = ""
        self._members: Mapping[str, str] = {}

    def carry_out(self, decision: OfControllers) -> None:
        """Starts what a decision asks for."""
        match decision:
            case Substitute():
                self._spawn(self._start(decision))
            case Seat(node=node):
                self._spawn(self._take(node))
            case Seated(members=members):
                self._starter.controllers_are({node: self._members[node] for node in members})

    async def _start(self, substitute: Substitute) -> None:
        placed = substitute.placed
        port = await self._starter.free_port(placed.host)
        if self._keeper.controllers.seats.waiting != placed.node:
            self._decide(self._keeper.ended(placed.node) or ())  # it was given up meanwhile, and has never run
        elif not port:
            self._decide(self._keeper.not_seated(f"{placed.node} cannot be started: {placed.host} names no free port"))
        else:
            self._supervision.add(placed.node, placed.role)
            self._address = self._starter.start_beside(placed, substitute.living, port)

    async def _take(self, node: str) -> None:
        """Ends when the controller that waits is a member, or waits no longer."""
        seats = self._keeper.controllers.seats
        store = self.open(self._starter.controllers)
        await take_a_seat(
            store, node, self._address,
            waits=lambda: seats.waiting == node, vacant=lambda: self._keeper.vacant, told=self._told,
            note=lambda text: self._decide([Say(text)]),
        )  # fmt: skip

    def _open(self, addresses: Sequence[str]) -> ControllerClient:
        return ControllerClient(self._transport, addresses, lambda: self._hello, deadline_s=DEADLINE_S)

    def _told(self, members: Mapping[str, str]) -> None:
        self._members = members
        self._decide(self._keeper.seated(tuple(members)))


async def take_a_seat(
    store: ControllerClient,
    node: str,
    address: str,
    waits: Callable[[], bool],
    vacant: Callable[[], str],
    told: Callable[[Mapping[str, str]], None],
    note: Callable[[str], None],
) -> None:
    """Returns when `node` is a member, or no longer waits to become one.

    Args:
        store: a client of the controllers; it is closed at the end.
        address: of `node`, as it introduces itself.
        waits: whether it still waits.
        vacant: returns the member whose place it is to take now; empty: none, so it only waits.
        told: is given the members, name -> address, each time before anything is asked for.
        note: is told, once, what it waits for if that takes long.
    """
    loop = asyncio.get_running_loop()
    since_s, said = loop.time(), False
    try:
        while waits():
            problem = ""
            try:
                told(await store.members())
                if waits() and (old := vacant()):
                    await store.replace_controller(old, node, address)
                    continue
                since_s = loop.time()
            except AdamctlError as error:
                problem = str(error)
            if problem and not said and loop.time() - since_s >= SAID_AFTER_S:
                said = True
                note(f"{node} waits to become a controller: {problem}")
            await asyncio.sleep(AGAIN_S)
    finally:
        await store.close()
