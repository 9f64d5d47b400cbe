"""What was pushed, what was acknowledged, and what every version of every shard was: truth, apart from all servers.

Deltas are whole numbers and the same for all elements of a shard, and sums stay below 2^24: so a shard's value says
which pushes are in it, and a mix of two versions is seen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations
from typing import Any, TypeAlias

import numpy as np

from adamctl.roles.ps.core_sequence import ClientKey, ClientMemory, MemoryRecord
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import PulledPart
from tests.sim.engine import ViolationError, World

Values: TypeAlias = "np.ndarray[Any, Any]"
Done: TypeAlias = "tuple[tuple[ClientKey, int], ...]"
SKIPS_MAX = 10


class Ledger:
    """Knows everything that any client has ever sent and been told.

    Attributes:
        must: shard -> client -> the last number that may not be lost any more.
        excused: shards that have lost all their copies at once: what was not on disk may be gone.
        clients_rest: they may push nothing after a loss, and so never learn of it.
        stale_reads: clocks are arbitrarily wrong, so that leases say nothing.
        squares: the rule is Adagrad, whose state is the sum of the squares of what was pushed.
        single: there is one copy of each shard, whose memory may change without its version.
        refused: (client, shard, number) of what may not be applied, because it is no number.
        window_s: what a loss of all copies at once may take back; None: all that was not durable.
        dead: clients whose process has ended: what they were not told of may be done or not, and stays as it is.
    """

    def __init__(self, world: World, acks: str) -> None:
        self.world = world
        self.acks = acks
        self.must: dict[int, dict[ClientKey, int]] = {}
        self.excused: set[int] = set()
        self.stale_reads = self.clients_rest = self.squares = self.single = False
        self.window_s: float | None = None
        self.refused: set[tuple[ClientKey, int, int]] = set()
        self.dead: set[ClientKey] = set()
        self.versions: dict[tuple[int, int, int], tuple[tuple[float, ...], Done, str]] = {}
        self.known_values: dict[int, set[float]] = {}
        self._deltas: dict[tuple[ClientKey, int], list[int]] = {}
        self._sums: dict[tuple[ClientKey, int], list[int]] = {}
        self._lost_s: dict[int, float] = {}
        self._told: dict[int, list[tuple[float, ClientKey, int]]] = {}
        self._disks_well_s = 0.0
        self._skips: dict[int, list[tuple[ClientKey, int, int, int]]] = {}

    # --- clients ----------------------------------------------------------------------------------------------------

    def issued(self, client: ClientKey, shard: int, number: int, delta: int) -> None:
        """A client gives the next number on a shard to a delta; 0: to what is no number and has to be refused."""
        if not delta:
            self.refused.add((client, shard, number))
        deltas = self._deltas.setdefault((client, shard), [0])
        sums = self._sums.setdefault((client, shard), [0])
        if number == len(deltas):
            deltas.append(delta)
            sums.append(sums[-1] + self._counts(delta))
        else:  # only who goes on with another's numbers gives one a second time
            deltas[number] = delta
            sums[:] = accumulate(self._counts(one) for one in deltas)

    def _counts(self, delta: int) -> int:
        return delta * delta if self.squares else delta

    def delta(self, client: ClientKey, shard: int, number: int) -> int:
        return self._deltas[client, shard][number]

    def acknowledged(self, client: ClientKey, shard: int, number: int, sent_s: float) -> None:
        """A client is told that a number is done; `sent_s`: when the server said so."""
        if sent_s < self._lost_s.get(shard, sent_s):
            return
        must = self.must.setdefault(shard, {})
        must[client] = max(must.get(client, 0), number)
        if self.acks != "durable" and self.window_s is not None:
            self._told.setdefault(shard, []).append((sent_s, client, number))

    def disk_full(self) -> None:
        """Some disk has had no room until now: what has come meanwhile is nowhere but in memory."""
        self._disks_well_s = self.world.now_s

    @property
    def promises(self) -> bool:
        """Says whether anything is promised where memory is lost."""
        return self.acks != "applied" or self.single

    def settled(self, client: ClientKey, shard: int, number: int, code: int) -> None:
        """A client is told what has become of a number (refusals are answers, too)."""
        refused = (client, shard, number) in self.refused
        if refused != (code == ErrorCode.NOT_FINITE):
            told = f"number {number} of {client[0]} on shard {shard}"
            raise ViolationError(
                f"a refusal is forgotten: {told} is answered {code}" if refused else f"refused for nothing: {told}"
            )

    def known(self, client: ClientKey, shard: int) -> int:
        return self.must.get(shard, {}).get(client, 0)

    def pulled(self, client: ClientKey, part: PulledPart, values: Values, known: int) -> None:
        """A client has got a shard: at one version, that there was, with all that it knew to be done (I1, I5)."""
        value = self.whole(part.shard, values, f"what {client[0]} pulled")
        if value not in self.known_values.get(part.shard, {0.0}):
            raise ViolationError(f"a pull of what never was: {client[0]} pulled shard {part.shard} as {value}")
        version = self.versions.get((part.shard, part.epoch, part.version))
        if version is not None and version[0][0] != value:
            raise ViolationError(
                f"a pull of another version: {client[0]} pulled shard {part.shard} as {value}, not {version[0][0]}"
            )
        if self.stale_reads or self.acks == "applied":
            return
        expected = min(known, self.known(client, part.shard))
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

    def holds(self, where: str, shard: int, version: tuple[int, int], arrays: Sequence[Values], done: Done) -> None:
        """A copy is at a version: each push it remembers is in it once, no other is, and no copy of it differs."""
        content = tuple(self.whole(shard, array, where) for array in arrays)
        found = self.versions.get((shard, *version))
        if found is not None and found[0] == content and (shard in self._skips or self._goes_on(found[1], done)):
            self._check_sum(where, shard, version, self._total(content), done)
        elif found is not None and found[:2] != (content, done):
            raise ViolationError(
                f"two states of one version: shard {shard} at {version} is {content} {done} at {where}, "
                f"and was {found[0]} {found[1]} at {found[2]}"
            )
        if found is None or self.single:
            self._check_sum(where, shard, version, self._total(content), done)
            self.versions[shard, *version] = (content, done, where)
            self.known_values.setdefault(shard, {0.0}).add(content[0])

    def _goes_on(self, before: Done, done: Done) -> bool:
        """Says whether what was refused may have changed a memory."""
        return self.single and {client for client, _ in before} <= {client for client, _ in done}

    def _total(self, content: Sequence[float]) -> float:
        """Returns what pushes add up to: the values, or Adagrad's sum of squares."""
        return content[-1] if self.squares else content[0]

    def _check_sum(self, where: str, shard: int, version: tuple[int, int], value: float, done: Done) -> None:
        for client, number in done:
            if number >= len(self._sums.get((client, shard), ())):
                raise ViolationError(
                    f"a push that was never sent: shard {shard} at {where}, number {number} of {client[0]}"
                )
        expected = sum(self._sums[client, shard][number] for client, number in done)
        if value == expected or self._explained(shard, expected - value, done):
            return
        told = ", ".join(f"{client[0]} {number}" for client, number in done)
        raise ViolationError(
            f"not the sum of its pushes: shard {shard} at {where}, {version}, is {value}; {told} make {expected}"
        )

    def _explained(self, shard: int, missing: float, done: Done) -> bool:
        """Says whether numbers that were passed over after a rollback are what is missing."""
        numbers = dict(done)
        skips = [skipped for client, _, last, skipped in self._skips.get(shard, []) if numbers.get(client, 0) >= last]
        skips = skips[-SKIPS_MAX:]
        return any(sum(some) == missing for count in range(1, len(skips) + 1) for some in combinations(skips, count))

    def passed_over(self, where: str, shard: int, client: ClientKey, first: int, last: int) -> None:
        """A server goes on after numbers that it does not have, because they were acknowledged and are lost (I4)."""
        if self.acks != "applied" and shard not in self.excused:
            text = f"shard {shard} at {where} goes on after numbers {first} to {last} of {client[0]} without them"
            raise ViolationError(f"{text}, which were acknowledged")
        sums = self._sums[client, shard]
        self._skips.setdefault(shard, []).append((client, first, last, sums[last] - sums[first - 1]))

    def serves(self, where: str, shard: int, done: Done) -> None:
        """A server begins to serve a shard: all that was acknowledged is in it (I4)."""
        if not self.promises:
            return
        numbers = dict(done)
        for client, number in self.must.get(shard, {}).items():
            found = numbers.get(client, 0)
            if found < number:
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
            self._lost_s[shard] = self.world.now_s
            self.must.pop(shard, None)
            self._keep_all_but_window(shard)

    def _keep_all_but_window(self, shard: int) -> None:
        """What was acknowledged before the loss window is on some disk, unless that was full."""
        told = self._told.pop(shard, [])
        if self.window_s is None or not told or self.world.now_s < self._disks_well_s + self.window_s:
            return
        until_s = max(sent_s for sent_s, _, _ in told) - self.window_s
        must = {}
        kept = [one for one in told if self._disks_well_s <= one[0] <= until_s]
        for _, client, number in kept:
            must[client] = max(must.get(client, 0), number)
        if must:
            self.must[shard], self._told[shard] = must, kept

    def final(self, where: str, shard: int, arrays: Sequence[Values], numbers: Done) -> None:
        """All pushes are answered, but for those of the dead: nothing is missing (I5)."""
        value = self._total([self.whole(shard, array, where) for array in arrays])
        done = dict(numbers)
        expected = 0
        for (client, index), sums in self._sums.items():
            if index != shard:
                continue
            number, issued = done.get(client, 0), len(sums) - 1
            may_lack = client in self.dead or (self.clients_rest and (shard in self.excused or self.acks == "applied"))
            least = self.known(client, shard) if may_lack and self.acks != "applied" else 0
            if number < least or (not may_lack and number != issued):
                found = f"remembers {client} up to {number}; {least or issued} are acknowledged"
                raise ViolationError(f"shard {shard} at {where} {found}")
            expected += sums[number]
        if value != expected and not self._explained(shard, expected - value, numbers):
            raise ViolationError(f"shard {shard} at {where} is {value} in the end; its pushes make {expected}")


def done_of(memory: ClientMemory | MemoryRecord) -> Done:
    """Returns up to which number each client's pushes are in the values that a memory belongs to."""
    if isinstance(memory, ClientMemory):
        return tuple(sorted((key, client.done) for key, client in memory.clients.items() if client.done))
    found = (((one.node, one.incarnation), one.sequence) for one in memory.clients if one.sequence)
    return tuple(sorted(found))
