"""Steps that all replicas take together: the parts of one, for one shard, are held until they are complete (pure).

A part is a push like any other: its client's memory has its number, it is answered once, and it is acknowledged only
when its step is applied. So no snapshot contains what is held here; clients send it again to a server that restarted.
All parts of a step become one update: their sum, in the order of their places.

When a replica dies, another one makes its part again. If the dead replica's part came after all, the second one is
superseded: it waits with the others and changes nothing. The same holds for a part of a step that the shard has already
applied. Nobody sends a part of a step before all parts of the previous step are applied. So if a newer step begins
while parts of an older one are held, the older one was complete once, and a restart took its acknowledged pushes back:
its parts are dropped.

The numbers of one client are settled in order; otherwise a number that is still held would count as done. So a push
that is no part of the held step, from a client with a held number, waits until the step is applied.
"""

from __future__ import annotations

from adamctl.roles.ps.core.exactly_once import Client, ClientKey
from adamctl.roles.ps.core.push import Place, Push, Source, Update
from adamctl.wire.constants import ErrorCode, UpdateKind

APPLIED_TOGETHER = 1 << 62
"""The base of a part: no push of other clients came between the parameters it was computed from and its application."""


class StepPart(Update):
    """An accepted part of a step.

    Attributes:
        step: its number; 0 if the part does not fit the step it names and is refused.
        superseded: it must not be applied.
    """

    __slots__ = ("step", "superseded")

    def __init__(self, push: Push, position: int, source: Source | None, client: Client, sequence: int) -> None:
        super().__init__(push, position, source, client, sequence, (APPLIED_TOGETHER, 0))
        self.step = 0
        self.superseded = False

    def refuse(self, code: int, message: str) -> None:
        """Refuses the part; it no longer belongs to any step."""
        super().refuse(code, message)
        self.superseded = True


class ShardSteps:
    """The steps of one shard.

    Attributes:
        begun: the last step whose parts are complete, and so applied or about to be.
        step: the step whose parts are held, greater than `begun`; 0 if none are held.
        parts: held parts by place.
        twins: further parts for the same places.
        behind: later updates of clients that have held parts.
    """

    __slots__ = ("begun", "behind", "count", "parts", "step", "twins")

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.step = self.count = 0
        self.parts: dict[int, StepPart] = {}
        self.twins: list[StepPart] = []
        self.behind: list[Update] = []

    @property
    def held(self) -> list[Update]:
        return [*self.parts.values(), *self.twins, *self.behind]

    def lacks(self, step: int, place: int, client: ClientKey) -> bool:
        """Returns whether other clients wait for this part."""
        if step != self.step or place in self.parts:
            return False
        return any(part.client.key != client for part in self.parts.values())

    def in_turn(self, update: Update) -> list[Update]:
        """Returns the update if it may be applied or settled now; else keeps it behind its client's held parts."""
        client = update.client
        if not self.step or not any(part.client is client for part in (*self.parts.values(), *self.twins)):
            return [update]
        self.behind.append(update)
        return []

    def take(self, update: StepPart, place: Place) -> list[Update]:
        """Takes in a part; returns what to apply or settle now, in order."""
        problem = _problem(update, place)
        if problem is None and place.step == self.step and place.parts != self.count:
            problem = ErrorCode.BAD_MESSAGE, f"step {self.step} has {self.count} parts; found one of {place.parts}"
        if problem is not None:
            update.refuse(*problem)
            return self.in_turn(update)
        update.step = place.step
        if place.step <= self.begun or place.step < self.step:
            update.superseded = True
            return self.in_turn(update)
        overtaken = self.let_go() if place.step != self.step else []
        self.step, self.count = place.step, place.parts
        if place.part in self.parts:
            update.superseded = True
            self.twins.append(update)
        else:
            self.parts[place.part] = update
        return [*overtaken, *self._complete()]

    def let_go(self) -> list[Update]:
        """Returns all held updates, with the parts marked as superseded: their step counts as done."""
        released = self.held
        for update in (*self.parts.values(), *self.twins):
            update.superseded = True
        self.begun = max(self.begun, self.step)
        self._clear()
        return released

    def _complete(self) -> list[Update]:
        if len(self.parts) < self.count:
            return []
        parts: list[Update] = [self.parts[place] for place in range(self.count)]
        whole = [*parts, *self.twins, *self.behind]
        refused = next((update for update in parts if update.code), None)
        if refused is not None:  # a step is applied whole or not at all
            for update in (*parts, *self.twins):
                update.code, update.message = refused.code, refused.message
        self.begun = self.step
        self._clear()
        return whole

    def _clear(self) -> None:
        self.step = self.count = 0
        self.parts, self.twins, self.behind = {}, [], []


def _problem(update: StepPart, place: Place) -> tuple[int, str] | None:
    if not 0 <= place.part < place.parts or place.step < 1:
        return ErrorCode.BAD_MESSAGE, f"no such part: {place.part} of {place.parts} of step {place.step}"
    if not update.code and update.source is not None and update.source.header.kind != UpdateKind.GRADIENT:
        found = UpdateKind(update.source.header.kind).name
        return ErrorCode.WRONG_KIND, f"expected gradients as the parts of a step; found {found}"
    return None
