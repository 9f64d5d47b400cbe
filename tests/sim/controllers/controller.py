"""A controller in the simulator: the real core, a disk that forgets what was not synced, and the shell's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol
from zlib import crc32

from adamctl.roles.controller.core.instructions import (
    Answer,
    Append,
    Instruction,
    Persist,
    Refuse,
    SaveSnapshot,
    SaveVote,
    Send,
)
from adamctl.roles.controller.core.paxos.messages import Ballot, Entry, PaxosSnapshot, Received, Vote
from adamctl.roles.controller.core.service.commands import Part, decode_commands
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.events import Event, Tick
from tests.sim.engine import Clock, World

Respond = Callable[[Answer | Refuse], None]
PERSIST = (SaveVote, Append, SaveSnapshot)


class Watcher(Protocol):
    """Sees what controllers do; `invariants` implements it."""

    def applied(self, host: SimController, entry: Entry, digest: int) -> None: ...

    def sending(self, host: SimController, instruction: Send) -> None: ...

    def stepped(self, host: SimController) -> None: ...


class SimDisk:
    """What is durable. Groups of instructions are atomic, as `LogStore` makes them."""

    def __init__(self) -> None:
        self.vote: Vote | None = None
        self.snapshot: PaxosSnapshot | None = None
        self.entries: list[Entry] = []

    def write(self, instructions: Sequence[Persist], groups_max: int | None = None) -> None:
        """Makes instructions durable, or only the first groups of them: a crash came before the sync returned."""
        for group in _groups(instructions)[:groups_max]:
            for instruction in group:
                match instruction:
                    case SaveVote(vote):
                        self.vote = vote
                    case Append(entry):
                        self.entries.append(entry)
                    case SaveSnapshot(snapshot):
                        self.compact(snapshot, ())

    def compact(self, snapshot: PaxosSnapshot, accepted: Sequence[Entry]) -> None:
        self.snapshot = snapshot
        self.entries = list(accepted)

    def holds(self, slot: int, ballot: Ballot, decided: Entry | None) -> bool:
        """Whether a slot's acceptance under a ballot, or what was decided for it, would survive a crash."""
        if self.snapshot is not None and self.snapshot.slot >= slot:
            return True
        for entry in reversed(self.entries):
            if entry.slot > slot or (entry.slot == slot and entry.ballot >= ballot):
                return True
            if entry.slot == slot and decided is not None and entry.value == decided.value:
                return True
        return False


def _groups(instructions: Sequence[Persist]) -> list[list[Persist]]:
    groups: list[list[Persist]] = []
    for instruction in instructions:
        if groups and type(groups[-1][0]) is type(instruction) and not isinstance(instruction, SaveSnapshot):
            groups[-1].append(instruction)
        else:
            groups.append([instruction])
    return groups


def _parts(instructions: Sequence[Persist]) -> set[Part]:
    entries = [instruction.entry for instruction in instructions if isinstance(instruction, Append)]
    return {command for entry in entries for command in decode_commands(entry.value) if isinstance(command, Part)}


class SimCore(ControllerCore):
    """Tells what it applies, and what its state is then."""

    host: SimController

    def apply(self, entry: Entry) -> None:
        super().apply(entry)
        self.host.applied.append((entry, crc32(self.encode_state())))


class SimController:
    """One host.

    Attributes:
        core: None while the process is down.
        run: how often it has been started.
        crash_probability: at every boundary between persisting and sending.
        crash_at_part: probability that the process dies when it has persisted that a node is lost, and told nobody.
        disk_s_min, disk_s_max: shortest sync, and how much longer the longest takes.
        send_first: planted fault: sends before it has persisted.
        same_identity: planted fault: an empty folder gets the identity of the one that was lost.
    """

    def __init__(
        self,
        world: World,
        name: str,
        peers: Mapping[str, str],
        config: ControllerConfig,
        watcher: Watcher,
        clock: Clock,
        mutate: Callable[[SimCore], None] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.peers = peers
        self.config = config
        self.watcher = watcher
        self.clock = clock
        self.mutate = mutate
        self.disk = SimDisk()
        self.core: SimCore | None = None
        self.run = 0
        self.paused = False
        self.crash_probability = 0.0
        self.crash_at_part = 0.0
        self.disk_s_min = 0.0001
        self.disk_s_max = 0.002
        self.compact_entries = 24
        self.send_first = False
        self.same_identity = False
        self.parts: set[Part] = set()  # that somebody had on disk; all hosts of a scenario have the same set
        self.hosts: dict[str, SimController] = {}
        self.on_crash: Callable[[SimController], None] = lambda _: None
        self.applied: list[tuple[Entry, int]] = []  # in memory; a member that is alone decides when it is on disk
        self._identity = 0
        self._queue: list[Event] = []
        self._busy = False
        self._timer_s = float("inf")
        self._responds: dict[int, Respond] = {}
        self._token = 0

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self.core is not None:
            return
        self.run += 1
        if not (self.same_identity and self._identity):
            self._identity = self.world.random.getrandbits(62) | 1
        self.world.names[str(self._identity)] = f"{self.name}{self.run}"
        core = SimCore(
            self.config, name=self.name, peers=self.peers, identity=self._identity, chance=self.world.random.random
        )
        core.host = self
        self.core = core
        self._busy = False
        self.applied.clear()
        self._timer_s = float("inf")
        now = self.clock.now()
        found = self.disk.vote.identity if self.disk.vote is not None else "an empty folder"
        self.world.note(self.name, "starts", "run", self.run, "with", found)
        first = core.recover(self.disk.vote, self.disk.snapshot, list(self.disk.entries), now)
        if self.mutate is not None:
            self.mutate(core)
        self._persist(first)

    def crash(self) -> None:
        """The process is gone, and with it all that was not synced."""
        if self.core is None:
            return
        self.world.note(self.name, "CRASHES")
        self.core = None
        self._queue.clear()
        self._responds.clear()
        self.paused = False
        self.on_crash(self)

    def wipe(self) -> None:
        """The folder is lost."""
        self.crash()
        self.world.note(self.name, "LOSES DISK")
        self.disk = SimDisk()

    def pause(self) -> None:
        self.world.note(self.name, "paused")
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.world.note(self.name, "resumes")
            self.paused = False
            self._work()

    # --- events -----------------------------------------------------------------------------------------------------

    def request(self, make: Callable[[int], Event], respond: Respond) -> None:
        """Takes a client's request: `make` gives the event for a token."""
        if self.core is not None:
            self._token += 1
            self._responds[self._token] = respond
            self.take(make(self._token))

    def take(self, event: Event) -> None:
        if self.core is not None:
            self._queue.append(event)
            self._work()

    def _work(self) -> None:
        core = self.core
        if self._busy or self.paused or core is None or not self._queue:
            return
        events, self._queue = self._queue, []
        now = self.clock.now()
        instructions: list[Instruction] = []
        told = self.world.keep_trace
        for event in events:
            if told and isinstance(event, Received):
                self.world.note(self.name, "receives", event.message, "from", event.address)
            instructions += core.step(event, now)
        self.watcher.stepped(self)
        self._persist(instructions)

    def _persist(self, instructions: list[Instruction]) -> None:
        batch = [one for one in instructions if isinstance(one, PERSIST)]
        if not batch:
            self._carry_out(instructions)
            return
        self._busy = True
        run, random = self.run, self.world.random
        if self.send_first:
            self._send_all(instructions)
            if self.core is None:
                return
        if self.world.chance(self.crash_probability):
            groups = random.randint(0, len(_groups(batch)))

            def tear() -> None:
                if self.run == run and self.core is not None:
                    self.disk.write(batch, groups)
                    self.crash()

            self.world.after(random.random() * self.disk_s_max, tear)
            return

        def synced() -> None:
            if self.run != run or self.core is None:
                return
            if self.paused:
                self.world.after(0.05, synced)
                return
            self.disk.write(batch)
            self._busy = False
            if self.crash_at_part and self._dies_at(_parts(batch)):
                self.crash()
                return
            self._carry_out([] if self.send_first else instructions)

        self.world.after(self.disk_s_min + random.random() * self.disk_s_max, synced)

    def _dies_at(self, parts: set[Part]) -> bool:
        """Only the first to have it on disk dies of it, lest nobody ever completes it."""
        new = parts - self.parts
        self.parts |= new
        return bool(new) and self.world.chance(self.crash_at_part)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        if self.applied:
            for entry, digest in self.applied:
                self.watcher.applied(self, entry, digest)
            self.applied.clear()
        if instructions:
            self._send_all(instructions)
        if self.core is None:
            return
        if len(self.disk.entries) > self.compact_entries:
            self.disk.compact(*self.core.snapshot())
        if self._queue:
            self._work()
        else:
            self._set_timer()

    def _send_all(self, instructions: list[Instruction]) -> None:
        crash_at = -1
        if self.crash_probability and instructions and self.world.chance(self.crash_probability):
            crash_at = self.world.random.randrange(len(instructions))
        for number, instruction in enumerate(instructions):
            if number == crash_at:
                self.crash()
                return
            if isinstance(instruction, Send):
                self._send(instruction)
            elif isinstance(instruction, Answer | Refuse):
                respond = self._responds.pop(instruction.token, None)
                if respond is not None:
                    respond(instruction)

    def _send(self, instruction: Send) -> None:
        assert self.core is not None
        self.watcher.sending(self, instruction)
        host = self.hosts.get(instruction.address)
        if host is not None:
            vote = self.core.paxos.acceptor.vote
            told = instruction.message
            event = Received(vote.cluster, vote.identity, self.name, instruction.destination, told, node=self.name)
            self.world.send(self.name, host.name, partial(host.take, event))

    # --- time -------------------------------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        assert self.core is not None
        wish_s = min(self.core.next_deadline_s, self.clock.now() + self.config.lost_after_s / 4)
        due_s = self.world.now_s + self.clock.true_delay_s(wish_s)
        if due_s <= self.world.now_s and self.clock.now() < wish_s:
            due_s = self.world.now_s + 1e-6  # by less than a clock's last digit too early: it would be so for ever
        if due_s < self._timer_s - 1e-9 or self._timer_s < self.world.now_s:
            self._timer_s = due_s
            run = self.run

            def fire() -> None:
                if self.run == run and self._timer_s == due_s:
                    self._timer_s = float("inf")
                    self.take(Tick())

            self.world.after(due_s - self.world.now_s, fire)
