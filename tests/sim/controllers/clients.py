"""Clients of the controllers: how they find the leader and try again, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import CompareAndSet, Event, Read
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges, ConfigCompareAndSetReply, ConfigReadReply
from tests.sim.controllers.controller import SimController
from tests.sim.controllers.history import History, Operation
from tests.sim.engine import World

ATTEMPT_S = 0.6
Done = Callable[[Answer | Refuse | None], None]


class Caller:
    """Sends a request until it is answered, as `ControllerClient` does: in turn, following redirects.

    Attributes:
        made: attempts of the call in progress; only a first attempt that is refused was certainly not carried out.
    """

    def __init__(self, world: World, name: str, hosts: Mapping[str, SimController]) -> None:
        self.world = world
        self.name = name
        self.hosts = hosts
        self.made = 0
        self._target = world.random.choice(list(hosts))
        self._call = 0

    def call(self, event: Callable[[int], Event], done: Done, deadline_s: float) -> None:
        """Calls `done` once: with the answer, or with None after the deadline."""
        self._call += 1
        self.made = 0
        self._attempt(self._call, event, done, self.world.now_s + deadline_s)

    def _attempt(self, call: int, event: Callable[[int], Event], done: Done, until_s: float) -> None:
        if call != self._call:
            return
        if self.world.now_s >= until_s:
            self._call += 1
            done(None)
            return
        self.made += 1
        attempt = self.made
        target = self.hosts[self._target]

        def again(pause_s: float) -> None:
            self.world.after(pause_s, lambda: self._attempt(call, event, done, until_s))

        def answered(answer: Answer | Refuse) -> None:
            if call != self._call:
                return
            if isinstance(answer, Refuse) and answer.code in (ErrorCode.NOT_LEADER, ErrorCode.SHUTTING_DOWN):
                if attempt == self.made:
                    leader = str(answer.details.get("leader", ""))
                    self._target = leader if leader in self.hosts else self._next()
                    again(0.01 if leader else 0.1)
                return
            self._call += 1
            done(answer)

        def respond(answer: Answer | Refuse) -> None:
            self.world.send(target.name, self.name, lambda: answered(answer))

        def silent() -> None:
            if call == self._call and attempt == self.made:
                self._target = self._next()
                again(0.0)

        self.world.send(self.name, target.name, lambda: target.request(event, respond))
        self.world.after(min(ATTEMPT_S, max(until_s - self.world.now_s, 0.001)), silent)

    def _next(self) -> str:
        names = list(self.hosts)
        return names[(names.index(self._target) + 1) % len(names)]


class SimClient:
    """Reads, and compares and sets, one after another, on a few keys; every value it writes is unique.

    Attributes:
        reads: share of reads among its operations.
        pause_s_max: between an answer and the next request.
        completed: operations with a known outcome.
    """

    def __init__(self, world: World, name: str, hosts: Mapping[str, SimController], history: History) -> None:
        self.world = world
        self.name = name
        self.caller = Caller(world, name, hosts)
        self.history = history
        self.reads = 0.3
        self.pause_s_max = 0.1
        self.completed = 0
        self._known: dict[str, int] = {}
        self._session = ""
        self._sessions = 0
        self._session_known = False
        self._sequence = 0
        self._known_serial = 0
        self._number = 0
        self._pause = 0
        self._pausing = -1

    def begin(self) -> None:
        if self.world.chance(self.reads):
            self._read()
        else:
            self._change()

    def _later(self) -> None:
        self._pause = pause = self._pause + 1

        def go_on() -> None:
            if pause == self._pause:
                self._pause += 1
                self.begin()

        self._pausing = pause
        self.world.after(self.world.random.random() * self.pause_s_max, go_on)

    def wake(self, pause_s_max: float) -> None:
        """Ends a pause that has begun; later ones are at most so long."""
        self.pause_s_max = pause_s_max
        if self._pausing == self._pause:
            self._later()

    def _read(self) -> None:
        operation = self.history.invoke(self.name, "read")

        def done(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigReadReply):
                entries = {entry.key: (entry.value, entry.revision) for entry in answer.entries or ()}
                self._known = {key: revision for key, (_, revision) in entries.items()}
                self.history.read(operation, answer.message.revision, entries)
                self.completed += 1
            self._later()

        self.caller.call(lambda token: Read(token, "/t/"), done, 4.0)

    def _change(self) -> None:
        random = self.world.random
        self._number += 1
        value = f"{self.name}.{self._number}".encode()
        keys = random.sample(["/t/a", "/t/b", "/t/c"], random.randint(1, 2))
        conditions = {key: self._known.get(key, 0) for key in keys if random.random() < 0.7}
        changes = ConfigChanges(conditions, dict.fromkeys(keys, value))
        self._next_request()
        operation = self.history.invoke(self.name, "change", changes)
        self._send(changes, operation, again=True)

    def _next_request(self) -> None:
        if not self._session_known or self.world.chance(0.15):
            self._sessions += 1
            self._session = f"{self.name}+{self._sessions}"
            self._session_known = False
            self._sequence = 0
        self._sequence += 1

    def _send(self, changes: ConfigChanges, operation: Operation, *, again: bool) -> None:
        session, sequence, serial = self._session, self._sequence, self._known_serial

        def done(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigCompareAndSetReply):
                self._session_known = True
                reply = answer.message
                self.history.changed(operation, reply.revision, reply.conflicts)
                self.completed += 1
                if not reply.conflicts:
                    self._known |= dict.fromkeys(changes.puts, reply.revision)
            elif isinstance(answer, Refuse) and answer.code == ErrorCode.CLIENT_EVICTED and self.caller.made == 1:
                self._session_known = False
                self._known_serial = int(str(answer.details["serial"]))
                if again:
                    self._next_request()
                    self._send(changes, operation, again=False)
                    return
            self._later()

        self.caller.call(lambda token: CompareAndSet(token, session, sequence, changes, serial), done, 4.0)
