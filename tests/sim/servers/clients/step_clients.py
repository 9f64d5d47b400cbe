"""Replicas that go in step: each pushes its parts of a step and begins the next when all are applied.

They do what `roles/worker/lockstep.py` does; who makes which part, and that another one makes what a dead one's was,
is decided as by a coordinator that knows everything (`tests/roles/coordinator/core/test_rounds.py` has the real one).
"""

from __future__ import annotations

from random import Random
from typing import ClassVar

import msgspec

from adamctl.roles.ps.core.exactly_once import ClientKey
from adamctl.wire.messages import PushRequest
from tests.sim.servers.clients.first_clients import KnowingClient
from tests.sim.servers.ledger import Ledger
from tests.sim.servers.ledger_parts import STEPS

PART_MAX = 5
NOT_FINITE = 0.02
"""How often a part of a step is no number on some shard: then nothing of the step is applied there."""
GIVEN_UP_EARLY = 0.05
"""How often somebody makes a part of one who lives, and makes it as well."""
STUCK_S = 1.0
"""How long an answer may take before a replica asks whether the step is complete."""
CHANNELS_MAX = 4


class Rounds:
    """Which steps there are, and who makes the parts of the next.

    Attributes:
        begun: the last step of which anybody has made a part.
        settled: the last one that somebody knows to be complete.
    """

    def __init__(self, ledger: Ledger, shards: int, random: Random) -> None:
        self._ledger, self._shards, self._random = ledger, shards, random
        self.parts = random.choice((2, 2, 3))
        self.begun = self.settled = 0
        self._makers: dict[tuple[int, int], set[ClientKey]] = {}
        self._values: dict[tuple[int, int], list[int]] = {}  # (step, shard) -> of each part; 0: no number

    def places(self, step: int, client: ClientKey, living: list[ClientKey]) -> list[int]:
        """Returns which parts of the next step a client is to make; those of the dead are given to others."""
        for place in range(self.parts):
            makers = self._makers.setdefault((step, place), set())
            if not makers & set(living):
                makers.add(self._random.choice(living))
            elif len(makers) == 1 and self._random.random() < GIVEN_UP_EARLY / 10:
                makers.add(client)
        return [place for place in range(self.parts) if client in self._makers[step, place]]

    def begin(self, step: int) -> None:
        """Somebody makes a part of a step."""
        if step <= self.begun:
            return
        self.begun = step
        for shard in range(self._shards):
            values = [
                0 if self._random.random() < NOT_FINITE else self._random.randint(1, PART_MAX)
                for _ in range(self.parts)
            ]
            self._values[step, shard] = values
            self._ledger.issued(STEPS, shard, step, 1, sum(values) ** 2 if all(values) else 0)

    def value(self, step: int, shard: int, place: int) -> int:
        return self._values[step, shard][place]

    def is_refused(self, step: int, shard: int) -> bool:
        return not all(self._values[step, shard])


class StepClient(KnowingClient):
    """Attributes:
    rounds: what all replicas of the job have in common.
    step: the last one that this one knows to be complete.
    """

    rounds: Rounds
    living: ClassVar[dict[ClientKey, StepClient]]
    step = -1

    def begin(self) -> None:
        if self.step < 0:
            self.step = self.rounds.settled
            self._made: dict[int, tuple[int, int]] = {}  # push -> step, place
            self._place_of: dict[tuple[int, int], tuple[int, int]] = {}  # (shard, number) -> step, place
            self._waits_since_s = self.world.now_s
        super().begin()

    def wants(self) -> bool:
        return not self.gave_up

    @property
    def _living(self) -> list[ClientKey]:
        keys = [key for key, client in self.living.items() if key not in self.ledger.dead and client.step >= 0]
        return keys or [self.key]

    def _push(self) -> None:
        """Goes on as far as it can."""
        self.living[self.key] = self
        rounds, step = self.rounds, self.step + 1
        mine = {place: push for push, (made, place) in self._made.items() if made == step}
        answered = [push for push in mine.values() if push not in self.open]
        late = self.world.now_s > self._waits_since_s + STUCK_S
        if answered and (late or len(answered) == len(mine)):
            self._settle_step(step)  # one answer says that all parts were there, whatever has been lost since
        elif rounds.settled >= step and (not mine or late):
            self._settle_step(step)  # it had no part in it, or has waited too long
        elif step <= rounds.settled + 1 and len(mine) < CHANNELS_MAX:
            for place in rounds.places(step, self.key, self._living):
                if place not in mine and (self.goes_on or step <= rounds.begun):
                    self._make(step, place)

    def _settle_step(self, step: int) -> None:
        self.step, self.rounds.settled = step, max(step, self.rounds.settled)
        self._waits_since_s = self.world.now_s
        self._made = {push: made for push, made in self._made.items() if push in self.open}

    def _make(self, step: int, place: int) -> None:
        """Pushes a part of a step."""
        self.rounds.begin(step)
        self._pushes += 1
        self._made[self._pushes] = step, place
        numbers: dict[int, int] = {}
        for shard in range(len(self.layout.shards)):
            self.issued[shard] += 1
            numbers[shard] = number = self.issued[shard]
            self._place_of[shard, number] = step, place
            if self.rounds.is_refused(step, shard):
                self.ledger.undecided.add((self.key, shard, number))
            self.ledger.issued(self.key, shard, number, self.rounds.value(step, shard, place), 0)
        self.open[self._pushes] = set(numbers)
        self.numbers[self._pushes] = numbers
        self._send_all(self._pushes, numbers)

    def channel(self, push: int) -> int:
        """Parts of one step must not wait for each other."""
        return self._made[push][1] if push in self._made else CHANNELS_MAX

    def _push_request(self, numbers: dict[int, int], epochs: dict[int, int]) -> tuple[PushRequest, memoryview]:
        request, body = super()._push_request(numbers, epochs)
        step, place = self._place_of[next(iter(numbers.items()))]
        return msgspec.structs.replace(request, step=step, step_part=place, step_parts=self.rounds.parts), body

    def _answered(self, push: int, shard: int) -> None:
        step, _ = self._place_of[shard, self.numbers[push][shard]]
        self.ledger.acknowledged(STEPS, shard, step, self.lanes.reply_sent_s)
        super()._answered(push, shard)


def replicas_of(rounds_: Rounds) -> type[StepClient]:
    """Returns what clients of one job are."""

    class Replica(StepClient):
        rounds = rounds_
        living: ClassVar[dict[ClientKey, StepClient]] = {}

    return Replica
