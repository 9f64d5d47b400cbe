"""What was pushed, what was acknowledged, and what every version of every shard was: truth, apart from all servers.

Deltas are whole numbers and the same for all elements of a shard, and sums stay below 2^24: so a shard's value says
which pushes are in it, and a mix of two versions is seen at once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, combinations
from typing import Any, TypeAlias

import numpy as np

from adamctl.roles.ps.core.exactly_once import ClientKey, ClientMemory, MemoryRecord
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PulledPart
from tests.sim.engine import ViolationError, World
from tests.sim.servers.ledger_parts import STEPS, Beginning, Bounds

Values: TypeAlias = "np.ndarray[Any, Any]"
Done: TypeAlias = "tuple[tuple[ClientKey, int], ...]"
SKIPS_MAX = 10
GONE = -1
"""Instead of a number: the client has been evicted. With no name: all up to an incarnation that are not remembered."""


class Ledger:
    """Knows everything that any client has ever sent and been told.

    Attributes:
        must: shard -> client -> the last number that may not be lost any more.
        excused: shards that have lost all their copies at once: what was not on disk may be gone.
        clients_rest: they may push nothing after a loss, and so never learn of it.
        stale_reads: clocks are arbitrarily wrong, so that leases say nothing.
        squares: the rule is Adagrad, whose state is the sum of the squares of what was pushed.
        single: there is one copy of each shard, whose memory may change without its version.
        begins_given: the job begins with values that a client gives.
        refused: (client, shard, number) of what may not be applied, because it is no number.
        undecided: of what may be refused or not: parts of a step of which some part is no number.
        window_s: what a loss of all copies at once may take back; None: all that was not durable.
        dead: clients whose process has ended: what they were not told of may be done or not, and stays as it is.
        disks_well_s: since when all disks have had room.
        begun: what the job began with, and was given.
        bounds: how many clients and marks of evicted ones are remembered, if clients come near that.
    """

    def __init__(self, world: World, acks: str) -> None:
        self.world = world
        self.acks = acks
        self.must: dict[int, dict[ClientKey, int]] = {}
        self.excused: set[int] = set()
        self.stale_reads = self.clients_rest = self.squares = self.single = self.begins_given = False
        self.window_s: float | None = None
        self.refused: set[tuple[ClientKey, int, int]] = set()
        self.undecided: set[tuple[ClientKey, int, int]] = set()
        self.dead: set[ClientKey] = set()
        self.begun = Beginning(self)
        self.bounds: Bounds | None = None
        self.versions: dict[tuple[int, int, int], tuple[tuple[float, ...], Done, str]] = {}
        self.known_values: dict[int, set[float]] = {}
        self._deltas: dict[tuple[ClientKey, int], list[int]] = {}
        self._sums: dict[tuple[ClientKey, int], list[int]] = {}
        self._losses: dict[int, list[tuple[float, dict[ClientKey, int]]]] = {}  # shard -> when, and `must` then
        self._told: dict[int, list[tuple[float, ClientKey, int]]] = {}
        self.disks_well_s = 0.0
        self._skips: dict[int, list[tuple[ClientKey, int, int, int]]] = {}
        self._latest: dict[int, dict[ClientKey, int]] = {}
        self._newest: dict[int, tuple[int, int]] = {}

    # --- clients ----------------------------------------------------------------------------------------------------

    def issued(self, client: ClientKey, shard: int, number: int, delta: int, counts: int | None = None) -> None:
        """A client gives the next number on a shard to a delta; 0: to what is no number and has to be refused.

        `counts`: what it adds to the sums that say which pushes are in a shard, if that does not follow.
        """
        if not delta:
            self.refused.add((client, shard, number))
        if self.bounds is not None:
            self.bounds.issued(client, shard, number)
        deltas = self._deltas.setdefault((client, shard), [0])
        sums = self._sums.setdefault((client, shard), [0])
        if number == len(deltas):
            deltas.append(delta)
            sums.append(sums[-1] + (self._counts(delta) if counts is None else counts))
        else:  # only who goes on with another's numbers gives one a second time
            deltas[number] = delta
            sums[:] = accumulate(self._counts(one) for one in deltas)

    def had(self, client: ClientKey, shard: int, number: int) -> None:
        """What a client has done up to a number is in what the shard began with."""
        self._deltas[client, shard] = [0] * (number + 1)
        self._sums[client, shard] = [0] * (number + 1)

    def _counts(self, delta: int) -> int:
        return delta * delta if self.squares else delta

    def delta(self, client: ClientKey, shard: int, number: int) -> int:
        return self._deltas[client, shard][number]

    def acknowledged(self, client: ClientKey, shard: int, number: int, sent_s: float) -> None:
        """A client is told that a number is done; `sent_s`: when the server said so."""
        if any(sent_s < lost_s for lost_s, _ in self._losses.get(shard, ())):
            return
        must = self.must.setdefault(shard, {})
        must[client] = max(must.get(client, 0), number)
        self.begun.acknowledged(client, shard, number)
        if self.bounds is not None:
            self.bounds.acknowledged(client, shard, number)
        if self.acks != "durable" and self.window_s is not None:
            self._told.setdefault(shard, []).append((sent_s, client, number))

    def disk_full(self) -> None:
        """Some disk has had no room until now: what has come meanwhile is nowhere but in memory."""
        self.disks_well_s = self.world.now_s

    @property
    def promises(self) -> bool:
        """Says whether anything is promised where memory is lost."""
        return self.acks != "applied" or self.single

    def settled(self, client: ClientKey, shard: int, number: int, code: int) -> None:
        """A client is told what has become of a number (refusals are answers, too)."""
        if (client, shard, number) in self.undecided:
            return
        refused = (client, shard, number) in self.refused
        if refused != (code == ErrorCode.NOT_FINITE):
            told = f"number {number} of {client[0]} on shard {shard}"
            raise ViolationError(
                f"a refusal is forgotten: {told} is answered {code}" if refused else f"refused for nothing: {told}"
            )

    def known(self, client: ClientKey, shard: int) -> int:
        return self.must.get(shard, {}).get(client, 0)

    def pulled(self, client: ClientKey, part: PulledPart, values: Values, known: int, asked_s: float) -> None:
        """A client has got a shard: at one version, that there was, with all that it knew to be done (I1, I5).

        `known`, `asked_s`: what it knew when it asked, and when that was. If all copies were lost meanwhile, only what
        may not be lost by that is expected: what was acknowledged since then says nothing of what was before.
        """
        value = self.whole(part.shard, values, f"what {client[0]} pulled")
        if value not in self.known_values.get(part.shard, {0.0}):
            raise ViolationError(f"a pull of what never was: {client[0]} pulled shard {part.shard} as {value}")
        version = self.versions.get((part.shard, part.epoch, part.version))
        if version is not None and version[0][0] != value:
            raise ViolationError(
                f"a pull of another version: {client[0]} pulled shard {part.shard} as {value}, not {version[0][0]}"
            )
        if version is not None:
            self.begun.pulled(client, part, dict(version[1]))
        if self.stale_reads or self.acks == "applied":
            return
        kept = (left.get(client, 0) for lost_s, left in self._losses.get(part.shard, ()) if lost_s >= asked_s)
        expected = min((known, *kept))
        if self.bounds is not None and not part.sequence:
            return  # it may have been evicted
        if part.sequence < expected:
            found = f"up to number {part.sequence} of its own, and {known} was acknowledged before it asked"
            raise ViolationError(
                f"a pull without what was acknowledged: {client[0]}, shard {part.shard}, with what it did {found}"
            )

    # --- servers ----------------------------------------------------------------------------------------------------

    def whole(self, shard: int, values: Values, what: str) -> float:
        """Returns the one value that all elements have."""
        value = float(values[0])
        if not (values == value).all():
            raise ViolationError(f"torn: shard {shard} in {what}, {sorted(set(values.tolist()))}")
        return value

    def holds(
        self,
        where: str,
        shard: int,
        version: tuple[int, int],
        arrays: Sequence[Values],
        done: Done,
        image: bool = False,
    ) -> None:
        """A copy is at a version: each push it remembers is in it once, no other is, and no copy of it differs.

        `image`: it was taken at some time, and is seen now that it is written.
        """
        content = tuple(self.whole(shard, array, where) for array in arrays)
        found = self.versions.get((shard, *version))
        if image and found is not None and found[0] == content and self._goes_on(done, found[1]):
            self._check_sum(where, shard, version, self.total_of(content), done)
            return
        if found is not None and found[0] == content and self._goes_on(found[1], done):
            self._check_sum(where, shard, version, self.total_of(content), done)
        elif found is not None and found[:2] != (content, done):
            raise ViolationError(
                f"two states of one version: shard {shard} at {version} is {content} {done} at {where}, "
                f"and was {found[0]} {found[1]} at {found[2]}"
            )
        if found is None or self.single:
            self.begun.check(where, shard, content, done)
            self._check_sum(where, shard, version, self.total_of(content), done)
            if found is None and version >= self._newest.get(shard, version):  # others may be seen for the first time
                self.begins(shard, done)
                self._newest[shard] = version
            self.versions[shard, *version] = (content, done, where)
            self.known_values.setdefault(shard, {0.0}).add(content[0])

    def _goes_on(self, before: Done, done: Done) -> bool:
        """Says whether what was refused may have changed a memory."""
        if not self.single:
            return False
        return self.bounds is not None or {client for client, _ in before} <= {client for client, _ in done}

    def numbers(self, shard: int, done: Done) -> dict[ClientKey, int]:
        """Returns up to which number each client's pushes are in a state, also of those that it does not remember."""
        numbers, latest = dict(done), self._latest.get(shard, {})
        for client, number in done:
            if number == GONE and client[0]:
                numbers[client] = latest.get(client, 0)
            elif number == GONE:
                del numbers[client]
                forgotten = {one: last for one, last in latest.items() if one[1] <= client[1]}
                numbers = forgotten | numbers
        return numbers

    def begins(self, shard: int, done: Done) -> None:
        """A state is the newest one of a shard: who is evicted after it has done as much as it says."""
        self._newest.pop(shard, None)
        self._latest[shard] = self.numbers(shard, done)

    def total_of(self, content: Sequence[float]) -> float:
        """Returns what pushes add up to: the values, or Adagrad's sum of squares."""
        return content[-1] if self.squares else content[0]

    def _check_sum(self, where: str, shard: int, version: tuple[int, int], value: float, done: Done) -> None:
        numbers = self.numbers(shard, done)
        for client, number in numbers.items():
            if number >= len(self._sums.get((client, shard), (0,))):
                raise ViolationError(
                    f"a push that was never sent: shard {shard} at {where}, number {number} of {client[0]}"
                )
        expected = self.begun.total(shard) + sum(
            self._sums[client, shard][number] for client, number in numbers.items() if number
        )
        if value == expected or self._explained(shard, expected - value, done):
            return
        told = ", ".join(f"{client[0]} {number}" for client, number in numbers.items())
        raise ViolationError(
            f"not the sum of its pushes: shard {shard} at {where}, {version}, is {value}; {told} make {expected}"
        )

    def _explained(self, shard: int, missing: float, done: Done) -> bool:
        """Says whether numbers that were passed over after a rollback are what is missing."""
        numbers = self.numbers(shard, done)  # also of those who have been evicted since
        skips = [skipped for client, _, last, skipped in self._skips.get(shard, []) if numbers.get(client, 0) >= last]
        if shard in self.excused and missing in _runs(self._sums.get((STEPS, shard), [])[: numbers.get(STEPS, 0) + 1]):
            return True  # steps that were rolled back, and are passed over
        skips = skips[-SKIPS_MAX:] + self._before_evicted(shard, done)
        return any(sum(some) == missing for count in range(1, len(skips) + 1) for some in combinations(skips, count))

    def _before_evicted(self, shard: int, done: Done) -> list[int]:
        """Returns what those who were evicted may have done that was rolled back before."""
        if self.bounds is None or not (shard in self.excused or self.stale_reads):
            return []
        numbers, remembered = self.numbers(shard, done), {client for client, number in done if number != GONE}
        sums = {client: self._sums[client, shard] for client in numbers if client not in remembered and numbers[client]}
        return [some[numbers[client]] - each for client, some in sums.items() for each in some][:SKIPS_MAX]

    def passed_over(self, where: str, shard: int, client: ClientKey, first: int, last: int) -> None:
        """A server goes on after numbers that it does not have, because they were acknowledged and are lost (I4)."""
        if self.acks != "applied" and shard not in self.excused:
            text = f"shard {shard} at {where} goes on after numbers {first} to {last} of {client[0]} without them"
            raise ViolationError(f"{text}, which were acknowledged")
        sums = self._sums[client, shard]
        self._skips.setdefault(shard, []).append((client, first, last, sums[last] - sums[first - 1]))

    def serves(self, where: str, shard: int, done: Done) -> None:
        """A server begins to serve a shard: all that was acknowledged is in it (I4)."""
        numbers = self.numbers(shard, done)
        self.begun.serves(where, shard, numbers)
        if not self.promises:
            return
        for client, number in self.must.get(shard, {}).items():
            found = numbers.get(client, 0)
            if found < number and not self._may_be_forgotten(client, shard):
                text = (
                    f"acknowledged, and lost: {where} serves shard {shard} with the pushes of {client[0]} up to {found}"
                )
                raise ViolationError(f"{text}, and number {number} was acknowledged")

    def all_lost(self, shards: range) -> None:
        """No copy in memory is left: what was not acknowledged as durable may be rolled back."""
        if self.acks == "durable":
            return
        for shard in shards:
            self.excused.add(shard)
            self.must.pop(shard, None)
            self._keep_all_but_window(shard)
            self._losses.setdefault(shard, []).append((self.world.now_s, dict(self.must.get(shard, {}))))
            self.begun.all_lost(shard)

    def _keep_all_but_window(self, shard: int) -> None:
        """What was acknowledged before the loss window is on some disk, unless that was full."""
        told = self._told.pop(shard, [])
        if self.window_s is None or not told or self.world.now_s < self.disks_well_s + self.window_s:
            return
        until_s = max(sent_s for sent_s, _, _ in told) - self.window_s
        must = {}
        kept = [one for one in told if self.disks_well_s <= one[0] <= until_s]
        for _, client, number in kept:
            must[client] = max(must.get(client, 0), number)
        if must:
            self.must[shard], self._told[shard] = must, kept

    def final(self, where: str, shard: int, arrays: Sequence[Values], numbers: Done) -> None:
        """All pushes are answered, but for those of the dead: nothing is missing (I5)."""
        value = self.total_of([self.whole(shard, array, where) for array in arrays])
        done = self.numbers(shard, numbers)
        expected = self.begun.total(shard)
        for (client, index), sums in self._sums.items():
            if index != shard:
                continue
            number, issued = done.get(client, 0), len(sums) - 1
            may_lack = client in self.dead or (self.clients_rest and (shard in self.excused or self.acks == "applied"))
            must = self.acks != "applied" and not self._may_be_forgotten(client, shard)
            least = self.known(client, shard) if may_lack and must else 0
            if number < least or (not may_lack and number != issued):
                found = f"remembers {client} up to {number}; {least or issued} are acknowledged"
                raise ViolationError(f"shard {shard} at {where} {found}")
            expected += sums[number]
        if value != expected and not self._explained(shard, expected - value, numbers):
            raise ViolationError(f"shard {shard} at {where} is {value} in the end; its pushes make {expected}")

    def _may_be_forgotten(self, client: ClientKey, shard: int) -> bool:
        """Says whether nothing of a client need be left, though all that it did is in the values."""
        return self.bounds is not None and client in self.begun.done.get(shard, {})

    def owes(self, shard: int) -> bool:
        """Says whether anything was acknowledged of a shard, beside what it began with."""
        before = self.begun.done.get(shard, {})
        return any(number > before.get(client, 0) for client, number in self.must.get(shard, {}).items())


def _runs(sums: Sequence[int]) -> set[int]:
    """Returns what one or two runs of numbers that follow each other add up to."""
    runs = {later - earlier for earlier, later in combinations(sums, 2)}
    return runs | {one + other for one in runs for other in runs}


def done_of(memory: ClientMemory | MemoryRecord) -> Done:
    """Returns up to which number each client's pushes are in the values that a memory belongs to.

    Who was evicted is `GONE`; `STEPS` stands for the last step that all replicas took together.
    """
    if isinstance(memory, ClientMemory):
        found = [(key, client.done) for key, client in memory.clients.items() if client.done]
        marks: Collection[ClientKey] = memory._evicted
    else:
        found = [((one.node, one.incarnation), one.sequence) for one in memory.clients if one.sequence]
        marks = memory.evicted
    found += [(key, GONE) for key in marks]
    if memory.evicted_incarnation >= 0:
        found.append((("", memory.evicted_incarnation), GONE))
    if memory.step:
        found.append((STEPS, memory.step))
    return tuple(sorted(found))
