"""Beacons from a thread of their own: on while the main loop is, whatever it does; off when it is wedged."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from math import inf

from adamctl.errors import AdamctlError, ConfigurationError, RemoteError, RunFailedError, UnreachableError
from adamctl.roles.beacons import BeaconPlan, ThreadBeacons
from adamctl.roles.lease import Lease
from adamctl.wire.constants import ErrorCode

LOG = logging.getLogger("adamctl.test")
LEASE_S = 0.4
WAIT_S = 20.0


class Sender:
    """Takes beacons where the thread sends them."""

    def __init__(self, fail: Callable[[int], Exception | None] = lambda number: None) -> None:
        self.times_s: list[float] = []
        self.threads: set[int] = set()
        self.closed = False
        self._fail = fail

    async def beacon(self, node: str, incarnation: int, *, deadline_s: float) -> None:
        assert (node, incarnation, deadline_s) == ("ps-0", 3, 60.0)
        self.times_s.append(time.monotonic())
        self.threads.add(threading.get_ident())
        error = self._fail(len(self.times_s))
        if error is not None:
            raise error

    async def close(self) -> None:
        self.closed = True


class Beating:
    """Beacons over a sender, and what came of them."""

    def __init__(self, sender: Sender, stays: Callable[[], bool] = lambda: False) -> None:
        self.lease = Lease(LEASE_S)
        self.lost: asyncio.Future[AdamctlError] = asyncio.get_running_loop().create_future()
        plan = BeaconPlan("ps-0", 3, LEASE_S / 4, 60.0, stays)
        self.beacons = ThreadBeacons(lambda lease_s: sender, plan, self.lease, LOG, self.lost.set_result)

    async def renewals(self, count: int) -> list[float]:
        """Waits until the lease has been renewed so often, and returns until when it held each time."""
        found: list[float] = []
        async with asyncio.timeout(WAIT_S):
            while len(found) < count:
                if self.lease.until_s not in (-inf, *found):
                    found.append(self.lease.until_s)
                await asyncio.sleep(0.005)
        return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_they_renew_the_lease_from_a_thread_of_their_own() -> None:
    sender = Sender()
    beating = Beating(sender)
    until_s = await beating.renewals(3)
    assert until_s == sorted(until_s) and beating.lease.until_s >= until_s[-1]
    assert sender.threads and threading.get_ident() not in sender.threads
    await beating.beacons.close()
    assert sender.closed
    count = len(sender.times_s)
    await asyncio.sleep(LEASE_S)
    assert len(sender.times_s) == count


async def test_a_burst_of_work_does_not_delay_them_but_a_wedged_loop_stops_them() -> None:
    sender = Sender()
    beating = Beating(sender)
    await beating.renewals(2)
    wedged_s = time.monotonic()
    time.sleep(5 * LEASE_S)  # noqa: ASYNC251
    during = [at_s - wedged_s for at_s in sender.times_s if at_s > wedged_s]
    assert all(after_s < 2 * LEASE_S for after_s in during), during
    assert not beating.lease.valid(), "what is wedged loses its lease"
    await until(beating.lease.valid)
    await beating.beacons.close()


async def test_who_is_a_member_no_more_hears_why_and_has_no_lease() -> None:
    gone = RemoteError(ErrorCode.STALE_INCARNATION, "ps-0 was silent for too long")
    beating = Beating(Sender(lambda number: gone if number == 3 else None))
    error = await asyncio.wait_for(beating.lost, WAIT_S)
    assert isinstance(error, RunFailedError) and "no longer part of the cluster" in str(error)
    assert not beating.lease.valid()
    await beating.beacons.close()


async def test_a_refusal_of_another_kind_is_tried_again() -> None:
    full = RemoteError(ErrorCode.OVER_QUOTA, "try again")
    beating = Beating(Sender(lambda number: full if number < 3 else None))
    await beating.renewals(1)
    assert not beating.lost.done()
    await beating.beacons.close()


async def test_controllers_out_of_reach_for_too_long_are_told() -> None:
    for reason in (UnreachableError("nobody answers"), ConfigurationError("the user may not use keys")):
        beating = Beating(Sender(lambda number, reason=reason: reason))  # type: ignore[misc]
        error = await asyncio.wait_for(beating.lost, WAIT_S)
        assert isinstance(error, UnreachableError) and str(error) == f"lost the cluster: {reason}"
        await beating.beacons.close()


async def test_who_holds_what_is_lost_with_it_waits_for_controllers_for_ever() -> None:
    holds = True
    beating = Beating(Sender(lambda number: UnreachableError("nobody answers") if number != 4 else None), lambda: holds)
    await beating.renewals(1)
    assert not beating.lost.done()
    holds = False
    assert isinstance(await asyncio.wait_for(beating.lost, WAIT_S), UnreachableError)
    await beating.beacons.close()


async def test_whatever_happens_in_the_thread_is_told() -> None:
    def broken(lease_s: float) -> Sender:
        raise OSError("no more descriptors")

    lost: asyncio.Future[AdamctlError] = asyncio.get_running_loop().create_future()
    plan = BeaconPlan("ps-0", 3, 0.1, 60.0)
    beacons = ThreadBeacons(broken, plan, Lease(LEASE_S), LOG, lost.set_result)
    assert "no more descriptors" in str(await asyncio.wait_for(lost, WAIT_S))
    await beacons.close()


async def test_they_can_be_ended_before_they_have_begun() -> None:
    sender = Sender()
    beating = Beating(sender)
    await beating.beacons.close()
    assert not beating.beacons._thread.is_alive()
