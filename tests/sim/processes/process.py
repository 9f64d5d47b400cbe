"""A process on a host: it crashes and starts again, and may be stopped: its clock goes on, its events wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from adamctl.roles.controller.core.instructions import Answer, Refuse
from adamctl.roles.controller.core.service.events import Beacon, CompareAndSet, Event, Read, Register, Watch
from adamctl.roles.lease import Lease
from adamctl.wire.changes import Changes
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigReadReply,
    ConfigWatchReply,
    NodeRegisterReply,
    NodeRegisterRequest,
)
from tests.sim.controllers.clients import Caller
from tests.sim.controllers.controller import SimController
from tests.sim.engine import Clock, World

Action = Callable[[], None]
WATCH_S = 0.5
RESEND_S = 0.05
ATTEMPTS_MAX = 5
BREAKS = 0.2
CONNECTIONS = {"ps": 100_000, "worker": 10_000_000, "coordinator": 20_000_000, "data": 30_000_000}
"""Numbers of connections begin there, by role."""


class SimProcess:
    """One process after another under one name.

    Attributes:
        run: how often it has been started.
        alive, paused: whether one is there, and whether it is stopped.
    """

    def __init__(self, world: World, name: str, clock: Clock) -> None:
        self.world, self.name, self.clock = world, name, clock
        self.run = 0
        self.alive = self.paused = False
        self._waiting: list[Action] = []

    def begin(self) -> RunView:
        """A new process is there."""
        self.run += 1
        self.alive, self.paused = True, False
        self._waiting.clear()
        return RunView(self, self.run)

    def end(self) -> None:
        """It is gone, and everything that waited for it."""
        self.alive = self.paused = False
        self._waiting.clear()

    def pause(self) -> None:
        self.paused = self.alive

    def resume(self) -> None:
        """What has waited happens now, in the order in which it came."""
        if not self.paused:
            return
        self.paused = False
        waiting, self._waiting = self._waiting, []
        for number, action in enumerate(waiting):
            if not self.alive or self.paused:
                self._waiting = waiting[number:] + self._waiting
                return
            action()

    def gate(self, run: int, action: Action) -> None:
        """Does something in the process that was there at a time: now, when it is no longer stopped, or never."""
        if run != self.run or not self.alive:
            return
        if self.paused:
            self._waiting.append(action)
        else:
            action()


class RunView:
    """The world as one process sees it: timers and messages end with it, and wait while it is stopped."""

    def __init__(self, process: SimProcess, run: int) -> None:
        self.process, self.run = process, run
        self.world = process.world
        self.random: Random = process.world.random

    @property
    def now_s(self) -> float:
        return self.world.now_s

    @property
    def current(self) -> bool:
        return self.process.alive and self.process.run == self.run

    def after(self, delay_s: float, action: Action) -> None:
        process, run = self.process, self.run
        self.world.after(delay_s, lambda: process.gate(run, action))

    def send(self, source: str, destination: str, deliver: Action) -> None:
        process, run = self.process, self.run
        if destination == process.name:
            self.world.send(source, destination, lambda: process.gate(run, deliver))
        elif self.current:
            self.world.send(source, destination, deliver)

    def chance(self, probability: float) -> bool:
        return self.world.chance(probability)

    def send_reliably(self, destination: str, deliver: Action, broken: Action, attempt: int = 0) -> None:
        """Sends as a connection does: what is lost is sent again a little later, until the connection breaks.

        It may come twice and in any order all the same: by another connection that was made meanwhile.
        """
        world, source = self.world, self.process.name
        faults, random = world.network, world.random.random
        if not self.current:
            return

        def lost() -> None:
            if attempt >= ATTEMPTS_MAX or random() < BREAKS:
                broken()
            else:
                world.after(
                    RESEND_S * 2**attempt, lambda: self.send_reliably(destination, deliver, broken, attempt + 1)
                )

        def arrive() -> None:
            if (source, destination) in world.cut:
                lost()
            else:
                deliver()

        if (source, destination) in world.cut or random() < faults.loss:
            lost()
            return
        delay_s = faults.delay_s_min + (faults.delay_s_max - faults.delay_s_min) * random()
        if random() < faults.reordering:
            delay_s += random() * faults.late_s_max
        world.after(delay_s, arrive)
        if random() < faults.duplication:
            world.after(delay_s + random() * faults.late_s_max, deliver)


class SessionView(RunView):
    """What one of several things that a process does, one after another, sees of the world, until it is closed."""

    def __init__(self, view: RunView) -> None:
        super().__init__(view.process, view.run)
        self.closed = False

    @property
    def current(self) -> bool:
        return super().current and not self.closed

    def after(self, delay_s: float, action: Action) -> None:
        super().after(delay_s, lambda: self._unless_closed(action))

    def send(self, source: str, destination: str, deliver: Action) -> None:
        to_us = destination == self.process.name
        super().send(source, destination, (lambda: self._unless_closed(deliver)) if to_us else deliver)

    def _unless_closed(self, action: Action) -> None:
        if not self.closed:
            action()


class Member:
    """What a role does with the controllers: registers, sends beacons, follows keys, compares and sets.

    Attributes:
        incarnation: 0 until it is registered.
        from_receipt: planted fault: the lease counts from when the answer came.
        failure_domain: the machine that it stands for.
    """

    def __init__(
        self,
        view: RunView,
        hosts: Mapping[str, SimController],
        lease: Lease,
        *,
        role: str = "ps",
        registered: Callable[[], None],
        renewed: Callable[[float], None],
        lost: Callable[[], None],
    ) -> None:
        """`renewed(until_s)`: until when the lease holds now. `lost`: the name is no longer ours."""
        self.view, self.hosts, self.lease = view, hosts, lease
        self.clock = view.process.clock
        self.name = view.process.name
        self.role = role
        self.incarnation = 0
        self._registered, self._renewed, self._lost = registered, renewed, lost
        self.from_receipt = False
        self.failure_domain = ""
        self.connection = 0
        self._callers: dict[str, Caller] = {}
        self._session = self._sequence = self._beats = 0
        self._session_known = False
        self._known_serial = 0
        self._changes: list[tuple[ConfigChanges, Callable[[ConfigCompareAndSetReply | None], None]]] = []
        self._changing = False

    def caller(self, what: str) -> Caller:
        """Each kind of request has its own connection, so that none waits for another."""
        if what not in self._callers:
            self._callers[what] = Caller(self.view, self.name, self.hosts)  # type: ignore[arg-type]
        return self._callers[what]

    # --- membership -------------------------------------------------------------------------------------------------

    def join(self) -> None:
        process = self.view.process
        self.connection = process.run * 1000 + int(self.name[1:]) + CONNECTIONS[self.role]
        request = NodeRegisterRequest(
            self.name,
            self.role,
            (),
            "h",
            process.run,
            process=process.run + 1,
            stores=True,
            failure_domain=self.failure_domain,
        )

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, NodeRegisterReply):
                self.incarnation = answer.message.incarnation
                self._registered()
                self._beat()
            else:
                self.view.after(0.1, self.join)

        def event(token: int) -> Event:
            return Register(token, self.connection, request)

        self.caller("join").call(event, answered, 5.0)

    def _beat(self) -> None:
        sent_s = self.clock.now()
        self._beats += 1
        number = self._beats
        self.lease.sent(number, sent_s)

        def event(token: int) -> Event:
            return Beacon(token, self.connection, self.name, self.incarnation)

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Refuse):
                self._lost()
                return
            if isinstance(answer, Answer):
                if self.from_receipt:
                    self.lease.sent(number, self.clock.now())
                self._renewed(self.lease.confirmed(number))
            due_s = self.clock.true_delay_s(sent_s + self.lease.lease_s / 4)
            self.view.after(due_s, self._beat)

        self.caller("beat").call(event, answered, self.clock.true_length_s(self.lease.lease_s))

    # --- keys -------------------------------------------------------------------------------------------------------

    def follow(self, prefix: str, take: Callable[[Changes], None]) -> None:
        """Tells of all entries of a prefix first (`reset`), then of every change."""

        def first(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigReadReply):
                revision = answer.message.revision
                take(Changes(revision, answer.entries or (), (), True))
                watch(revision)
            else:
                self.view.after(0.1, lambda: self.follow(prefix, take))

        def watch(revision: int) -> None:
            def event(token: int) -> Event:
                return Watch(token, self.connection, prefix, revision, WATCH_S)

            def answered(answer: Answer | Refuse | None) -> None:
                if not isinstance(answer, Answer):
                    self.view.after(0.05, lambda: watch(revision))
                    return
                reply = answer.message
                assert isinstance(reply, ConfigWatchReply)
                entries = answer.entries or ()
                if reply.reset or entries or reply.deleted:
                    take(Changes(reply.revision, entries, reply.deleted, reply.reset))
                watch(reply.revision)

            self.caller(f"watch {prefix}").call(event, answered, 3.0)

        self.caller(f"watch {prefix}").call(lambda token: Read(token, prefix), first, 3.0)

    def read(self, what: str, prefix: str, take: Callable[[Changes | None], None]) -> None:
        """Reads a prefix anew, linearizably; None: the controllers do not answer."""

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigReadReply):
                take(Changes(answer.message.revision, answer.entries or (), (), True))
            else:
                take(None)

        self.caller(f"read {what}").call(lambda token: Read(token, prefix), answered, 2.0)

    def compare_and_set(self, changes: ConfigChanges, done: Callable[[ConfigCompareAndSetReply | None], None]) -> None:
        """Calls `done` with the answer, or with None: nobody knows whether it was done."""
        self._changes.append((changes, done))
        self._next_change()

    def _next_change(self) -> None:
        if self._changing or not self._changes:
            return
        self._changing = True
        changes, done = self._changes.pop(0)
        if self._sequence and not self._session_known:
            self._begin_session()
        self._sequence += 1
        self._send_change(changes, done, again=True)

    def _begin_session(self) -> None:
        self._session += 1
        self._sequence = 0

    def _send_change(
        self, changes: ConfigChanges, done: Callable[[ConfigCompareAndSetReply | None], None], *, again: bool
    ) -> None:
        session = f"{self.name}.{self.view.run}+{self._session}"
        sequence, serial = self._sequence, self._known_serial
        caller = self.caller("change")

        def finished(reply: ConfigCompareAndSetReply | None) -> None:
            self._changing = False
            done(reply)
            self._next_change()

        def answered(answer: Answer | Refuse | None) -> None:
            if isinstance(answer, Answer) and isinstance(answer.message, ConfigCompareAndSetReply):
                self._session_known = True
                finished(answer.message)
            elif isinstance(answer, Refuse) and answer.code == ErrorCode.CLIENT_EVICTED and caller.made == 1 and again:
                self._known_serial = int(str(answer.details["serial"]))
                self._begin_session()
                self._sequence += 1
                self._send_change(changes, done, again=False)
            else:
                self._session_known = False
                finished(None)

        caller.call(lambda token: CompareAndSet(token, session, sequence, changes, serial), answered, 5.0)
