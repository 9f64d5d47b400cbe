"""Messages of a member that says anything: no controller ends of it, and each one starts again from what it has kept.

A member that lies can keep the others from agreeing; that it must not is what certificates are for. It cannot end them,
nor have them keep what they cannot read.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any, get_args

import msgspec
import pytest

from adamctl.config.records import BucketRecord, DrainRecord, JobRecord, NodeRecord, encode
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.instructions import Append, SaveSnapshot, SaveVote, Send
from adamctl.roles.controller.core.paxos.messages import (
    Entry,
    PaxosSnapshot,
    PeerMessage,
    Received,
    SnapshotPart,
    Vote,
    decode_peer,
)
from adamctl.roles.controller.core.paxos.validate import ROUND_LEAP_MAX
from adamctl.roles.controller.core.service.controller_core import ControllerCore
from adamctl.roles.controller.core.service.events import CompareAndSet, Event, Register, RestoreBackup, Tick
from adamctl.roles.controller.core.service.state import snapshot_problem
from adamctl.wire.messages import ConfigChanges, NodeRegisterRequest
from adamctl.wire.unreadable import UNREADABLE
from tests.roles.controller.core.paxos.test_paxos_core import CONFIG, IDENTITY, PEERS, Three
from tests.wire.any_message import EDGES, any_message, any_value, mutated

QUICK, SLOW = 3_000, 100_000
RESTART_EVERY = 500
RECORDS = (
    ("/jobs/j", encode(JobRecord("running", "h", RuleConfig("sgd"), 1))),
    ("/jobs/j/buckets/000000", encode(BucketRecord(1, "ps-0", ("ps-0",)))),
    ("/drains/ps-0", encode(DrainRecord(1, 1.0))),
    ("/nodes/ps-0", encode(NodeRecord("ps-0", "ps", 1, (), "h", 1))),
    ("/retired", b"\x92\x00\x90"),
    ("/else", b""),
)


class Disk:
    """What one member has persisted."""

    def __init__(self) -> None:
        self.vote: Vote | None = None
        self.snapshot: PaxosSnapshot | None = None
        self.entries: list[Entry] = []

    def keep(self, instruction: object) -> None:
        match instruction:
            case SaveVote(vote):
                self.vote = vote
            case Append(entry):
                self.entries.append(entry)
            case SaveSnapshot(snapshot):
                self.snapshot, self.entries = snapshot, []


class Liars(Three):
    """Three members, each with a disk, and what they have said."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disks = {name: Disk() for name in PEERS}
        self.said: deque[Send] = deque(maxlen=200)
        super().__init__()

    def carry_out(self, name: str, instructions: list[Any]) -> None:
        for one in instructions:
            self.disks[name].keep(one)
            if isinstance(one, Send):
                self.said.append(one)
        super().carry_out(name, instructions)

    def lie(self, to: str) -> Event | None:
        """Returns a message to a member, mostly of another, that nobody has quite said; None if it cannot be."""
        random = self.random
        try:
            if random.random() < 0.1:
                encoded = msgspec.msgpack.encode(self._state(to))
            elif random.random() < 0.5:
                message = any_message(random.choice(get_args(PeerMessage)), random)
                encoded = msgspec.msgpack.encode(message)
            else:
                plain = msgspec.to_builtins(random.choice(self.said).message, builtin_types=(bytes,))
                encoded = msgspec.msgpack.encode(self._changed(plain))
            if random.random() < 0.2:
                encoded = mutated(encoded, random)
            told = decode_peer(encoded)
        except (OverflowError, *UNREADABLE):
            return None
        vote = self.cores[to].paxos.acceptor.vote
        name = random.choice([one for one in PEERS if one != to])
        source, node, cluster, destination = IDENTITY[name], name, vote.cluster, vote.identity
        if random.random() < 0.1:
            source, node = random.choice((9, *EDGES)), random.choice(("", "x", *PEERS))
        if random.random() < 0.05:
            cluster, destination = random.choice(EDGES), random.choice((0, 1, *EDGES))
        return Received(cluster, source, name, destination, told, node=node)

    def _state(self, to: str) -> SnapshotPart:
        """Returns what a member would take over that lags: a state, nearly."""
        acceptor = self.cores[to].paxos.acceptor
        ahead = msgspec.structs.replace(acceptor.snapshot(), slot=acceptor.chosen_to + self.random.choice((1, 5)))
        data = msgspec.msgpack.encode(self._changed(msgspec.to_builtins(ahead, builtin_types=(bytes,))))
        return SnapshotPart(ahead.slot, 0, len(data), data)

    def _changed(self, plain: Any) -> Any:
        """Returns a message's fields, one of which, or what it is made of, is another."""
        random = self.random
        if isinstance(plain, list | tuple) and plain:
            place = random.randrange(len(plain))
            return [self._changed(one) if number == place else one for number, one in enumerate(plain)]
        if isinstance(plain, dict) and plain:
            place = random.choice(list(plain))
            return {key: self._changed(value) if key == place else value for key, value in plain.items()}
        if isinstance(plain, bytes) and plain and random.random() < 0.7:  # commands, or a state
            try:
                return msgspec.msgpack.encode(self._changed(msgspec.msgpack.decode(plain)))
            except UNREADABLE:
                return mutated(plain, random)
        if isinstance(plain, int):
            near = (1, -1, ROUND_LEAP_MAX, -ROUND_LEAP_MAX)
            return random.choice((plain + random.choice(near), random.choice(EDGES), plain))
        return random.choice((any_value(random), b"\xc1", "\x1b", None))

    def ask(self) -> Event:
        """A request of somebody who is no controller; what is refused changes nothing."""
        random = self.random
        key, value = random.choice(RECORDS)
        value = value if random.random() < 0.3 else mutated(value, random)
        match random.randrange(3):
            case 0:
                session, changes = f"s{random.randrange(99)}", ConfigChanges({}, {key: value})
                return CompareAndSet(1, session, random.choice((1, *EDGES)), changes, random.choice(EDGES))
            case 1:
                return Register(2, 1, any_message(NodeRegisterRequest, random))
        return RestoreBackup(3, mutated(value, random))

    def restart(self, name: str) -> None:
        """As after kill -9: from the disk alone, to the same vote."""
        disk, before = self.disks[name], self.cores[name].paxos.acceptor
        core = ControllerCore(CONFIG, name=name, peers=PEERS, identity=before.vote.identity, chance=lambda: 0.5)
        self.cores[name] = core
        self.carry_out(name, core.recover(disk.vote, disk.snapshot, list(disk.entries), self.now))
        assert core.paxos.acceptor.vote.promised >= before.vote.promised
        assert core.paxos.acceptor.chosen_to >= before.chosen_to - 1, "the last one may not be known to be decided"


def fuzz(seed: int, messages: int) -> int:
    """Returns how many messages were taken."""
    world = Liars(seed)
    taken = 0
    for number in range(messages):
        name = world.random.choice("abc")
        event = world.ask() if world.random.random() < 0.3 else world.lie(name)
        if event is not None:
            taken += 1
            world.step(name, event)
        if number % 10 == 0:
            world.now += 0.05
            world.step(name, Tick())
        if number % RESTART_EVERY == 0:
            world.restart(name)
            world.deliver()
        if len(world.out) > 5_000:
            world.out.clear()
        for core in world.cores.values() if number % 100 == 0 else ():
            assert snapshot_problem(core.state.snapshot()) == ""
    return taken


@pytest.mark.parametrize("seed", [1, 2])
def test_what_a_controller_says_ends_no_other(seed: int) -> None:
    assert fuzz(seed, QUICK) > QUICK // 3


@pytest.mark.slow
def test_what_a_controller_says_a_hundred_thousand_times_ends_no_other() -> None:
    assert sum(fuzz(seed, SLOW // 10) for seed in range(10, 20)) > SLOW // 3
