"""Beacons: they keep a process a member of its cluster and its lease alive.

A separate thread sends them over a separate connection, so that a burst of work on the main loop does not delay them
(measured: by 1.7 s). The thread sends only while the main loop makes progress: a process that answers nobody must not
stay a member because one of its threads still runs. The main loop stamps the time every D/8; the thread sends beacons
while the last stamp is younger than D/2.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from adamctl.errors import AdamctlError, MembershipLostError, RemoteError, UnreachableError
from adamctl.net.loop import new_event_loop
from adamctl.roles.lease import Lease
from adamctl.wire.constants import ErrorCode

STAMPS_PER_LEASE = 8
STALE_SHARE = 0.5
"""As a share of a lease: an older stamp of the main loop stops the beacons."""
JOIN_DEADLINE_S = 2.0


class BeaconSender(Protocol):
    """The part of `Membership` that beacons need."""

    async def beacon(self, node: str, incarnation: int, *, deadline_s: float) -> None: ...


class OwnedSender(BeaconSender, Protocol):
    """A sender that its user also closes."""

    async def close(self) -> None: ...


@dataclass(frozen=True)
class BeaconPlan:
    """Which process sends beacons, how often, and how long the controllers may be unreachable.

    `stays`: says, in any thread, whether it asks on after that, since it holds what is lost with it.
    """

    node: str
    incarnation: int
    interval_s: float
    deadline_s: float
    stays: Callable[[], bool] = lambda: False


class Beacons(Protocol):
    """Beacons that were started."""

    def cancel(self) -> None:
        """Stops: no further beacon is sent."""
        ...

    async def close(self) -> None:
        """Stops, and waits for the end."""
        ...


async def send_beacons(
    sender: BeaconSender,
    plan: BeaconPlan,
    lease: Lease,
    log: logging.Logger,
    progress: Callable[[], bool] = lambda: True,
) -> AdamctlError:
    """Sends beacons until the process is no longer a member, and returns why.

    Args:
        progress: whether to send beacons at all; called every quarter of an interval while it returns False.
    """
    number = 0
    while True:
        if not progress():
            await asyncio.sleep(plan.interval_s / 4)
            continue
        number += 1
        sent_s = lease.clock()
        lease.sent(number, sent_s)
        try:
            await sender.beacon(plan.node, plan.incarnation, deadline_s=plan.deadline_s)
            lease.confirmed(number)
        except RemoteError as error:
            if error.code == ErrorCode.STALE_INCARNATION:
                lease.end()
                return MembershipLostError(f"this process is no longer part of the cluster: {error}")
            log.warning("the controller refused a beacon: %s", error)
        except AdamctlError as error:
            if not (isinstance(error, UnreachableError) and plan.stays()):
                return UnreachableError(f"lost the cluster: {error}")
            log.error("lost the cluster, and waits for it with what it holds: %s", error)
        await asyncio.sleep(max(0.0, sent_s + plan.interval_s - lease.clock()))


class LoopBeacons:
    """Beacons sent from the main event loop: for tests, whose time may jump, and where there are no threads."""

    def __init__(self, send: Callable[[], Awaitable[AdamctlError]], lost: Callable[[AdamctlError], None]) -> None:
        async def run() -> None:
            lost(await send())

        self._task = asyncio.create_task(run())

    def cancel(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class ThreadBeacons:
    """Beacons sent from a separate thread. Create it on the main loop."""

    def __init__(
        self,
        make_sender: Callable[[float], OwnedSender],
        plan: BeaconPlan,
        lease: Lease,
        log: logging.Logger,
        lost: Callable[[AdamctlError], None],
    ) -> None:
        """
        Args:
            make_sender: called in the thread with D; its result is closed there.
            lost: called on the main loop.
        """
        self._make_sender = make_sender
        self._plan = plan
        self._lease = lease
        self._log = log
        self._lost = lost
        self._main = asyncio.get_running_loop()
        self._stamp_s = lease.clock()
        self._stamping: asyncio.TimerHandle | None = None
        self._ending = threading.Event()
        self._end: Callable[[], object] = self._ending.set
        self._guard = threading.Lock()
        watched_s = lease.lease_s if isfinite(lease.lease_s) else 4 * plan.interval_s
        self._stamp_every_s = watched_s / STAMPS_PER_LEASE
        self._stale_s = watched_s * STALE_SHARE
        self._stamp()
        self._thread = threading.Thread(target=self._run, name="beacons", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        if self._stamping is not None:
            self._stamping.cancel()
        with self._guard:
            self._ending.set()
            self._end()

    async def close(self) -> None:
        self.cancel()
        await asyncio.to_thread(self._thread.join, JOIN_DEADLINE_S)

    # --- the main loop ------------------------------------------------------------------------------------------------

    def _stamp(self) -> None:
        self._stamp_s = self._lease.clock()
        self._stamping = self._main.call_later(self._stamp_every_s, self._stamp)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _progress(self) -> bool:
        return self._lease.clock() - self._stamp_s < self._stale_s

    def _tell(self, call: Callable[..., None], *values: object) -> None:
        with suppress(RuntimeError):  # the main loop has ended
            self._main.call_soon_threadsafe(call, *values)

    def _run(self) -> None:
        loop = new_event_loop()
        try:
            loop.run_until_complete(self._send(loop))
        except Exception as error:
            self._tell(self._lost, UnreachableError(f"beacons cannot be sent: {error}"))
        finally:
            loop.close()

    async def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        sender = self._make_sender(self._lease.lease_s)
        sending = asyncio.ensure_future(send_beacons(sender, self._plan, self._lease, self._log, self._progress))
        with self._guard:
            if self._ending.is_set():
                sending.cancel()
            self._end = lambda: loop.call_soon_threadsafe(sending.cancel)
        try:
            why = await sending
            self._tell(self._lost, why)
        except asyncio.CancelledError:
            pass
        finally:
            with self._guard:
                self._end = lambda: None
            await sender.close()
