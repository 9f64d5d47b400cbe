"""`adamctl ckpt save` waits as long as it is told to, whoever does not answer."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from adamctl.cli.checkpoint import save as ckpt_save
from adamctl.cli.checkpoint.save import save_now
from adamctl.cli.cluster.access import ClusterAccess
from adamctl.config.records import JobRecord
from adamctl.errors import UnreachableError
from adamctl.model.rule import RuleConfig

HANGS_S = 30.0
JOB = JobRecord("running", "layout", RuleConfig("sgd"), 1)


class Coordinator:
    """Never answers, whatever deadline it is given."""

    closed = False

    async def checkpoint(self, *, deadline_s: float) -> tuple[int, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        self.closed = True


def save(wait_s: float, address: str = "tcp://127.0.0.1:1") -> dict[str, Any]:
    async def patiently() -> dict[str, Any]:
        return await asyncio.wait_for(save_now([address], "", None, wait_s), HANGS_S)

    return asyncio.run(patiently())


def test_a_controller_that_is_not_there_is_not_waited_for_longer() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(UnreachableError, match=r"did not answer within 0\.3 s"):
            save(0.3, f"tcp://127.0.0.1:{closed.getsockname()[1]}")


@pytest.mark.parametrize("who", ["coordinator_of", "checkpoint"])
def test_neither_is_a_coordinator_that_says_nothing(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    coordinator = Coordinator()

    async def running(*_: object) -> tuple[str, JobRecord]:
        return "mine", JOB

    async def found(*_: object) -> Coordinator:
        if who == "coordinator_of":
            await asyncio.Event().wait()
        return coordinator

    monkeypatch.setattr(ckpt_save, "running_job", running)
    monkeypatch.setattr(ClusterAccess, "coordinator_of", found)
    with pytest.raises(UnreachableError, match=r"job 'mine': no checkpoint within 0\.2 s; .* --wait"):
        save(0.2)
    assert coordinator.closed == (who == "checkpoint")
