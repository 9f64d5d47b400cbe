"""The front of a run: starts roles, follows the coordinator, forwards interrupts and ends everything.

Three activities run concurrently: one watches processes, one follows the coordinator's progress, one waits for a
signal. The first one to finish decides how the run ends; then every role is ended in any case.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec import structs

from adamctl.errors import AdamctlError, RemoteError, RunFailedError, UnreachableError
from adamctl.launch.deaths import Deaths
from adamctl.launch.failure import message_of
from adamctl.launch.roles import POLL_S, STOP_GRACE_S, Roles, ask_to_leave, nearest
from adamctl.launch.supervision import Fail, Note, Restart, Stop, Supervision
from adamctl.launch.terminal import change_nothing, ending_signals, leave, terminals
from adamctl.launch.troubles import Troubles
from adamctl.launch.waits import Waits
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import Reporter
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Transport
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.coordinator.core.progress import RunProgress

FOLLOW_INTERVAL_S = 0.25
START_DEADLINE_S = 180.0
"""The first start on a machine compiles kernels."""
STOP_DEADLINE_S = 20.0
FAILED_GRACE_S = 2.0
SETTLE_S = 0.5
"""Seconds that a failure which may follow from another one waits for that one to be found."""
CONNECT_DEADLINE_S = 10.0
SILENT_S = 60.0
"""Seconds for which a coordinator that runs may be silent, as while the disk that it writes to is."""
TIME_MARGIN_S = 60.0
"""Seconds before its time is over in which a run writes its last checkpoint; at most half of its time."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `progress` is the last one seen; `signal` is the one that ended it, or 0."""

    progress: RunProgress | None
    exit_code: int
    message: str = ""
    signal: int = 0


@dataclass(frozen=True)
class _Ending:
    """What ended the run: a role's failure (`node`, `reason`), a signal, or success.

    `message` is for a failure that is not a role's.
    """

    exit_code: int = 0
    node: str = ""
    reason: str = ""
    message: str = ""


class Front:
    """One run. `run` is called once, from the main thread's event loop."""

    def __init__(
        self,
        roles: Roles,
        supervision: Supervision,
        coordinator: str,
        transport: Transport,
        reporter: Reporter,
        token: str = "",
        read: Callable[[Mapping[str, int]], Mapping[str, ProcessReading]] = lambda pids: {},
        on_serving: Callable[[str, Sequence[str]], None] = lambda node, addresses: None,
        on_controllers: Callable[[tuple[str, ...]], None] = lambda addresses: None,
        controllers: Sequence[str] = (),
        time_s: float = 0.0,
    ) -> None:
        """`coordinator` is its node; `read` gives readings of processes; `on_serving` receives roles' addresses,
        `on_controllers` those of all controllers of the run, whenever they are others.

        `controllers` are those of an existing cluster, without which no role starts. `time_s`: how long the run may
        take, from when its first role serves, before it is stopped with a checkpoint; 0: as long as it needs.
        """
        self._roles, self._supervision, self._coordinator = roles, supervision, coordinator
        self._transport, self._reporter, self._read = transport, reporter, read
        self._hello = make_hello("front", f"front-{coordinator}", 0, token)
        self._on_serving, self._on_controllers = on_serving, on_controllers
        self._controllers, self._time_s = controllers, time_s
        self._begun = asyncio.Event()
        self._serving: asyncio.Future[tuple[str, ...]] | None = None
        self._client: CoordinatorClient | None = None
        self._heard_s = 0.0  # when the coordinator has answered last, or said that it serves
        self._progress: RunProgress | None = None
        self._messages: tuple[str, ...] = ()
        self._controllers_at: dict[str, tuple[str, ...]] = {}  # also of those that wait to be one, or were one
        self._known_at: tuple[str, ...] = ()
        self._deaths = Deaths(transport, self._hello)
        if controllers:
            self._deaths.controllers_at(controllers)
        self._troubles = Troubles(transport, lambda: self._hello)
        self.stop_deadline_s = STOP_DEADLINE_S
        """Seconds that the last checkpoint may take after a signal."""
        self._signals: list[int] = []
        self._terminals = terminals()
        self._interrupted = asyncio.Event()
        self._hosts_go: asyncio.Future[str] | None = None

    async def run(self) -> Outcome:
        """Runs to the end and leaves no process behind.

        From then on SIGTERM and SIGHUP change nothing: what else the run has made is still to be removed. Its caller
        gives the handlers back (`handlers_given_back`).

        Raises:
            RunFailedError: a process could not be started.
        """
        loop = asyncio.get_running_loop()
        self._serving, self._hosts_go = loop.create_future(), loop.create_future()
        taken = ending_signals()
        for number in taken:
            loop.add_signal_handler(number, self._on_signal, number)
        tasks: list[asyncio.Task[_Ending]] = []
        looking: asyncio.Task[None] | None = None
        grace_s, failed = FAILED_GRACE_S, True
        try:
            await self._roles.begin()
            early = map(self._stop_early, (self._time_is_over(), self._hosts_go))
            tasks = [asyncio.ensure_future(one) for one in (self._watch(), self._follow(), self._interrupt(), *early)]
            looking = asyncio.ensure_future(self._troubles.follow())
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            ending = await self._first_cause(self._first(tasks))
            signals = self._signals if ending.exit_code else tuple(self._signals)  # later ones undo no success
            grace_s = FAILED_GRACE_S if ending.exit_code else STOP_GRACE_S
            stopped = self._progress is not None and self._progress.state == "stopped"
            failed = bool(ending.exit_code) and not self._signals and not stopped
            if ending.node:
                await self._roles.ask_for_words(ending.node)
        finally:
            self._supervision.end()
            others = [*tasks, *(() if looking is None else (looking,))]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._deaths.close()
            await self._end_roles(grace_s, failed)
            for number in taken:
                loop.remove_signal_handler(number)
                if number != signal.SIGINT:
                    signal.signal(number, change_nothing)
            if signal.SIGHUP in self._signals:  # the shell may also send one
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return self._outcome(ending, signals)

    def _first(self, tasks: list[asyncio.Task[_Ending]]) -> _Ending:
        """Returns the ending of the first activity to finish; a failure after a signal counts as caused by it."""
        try:
            return next(task for task in tasks if task.done()).result()
        except AdamctlError:
            if self._signals:
                return _Ending(128 + self._signals[0])
            raise

    async def _first_cause(self, ending: _Ending) -> _Ending:
        """Returns the ending that caused this one, if any; waits a moment for it to be found."""
        if not ending.node:
            return ending
        until_s = time.monotonic() + (SETTLE_S if self._supervision.may_be_a_consequence(ending.node) else 0.0)
        while not self._signals:
            self._roles.newly_ended()
            cause = self._supervision.earlier_cause(ending.node, self._roles.failures())
            if cause is not None:
                return _Ending(cause.exit_code, cause.node, cause.reason)
            if time.monotonic() >= until_s:
                break
            await asyncio.sleep(POLL_S)
        return ending

    def _outcome(self, ending: _Ending, signals: Sequence[int]) -> Outcome:
        """Describes the ending, once every role has written the end of its log."""
        if signals:
            return Outcome(self._progress, 128 + signals[0], "", signals[0])
        return Outcome(self._progress, ending.exit_code, self._cause(ending) if ending.node else ending.message)

    def _cause(self, ending: _Ending) -> str:
        words, end = self._roles.last_words(ending.node), self._roles.ends.get(ending.node)
        return message_of(self._roles.role(ending.node), ending.node, ending.reason, ending.exit_code, words, end)

    # --- signals ----------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        """A run that is ending is ended at once by Ctrl-C alone: terminals and queues may send their signals twice."""
        if number == signal.SIGHUP:
            leave(self._terminals)
        if self._signals and number != signal.SIGINT:
            return
        self._signals.append(number)
        self._interrupted.set()
        if len(self._signals) > 1:
            self._supervision.end()
            self._roles.kill()

    async def _interrupt(self) -> _Ending:
        """Waits for a signal, then for the coordinator's last checkpoint."""
        await self._interrupted.wait()
        self._supervision.end()
        name = signal.Signals(self._signals[0]).name
        if self._client is not None and (self._progress is None or not self._progress.final):
            self._reporter.note(f"{name}: stopping with a checkpoint; another Ctrl-C ends it at once")
            with suppress(AdamctlError, asyncio.TimeoutError):
                await asyncio.wait_for(self._stop_run(name), self.stop_deadline_s)
        elif self._progress is None:
            self._reporter.note(f"{name}: the run is stopped before it began, so there is no checkpoint")
        return _Ending(128 + self._signals[0])

    async def _time_is_over(self) -> str:
        """Waits until the time of the hosts is nearly over.

        The time in which an engine's queue has kept it waiting for hosts is not of it.
        """
        await (self._begun if self._time_s else asyncio.Event()).wait()
        await asyncio.sleep(max(self._time_s - TIME_MARGIN_S, self._time_s / 2))
        return f"its {self._time_s:g} s are over"

    async def _stop_early(self, ready: Awaitable[str]) -> _Ending:
        """Once it is told why, stops the run with a checkpoint, which `_follow` sees."""
        why = await ready
        if self._client is None:
            return _Ending(1, message=f"the run was stopped before it began: {why}")
        await self._tell_to_stop(f"{why}; go on with --resume")
        never: asyncio.Future[_Ending] = asyncio.get_running_loop().create_future()
        return await never

    async def _tell_to_stop(self, why: str) -> None:
        """Tells the coordinator, also one that is being started again; not once a second signal has ended all."""
        self._roles.saving()
        while self._client is not None and len(self._signals) < 2:
            try:
                with suppress(RemoteError):  # it has just ended
                    await self._client.stop(why, checkpoint=True)
                return
            except UnreachableError:
                await asyncio.sleep(POLL_S)

    async def _stop_run(self, name: str) -> None:
        assert self._client is not None
        await self._tell_to_stop(f"interrupted by {name}")
        while len(self._signals) < 2:
            self._progress = await self._client.status()
            self._reporter.show(self._progress, self._readings())
            if self._progress.final:
                return
            await asyncio.sleep(POLL_S)

    def _readings(self) -> Mapping[str, ProcessReading]:
        """Returns the readings of the processes, with the problems that they report."""
        readings = {**self._read(self._roles.pids()), **self._roles.readings()}
        for node, problem in self._troubles.found.items():
            reading = readings.get(node) or ProcessReading(0.0, 0, "ps")
            readings[node] = replace(reading, problem=problem)
        return readings

    # --- processes --------------------------------------------------------------------------------------------------

    async def _watch(self) -> _Ending:
        """Watches processes; returns when the end of one ends the run."""
        waits = Waits()
        while True:
            for node, addresses in self._roles.newly_serving():
                self._begun.set()
                self._supervision.serves(node)
                self._on_serving(node, addresses)
                if self._roles.role(node) == "ps":
                    self._troubles.serves(node, nearest(addresses))
                if self._roles.role(node) == "controller":
                    self._controllers_at[node] = nearest(addresses)
                if node == self._coordinator and self._serving is not None and not self._serving.done():
                    self._heard_s = time.monotonic()
                    self._serving.set_result(addresses)
            self._look_at_controllers()
            ends = self._roles.newly_ended()
            for end in ends:
                self._deaths.tell(end)
            for decision in (*self._roles.news(), *self._supervision.ended(ends)):
                if isinstance(decision, Fail):
                    if not decision.node:
                        return _Ending(decision.exit_code, message=f"the run failed: {decision.reason}")
                    return _Ending(decision.exit_code, decision.node, decision.reason)
                if isinstance(decision, Restart):
                    who = self._roles.ends[decision.node].who
                    self._reporter.note(f"{who} ended: {decision.reason}; restarting it")
                    if decision.node == self._coordinator and self._serving and self._serving.done():  # else awaited
                        self._serving = asyncio.get_running_loop().create_future()
                    self._roles.start_one(decision.node)
                elif isinstance(decision, Note):
                    self._reporter.note(decision.text)
                elif isinstance(decision, Stop) and self._hosts_go is not None and not self._hosts_go.done():
                    self._hosts_go.set_result(decision.why)
            waiting, now_s = self._supervision.waiting_for, time.monotonic()
            if text := waits.look(waiting, now_s):
                needed = f", with the controller at {', '.join(self._controllers)}" if self._controllers else ""
                where = self._roles.where_logs_are(waiting[0])
                self._reporter.note(f"waiting for {text} to start{needed}; logs in {where}")
            if now_s - waits.longest > START_DEADLINE_S and self._client is None:
                raise UnreachableError(f"{', '.join(waiting)} did not start within {START_DEADLINE_S:.0f} s")
            await self._roles.changed()

    def _look_at_controllers(self) -> None:
        """Passes on where the controllers are, if one has come or another has its place."""
        there = [at for node, at in self._controllers_at.items() if self._roles.there(node)]
        addresses = tuple(address for at in there for address in at)
        if addresses and addresses != self._known_at:
            self._known_at = addresses
            self._deaths.controllers_at(addresses)
            self._on_controllers(addresses)

    async def _end_roles(self, grace_s: float, failed: bool) -> None:
        """Asks every role to leave and ends those that do not; after a second signal, ends all of them at once."""
        try:
            if self._client is not None:
                with suppress(AdamctlError):
                    await self._client.close()
            if len(self._signals) < 2:
                forced = await self._roles.stop(self._ask_to_leave, grace_s, failed)
                if forced and len(self._signals) < 2:
                    over = self._progress is not None and self._progress.state in ("ended", "stopped")
                    kept = "; the run was over, so nothing is lost" if over and self._coordinator not in forced else ""
                    self._reporter.note(f"did not leave when asked, so ended by a signal: {', '.join(forced)}{kept}")
        finally:
            self._roles.kill()
            await self._roles.close()

    async def _ask_to_leave(self, addresses: tuple[str, ...]) -> bool:
        return await ask_to_leave(self._transport, self._hello, nearest(addresses)[0])

    # --- the coordinator --------------------------------------------------------------------------------------------

    async def _follow(self) -> _Ending:
        """Shows the coordinator's progress; returns when the run is over. Follows one that was started again, too."""
        while True:
            assert self._serving is not None
            followed = self._serving
            try:
                return await self._follow_at(await followed)
            except UnreachableError as error:
                await asyncio.sleep(2 * FAILED_GRACE_S)  # if its process has ended, `_watch` notices
                if self._serving is not followed:
                    continue
                if time.monotonic() - self._heard_s > SILENT_S:
                    raise RunFailedError(f"the coordinator {self._coordinator} no longer answers: {error}") from error
                self._reporter.note(f"the coordinator {self._coordinator} does not answer: {error}; asking it again")

    async def _follow_at(self, addresses: Sequence[str]) -> _Ending:
        """Raises UnreachableError: the coordinator at these addresses no longer answers."""
        if self._client is not None:
            await self._client.close()
        self._client = await CoordinatorClient.connect(
            self._transport, nearest(addresses), self._hello, deadline_s=CONNECT_DEADLINE_S
        )
        while True:
            self._progress = await self._client.status()
            self._heard_s = time.monotonic()
            self._show(self._progress)
            if self._progress.final:
                return await self._ended(self._progress)
            await asyncio.sleep(FOLLOW_INTERVAL_S)

    def _show(self, progress: RunProgress) -> None:
        """Shows progress; no new messages while a role has told why it fails: they are about its consequences."""
        if self._supervision.failure is None and all(end.node in self._roles.ends for end in self._roles.failures()):
            self._messages = progress.messages
        self._reporter.show(structs.replace(progress, messages=self._messages), self._readings())

    async def _ended(self, progress: RunProgress) -> _Ending:
        self._supervision.end()
        if progress.state == "ended":
            return _Ending()
        exit_code = await self._coordinator_exit_code() or 1
        if progress.state == "failed":
            return _Ending(exit_code, self._coordinator, progress.failure)
        return _Ending(exit_code, message=f"the run was stopped: {progress.failure}")

    async def _coordinator_exit_code(self) -> int:
        """Returns the coordinator's exit code, which tells configuration from other failures; 0 while it still runs."""
        until_s = time.monotonic() + FAILED_GRACE_S
        while time.monotonic() < until_s:
            self._roles.newly_ended()
            end = self._roles.ends.get(self._coordinator)
            if end is not None:
                return max(end.exit_code or end.status, 0)
            await asyncio.sleep(POLL_S)
        return 0
