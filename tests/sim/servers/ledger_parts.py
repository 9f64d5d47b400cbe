"""What a ledger knows of how its job began, and of how many clients are remembered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.wire.messages import PulledPart
from tests.sim.engine import ViolationError

if TYPE_CHECKING:
    from tests.sim.servers.ledger import Done, Ledger

STEPS: ClientKey = ("steps", 0)
"""Stands among the clients of a shard: its numbers are those of the steps that all replicas take together."""


class Beginning:
    """What a job began with: zeros, a checkpoint, or what one of its clients gave, with the first push of all.

    Attributes:
        done: shard -> client -> its last number that a checkpoint has.
        gifts: shard -> who gives its initial values, and which.
        on_given: called when that begins.
        told: shards of which somebody knows that they have been given.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.done: dict[int, dict[ClientKey, int]] = {}
        self.gifts: dict[int, tuple[ClientKey, float]] = {}
        self.told: set[int] = set()
        self.on_given: Callable[[], None] = lambda: None
        self._contents: dict[int, tuple[tuple[float, ...], Done]] = {}

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def restored(self, shard: int, content: tuple[float, ...], done: Done) -> None:
        """A shard begins with values and rule state of a checkpoint, and with what that remembers."""
        ledger = self._ledger
        self._contents[shard] = content, done
        self.done[shard] = dict(done)
        ledger.known_values[shard] = {content[0]}
        ledger.must[shard] = dict(done)
        for client, number in done:
            ledger.had(client, shard, number)
            ledger.dead.add(client)

    def total(self, shard: int) -> int:
        """Returns what a shard has before any push."""
        found = self._contents.get(shard)
        return int(self._ledger.total_of(found[0])) if found is not None else 0

    def check(self, where: str, shard: int, content: Sequence[float], done: Done) -> None:
        """As long as nothing has been pushed, a shard is what it began as."""
        found = self._contents.get(shard)
        if found is not None and done == found[1] and tuple(content) != found[0]:
            raise ViolationError(f"not as it began: shard {shard} at {where} is {content}, and was {found[0]}")
        gift = self.gifts.get(shard)
        if gift is not None and done == ((gift[0], 1),) and content[0] != gift[1]:
            raise ViolationError(f"not as it was given: shard {shard} at {where} is {content[0]}, not {gift[1]}")

    def all_lost(self, shard: int) -> None:
        """What a checkpoint had comes back in any case."""
        must = self._ledger.must
        for client, number in self.done.get(shard, {}).items():
            found = must.setdefault(shard, {})
            found[client] = max(found.get(client, 0), number)

    # --- what is given ----------------------------------------------------------------------------------------------

    def gives(self, client: ClientKey, shard: int, delta: int) -> None:
        """A client gives a shard its initial values, with the first push of all."""
        if not self.gifts:
            self.on_given()
        self.gifts[shard] = client, float(delta)
        self._ledger.issued(client, shard, 1, delta, 0 if self._ledger.squares else None)

    def acknowledged(self, client: ClientKey, shard: int, number: int) -> None:
        if shard in self.gifts and number == 1 and self.gifts[shard][0] == client:
            self.told.add(shard)

    def pulled(self, client: ClientKey, part: PulledPart, done: Mapping[ClientKey, int]) -> None:
        """A client has got a version of a shard; that pushes are in it tells that its values were given."""
        ledger, shard = self._ledger, part.shard
        if not ledger.begins_given or done.get(self.gifts.get(shard, (STEPS, 0))[0]):
            if part.pushes and ledger.begins_given:
                self.told.add(shard)
            return
        if part.pushes or (shard in self.told and not ledger.stale_reads):
            raise ViolationError(f"values that were not given yet: {client[0]} is told of shard {shard}")

    def serves(self, where: str, shard: int, done: Mapping[ClientKey, int]) -> None:
        """Who has been told that initial values are there will find them, whatever is lost."""
        if shard in self.told and not done.get(self.gifts[shard][0]):
            raise ViolationError(f"initial values are lost: {where} serves shard {shard}, whose values were given")

    @property
    def all_told(self) -> bool:
        return len(self.told) == len(self.gifts)


class Bounds:
    """How many clients a shard remembers, and who may have been forgotten for that.

    Attributes:
        clients_max, marks_max: as `ClientMemory` has them.
        evicted: how many were told that they had been.
    """

    def __init__(self, ledger: Ledger, clients_max: int, marks_max: int) -> None:
        self._ledger = ledger
        self.clients_max, self.marks_max = clients_max, marks_max
        self.evicted = 0
        self._issues: dict[int, list[ClientKey]] = {}
        self._open: dict[int, dict[ClientKey, int]] = {}
        self._places: dict[tuple[ClientKey, int], dict[int, tuple[int, set[ClientKey]]]] = {}
        self._last: dict[tuple[ClientKey, int], int] = {}

    def issued(self, client: ClientKey, shard: int, number: int) -> None:
        """Notes who may be used after this."""
        issues, open_ = self._issues.setdefault(shard, []), self._open.setdefault(shard, {})
        self._places.setdefault((client, shard), {})[number] = len(issues), set(open_) - {client}
        issues.append(client)
        open_[client] = number

    def acknowledged(self, client: ClientKey, shard: int, number: int) -> None:
        self._last[client, shard] = max(self._last.get((client, shard), 0), number)
        if self._open.get(shard, {}).get(client, 0) <= number:
            self._open.get(shard, {}).pop(client, None)

    def told_evicted(self, client: ClientKey, shard: int) -> None:
        """A client that lives is told that it was forgotten: as many others have been used since (or lost since)."""
        self.evicted += 1
        ledger, issues = self._ledger, self._issues[shard]
        if shard in ledger.excused or ledger.stale_reads or ledger.acks == "applied":
            return
        last = self._last.get((client, shard), 0)
        place, others = self._places[client, shard][max(last, min(self._places[client, shard]))]
        begun = ledger.begun.done.get(shard, {})
        if not last and client in begun:  # known from the checkpoint, and unused since
            place, others = 0, set(begun)
        others = (others | set(issues[place:])) - {client}
        forgotten = not last and len(set(issues)) >= self.clients_max + self.marks_max
        if len(others) < self.clients_max and not forgotten:
            raise ViolationError(
                f"evicted too early: {client}, shard {shard}, after {len(others)} others; {self.clients_max} are known"
            )
