"""For tests: the configuration service inside this process, and a store that keeps nothing.

The service is the same core without network or disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from adamctl.errors import RemoteError
from adamctl.roles.controller.core.instructions import Answer, Instruction, Persist, Refuse
from adamctl.roles.controller.core.paxos.messages import Entry, PaxosSnapshot, Vote
from adamctl.roles.controller.core.service.controller_core import ControllerConfig, ControllerCore
from adamctl.roles.controller.core.service.events import CompareAndSet, Disconnected, Event, Read, Tick, Watch
from adamctl.wire.changes import Changes
from adamctl.wire.messages import (
    ConfigChanges,
    ConfigCompareAndSetReply,
    ConfigEntry,
    ConfigReadReply,
    ConfigWatchReply,
)


class VolatileStore:
    """A controller's store that keeps nothing."""

    vote: Vote | None = None
    snapshot: PaxosSnapshot | None = None
    entries: tuple[Entry, ...] = ()
    wants_snapshot = False
    blocks = False

    def persist(self, instructions: Sequence[Persist]) -> None:
        """Does nothing."""

    def write_snapshot(self, snapshot: PaxosSnapshot, accepted: Sequence[Entry] = ()) -> None:
        """Writes nothing."""

    def close(self) -> None:
        """Does nothing."""


class MemoryConfigurationStore:
    """A `ConfigurationStore` that lives as long as this object. Nodes put into it are never lost."""

    def __init__(self, config: ControllerConfig | None = None) -> None:
        self.core = ControllerCore(replace(config or ControllerConfig(), lost_after_s=float("inf")))
        self.core.recover(None, None, (), 0.0)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._token = 0
        self._sequence = 0

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        answer = await self._ask(Read(self._next_token(), prefix))
        return cast(ConfigReadReply, answer.message).revision, list(answer.entries or ())

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        self._sequence += 1
        answer = await self._ask(
            CompareAndSet(self._next_token(), f"local-{self._sequence}", 1, changes, self.core.state.serial)
        )
        return cast(ConfigCompareAndSetReply, answer.message)

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        token = self._next_token()
        timer = asyncio.get_running_loop().call_later(wait_s, self._step, Tick())
        try:
            answer = await self._ask(Watch(token, token, prefix, after_revision, wait_s))
        finally:
            timer.cancel()
            self._step(Disconnected(token))
        reply = cast(ConfigWatchReply, answer.message)
        return Changes(reply.revision, answer.entries or (), reply.deleted, reply.reset)

    def _next_token(self) -> int:
        self._token += 1
        return self._token

    async def _ask(self, event: Read | CompareAndSet | Watch) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[event.token] = future
        try:
            self._step(event)
            return await future
        finally:
            self._waiting.pop(event.token, None)

    def _step(self, event: Event) -> None:
        for instruction in self.core.step(event, asyncio.get_running_loop().time()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        if not isinstance(instruction, Answer | Refuse):
            return
        future = self._waiting.get(instruction.token)
        if future is None or future.done():
            return
        if isinstance(instruction, Answer):
            future.set_result(instruction)
        else:
            future.set_exception(RemoteError(int(instruction.code), instruction.message))
