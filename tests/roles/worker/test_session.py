"""What a session has begun ends with it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from adamctl.roles.worker.session import SessionRunner


class Downpour:
    """Pulls only after all pushes are answered; those are given up when it is closed."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.pulled = False

    async def settled(self) -> None:
        await self.answered.wait()

    async def snapshot(self, into: object) -> None:
        self.pulled = True

    async def close(self) -> None:
        self.answered.set()
        await asyncio.sleep(0)


async def test_parameters_of_an_evaluation_are_not_pulled_when_the_session_has_ended() -> None:
    async def halt() -> None:
        pass

    downpour = Downpour()
    replica = SimpleNamespace(flush=list, snapshot=None, stop=lambda: None, memory=SimpleNamespace(close=lambda: None))
    engine = SimpleNamespace(replica=replica, downpour=downpour, halt=halt)
    lead = SimpleNamespace(engine=engine, takes=lambda done: None, flush=downpour.settled)
    train = SimpleNamespace(in_step=False, max_staleness=None, local_lr=0.0, range_batches=1)
    experiment = SimpleNamespace(train=train, local_learning_rate_factor=lambda: None)
    session: Any = SimpleNamespace(lead=lead, experiment=experiment, threads=1, shares=1)
    runner = SessionRunner(session)
    pulling = asyncio.create_task(runner._snapshot(1))
    await asyncio.sleep(0)
    await runner._close()
    await asyncio.gather(pulling, return_exceptions=True)
    await asyncio.sleep(0)
    assert not downpour.pulled
