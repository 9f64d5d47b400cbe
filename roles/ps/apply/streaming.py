"""Applies pushes while their bodies are still arriving, on the event loop that receives them."""

from __future__ import annotations

import time
from collections.abc import Callable

from adamctl.roles.ps.apply.applier import Applier
from adamctl.roles.ps.apply.load_meter import Work
from adamctl.roles.ps.core.arrival import arrived, begin_arrival
from adamctl.roles.ps.core.arriving_push import ArrivingPush
from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.roles.ps.core.instructions import Apply
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.messages import PushRequest


class ArrivalApplier:
    """Applies pieces of pushes on the loop's thread.

    Attributes:
        busy_s: seconds it has worked.
        work: what it has done.
    """

    def __init__(self, core: ServerCore, completed: Callable[[Apply], None]) -> None:
        """`completed` is called for every instruction that was carried out."""
        self.busy_s = 0.0
        self.work = Work()
        self._core, self._completed = core, completed
        self._applier = Applier(self.work)

    def begin(
        self, connection: int, client: ClientKey, message: PushRequest, body: memoryview, now: float
    ) -> Arrival | None:
        """Returns the object that takes a push's pieces, or None if the push should be taken as a whole."""
        push = begin_arrival(self._core, connection, client, message, body, now)
        return Arrival(push, self) if push is not None else None

    def take(self, push: ArrivingPush, piece: int, data: memoryview) -> bool:
        """Applies a piece to those of its shards that are idle; returns whether all its parts are settled."""
        instruction = arrived(self._core, push, piece, data)
        if instruction is None:
            return False
        began_s = time.perf_counter()
        self._applier.apply(instruction.job.rule, instruction.batches)
        self.busy_s += time.perf_counter() - began_s
        self._completed(instruction)
        return push.taken(piece)


class Arrival:
    """An arriving push; see `adamctl.net.transport.Arrival`."""

    def __init__(self, push: ArrivingPush, applier: ArrivalApplier) -> None:
        self.push = push
        self.stops = push.stops
        self._applier = applier

    def arrived(self, piece: int, data: memoryview) -> bool:
        """See `adamctl.net.transport.Arrival`."""
        return self._applier.take(self.push, piece, data)
