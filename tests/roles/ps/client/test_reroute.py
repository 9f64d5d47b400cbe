"""Following buckets that move: readings are shared and spaced, and a silent server is left when another took over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from adamctl.errors import RemoteError, UnreachableError
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps.client.reroute import LOOK_S, OVERDUE_S, PAUSE_LONGEST_COPIES_S, READ_EVERY_S, Rerouting, pause
from adamctl.wire.constants import ErrorCode
from tests.garbage import collected


class Store:
    """Takes readings; each takes `takes_s` and ends as `ends` says."""

    def __init__(self, takes_s: float = 0.01) -> None:
        self.begun_s: list[float] = []
        self.takes_s = takes_s
        self.error: Exception | None = None

    async def read(self) -> None:
        self.begun_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error


async def forever() -> int:
    await asyncio.sleep(1e6)
    return 1


def test_readings_are_shared_and_keep_a_distance() -> None:
    async def scenario() -> None:
        store = Store()
        rerouting = Rerouting(store.read)
        await asyncio.gather(*(rerouting.read() for _ in range(5)))
        assert len(store.begun_s) == 1
        for _ in range(20):
            await rerouting.look()
        gaps = [b - a for a, b in zip(store.begun_s, store.begun_s[1:], strict=False)]
        assert len(gaps) == 20 and min(gaps) > 0.75 * READ_EVERY_S and len({round(gap, 6) for gap in gaps}) > 10

    run_virtual(scenario())


def test_an_answer_is_awaited_for_as_long_as_nobody_took_over() -> None:
    async def scenario() -> None:
        store = Store()
        rerouting = Rerouting(store.read)
        loop = asyncio.get_running_loop()

        async def slow() -> int:
            await asyncio.sleep(20 * OVERDUE_S)
            return 7

        assert await rerouting.answer(slow(), lambda: False) == 7
        assert 10 < len(store.begun_s) < 30
        begun_s = loop.time()
        with pytest.raises(UnreachableError, match="another server has taken over"):
            await rerouting.answer(forever(), lambda: loop.time() > begun_s + 5)
        assert loop.time() - begun_s < 5 + 2 * OVERDUE_S
        assert await rerouting.answer(asyncio.sleep(0, 5), lambda: True) == 5, "no reason to look"

    run_virtual(scenario())


def test_a_configuration_service_that_is_away_holds_up_nobody() -> None:
    async def scenario() -> None:
        store = Store(takes_s=30.0)
        store.error = UnreachableError("no controller answers")
        rerouting = Rerouting(store.read)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await rerouting.look()
        assert loop.time() - begun_s == pytest.approx(LOOK_S)

        async def slow() -> int:
            await asyncio.sleep(3)
            return 7

        assert await rerouting.answer(slow(), lambda: True) == 7
        with pytest.raises(UnreachableError, match="no controller"):
            await rerouting.read()
        await rerouting.close()

    run_virtual(scenario())


@pytest.mark.parametrize("call", [lambda r: r.look(), lambda r: r.answer(forever(), lambda: False)])
def test_the_end_of_the_job_ends_every_wait(call: Callable[[Rerouting], object]) -> None:
    async def scenario() -> None:
        store = Store()
        store.error = RemoteError(ErrorCode.RUN_ENDED, "job 'a' has ended")
        with pytest.raises(RemoteError, match="has ended"):
            await call(Rerouting(store.read))  # type: ignore[misc]

    run_virtual(scenario())


def test_pauses_grow_and_stay_short_where_somebody_may_take_over() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for copies, longest_s in ((False, 1.0), (True, 1.25 * PAUSE_LONGEST_COPIES_S)):
            last_s = 0.0
            for attempt in range(40):
                begun_s = loop.time()
                await pause(attempt, copies=copies)
                last_s = loop.time() - begun_s
                assert 0 < last_s <= longest_s + 1e-9
            assert last_s > 0.7 * PAUSE_LONGEST_COPIES_S

    run_virtual(scenario())


def test_a_request_that_fails_leaves_no_circle() -> None:
    """Its failure knows where it passed, and so what was to be sent."""

    async def fail() -> int:
        raise UnreachableError("nobody is there")

    async def scenario() -> None:
        rerouting = Rerouting(Store().read)
        with collected() as found:
            for _ in range(3):
                with suppress(UnreachableError):
                    await rerouting.answer(fail(), lambda: False)
        assert not [one for one in found if isinstance(one, UnreachableError)]

    run_virtual(scenario())
