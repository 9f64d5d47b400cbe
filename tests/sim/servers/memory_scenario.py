"""One seed of clients that come and go beside the bounds of what a shard remembers of them.

Three servers keep one shard; their cores are the real ones, their messages come in any order. More clients push
than are remembered; what they sent comes again, however late; some are retired; primaries die. Each push is
applied at most once, and once if it was acknowledged; nobody is forgotten who is among those used last; copies of a
version remember the same; and who is retired is forgotten everywhere with the next push.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random

import msgspec

from adamctl.config.records import RetiredRecord
from adamctl.roles.ps.core.exactly_once import ClientKey, ClientMemory
from adamctl.wire.constants import ErrorCode
from tests.roles.ps.replica_cluster import Cluster
from tests.roles.ps.replica_server import Server
from tests.sim.engine import ViolationError
from tests.sim.servers.cluster import ServerFault

STEPS = 120
CLIENTS_MAX, MARKS_MAX = 5, 4
LIVING_MAX = 3
HORIZON_STEPS = 25
TO_LEARN_S = 15.0


@contextmanager
def small_bounds() -> Iterator[None]:
    """Makes memories so small that seeds reach their ends."""
    defaults = ClientMemory.__init__.__defaults__
    ClientMemory.__init__.__defaults__ = (CLIENTS_MAX, MARKS_MAX)
    try:
        yield
    finally:
        ClientMemory.__init__.__defaults__ = defaults


class MemoryScenario:
    """Everything of one seed."""

    def __init__(self, seed: int, planted: ServerFault | None = None) -> None:
        self.random = Random(seed)
        self.planted = planted
        self.step = self.tokens = self.applied = 0
        self.incarnation = 100
        self.numbers: dict[ClientKey, int] = {}  # -> the last number sent
        self.living: list[ClientKey] = []
        self.died: dict[ClientKey, int] = {}
        self.others_since: dict[ClientKey, set[ClientKey]] = {}
        self.retired = RetiredRecord()

    def run(self) -> None:
        """Raises ViolationError."""
        with small_bounds(), self.planted.planted() if self.planted is not None else nullcontext():
            self.cluster = Cluster()
            for self.step in range(STEPS):
                self._one()

    def _one(self) -> None:
        random = self.random
        chance = random.random()
        if chance < 0.2 and len(self.living) < LIVING_MAX:
            self.incarnation += 1
            self.living.append(("w", self.incarnation))
        elif chance < 0.3 and self.living:
            client = self.living.pop(random.randrange(len(self.living)))
            self.died[client] = self.step
        elif chance < 0.35:
            self._retire()
        elif chance < 0.4:
            self._take_over()
        elif chance < 0.55 and self.numbers:
            self._again(random.choice(sorted(self.numbers)))
        elif self.living:
            self._push(random.sample(self.living, random.randint(1, len(self.living))))
        self._check()

    # --- what happens -------------------------------------------------------------------------------------------------

    def _send(self, client: ClientKey, number: int) -> tuple[Server, object]:
        self.tokens += 1
        primary = self.cluster.primary()
        primary.push(self.tokens, [(0, number, 1.0)], client=client)
        return primary, self.tokens

    def _push(self, clients: list[ClientKey]) -> None:
        """Some push, and a part of what servers say to each other comes late."""
        late = self.random.random() * 0.5
        self.cluster.hold = lambda source, target, message: self.random.random() < late
        sent = []
        for client in clients:
            number = self.numbers[client] = self.numbers.get(client, 0) + 1
            sent.append((client, *self._send(client, number)))
            self.cluster.run() if self.random.random() < 0.5 else None
        self.cluster.run()
        self.cluster.deliver_held()
        for client, primary, token in sent:
            code = primary.code(token)
            used_lately = len(self.others_since.get(client, ())) < CLIENTS_MAX - LIVING_MAX
            if code == ErrorCode.OK:
                self.applied += 1
            elif code == ErrorCode.CLIENT_EVICTED and not used_lately:
                self.living.remove(client)
                self.died[client] = self.step
            else:
                raise ViolationError(f"step {self.step}: {client}, who lives, is answered {code}")
            self.others_since[client] = set()
            for other, since in self.others_since.items():
                if other != client:
                    since.add(client)

    def _again(self, client: ClientKey) -> None:
        """What was sent before comes once more; it may be anybody's, and any number."""
        number = self.random.randint(1, self.numbers[client])
        primary, token = self._send(client, number)
        self.cluster.run()
        if primary.code(token) not in (ErrorCode.OK, ErrorCode.CLIENT_EVICTED):
            raise ViolationError(f"step {self.step}: number {number} of {client} again is {primary.code(token)}")

    def _retire(self) -> None:
        over = [one for one, since in self.died.items() if self.step - since >= HORIZON_STEPS]
        if not over:
            return
        floor = max(incarnation for _, incarnation in over)
        kept = {one[1] for one in (*self.living, *self.died) if one not in over and one[1] <= floor}
        self.retired = RetiredRecord(floor, tuple(sorted(kept)))
        for server in self.cluster.servers.values():  # some hear of it later, or never
            if server.serves() or self.random.random() < 0.5:
                server.core.retired = self.retired

    def _take_over(self) -> None:
        dead = self.cluster.primary().node
        self.cluster.kill(dead)
        self.cluster.configure()
        self.cluster.run()
        self.cluster.start(dead)
        self.cluster.configure()
        self.cluster.run()
        self.cluster.pass_time(TO_LEARN_S)
        for server in self.cluster.servers.values():
            server.attach()

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        primary = self.cluster.primary()
        value = primary.value(0)
        if value != self.applied:
            raise ViolationError(f"step {self.step}: {value} pushes are in it; {self.applied} were acknowledged")
        shard = primary.job.shards[0]
        memory = msgspec.msgpack.encode(shard.memory.record())
        for server in self.cluster.servers.values():
            held = server.held()
            copy = held.shards[0] if held is not None else None
            if copy is None or copy.copy is None or copy.copy.counter != shard.counter:
                continue
            if msgspec.msgpack.encode(copy.memory.record()) != memory:
                raise ViolationError(f"step {self.step}: two memories of version {copy.version} at {server.node}")
        if len(shard.memory.clients) > CLIENTS_MAX + LIVING_MAX:
            raise ViolationError(f"step {self.step}: {len(shard.memory.clients)} clients are remembered")
