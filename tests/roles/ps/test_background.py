"""Tasks whose end is looked at."""

from __future__ import annotations

import asyncio
import logging

import pytest

from adamctl.roles.ps.background import Background


async def test_only_what_fails_unexpectedly_is_counted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    background = Background(logging.getLogger("test"))

    async def ends(error: Exception | None) -> None:
        if error is not None:
            raise error

    for error in (None, RuntimeError("one"), ValueError("two")):
        background.spawn(ends(error))
    background.spawn(asyncio.sleep(60))
    await asyncio.sleep(0.01)
    assert background.failures == 2 and len(caplog.records) == 2
    (waits,) = background.tasks
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert background.failures == 2 and not background.tasks
