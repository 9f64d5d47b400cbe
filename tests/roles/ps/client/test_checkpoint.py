"""A checkpoint holds every shard once, even where a server dies or buckets move while it is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from adamctl.errors import RemoteError, UnreachableError
from adamctl.roles.ps.client.checkpoint import order_checkpoint
from adamctl.roles.ps.client.reroute import Rerouting
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import CheckpointFile, CheckpointReply, CheckpointRequest


class Job:
    """As much of a session as an order needs; `held` says which shards each server has, and may change."""

    def __init__(self, held: dict[str, tuple[int, ...]], *, copies: bool) -> None:
        self.job, self.copies, self.held = "job", copies, held
        self.layout = SimpleNamespace(shards=range(4))
        self.routing: Any = SimpleNamespace(servers=dict.fromkeys(held))
        self.rerouting = Rerouting(self._read)
        self.looked = 0
        self.dead: set[str] = set()
        self.silent: set[str] = set()

    async def _read(self) -> None:
        self.looked += 1
        self.routing = SimpleNamespace(servers=dict.fromkeys(self.held))

    async def look(self) -> None:
        await self.rerouting.look()

    async def pause(self, attempt: int) -> None:
        await asyncio.sleep(0)

    async def reach(self, node: str, kind: str) -> Any:
        if node in self.dead:
            raise UnreachableError(f"{node} refuses")

        async def request(message: CheckpointRequest, *, deadline_s: float) -> Any:
            if node in self.silent:
                await asyncio.sleep(1000)
            if node not in self.held:
                raise RemoteError(ErrorCode.NOT_READY, "not served here")
            file = CheckpointFile(f"{node}.shards", f".{node}", 1, "0" * 32, self.held[node])
            return SimpleNamespace(message=CheckpointReply((file,)))

        async def close() -> None: ...

        return SimpleNamespace(request=request, close=close)


async def written(job: Job) -> list[str]:
    return [file.name for file in await order_checkpoint(job, "/folder", 20.0)]  # type: ignore[arg-type]


async def test_all_servers_write_at_once() -> None:
    assert await written(Job({"ps-1": (2, 3), "ps-0": (0, 1)}, copies=False)) == [
        "shards-ps-0.adam",
        "shards-ps-1.adam",
    ]


@pytest.mark.parametrize("how", ["dead", "silent", "lost its place"])
async def test_it_begins_anew_when_another_server_took_over(how: str) -> None:
    job = Job({"ps-0": (0, 1), "ps-1": (2, 3)}, copies=True)
    {"dead": job.dead, "silent": job.silent}.get(how, set()).add("ps-0")
    job.held = {"ps-1": (0, 1, 2, 3)}
    assert await written(job) == ["shards-ps-1.adam"] and job.looked


async def test_a_shard_that_moved_meanwhile_is_written_once() -> None:
    job = Job({"ps-0": (0, 1, 2), "ps-1": (2, 3)}, copies=True)

    async def pause(attempt: int) -> None:
        job.held["ps-0"] = (0, 1)

    job.pause = pause  # type: ignore[method-assign]
    assert await written(job) == ["shards-ps-0.adam", "shards-ps-1.adam"]


async def test_without_copies_the_first_failure_is_told() -> None:
    job = Job({"ps-0": (0, 1), "ps-1": (2, 3)}, copies=False)
    job.dead.add("ps-1")
    with pytest.raises(UnreachableError, match="ps-1 refuses"):
        await written(job)
