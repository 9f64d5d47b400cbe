"""Data servers as processes, and a reader that discards what it gets, for parts of `adamctl bench data`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from adamctl.bench.role_processes import CONTROLLER, RoleProcesses, role_hello
from adamctl.config.data import DataConfig
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Reply
from adamctl.roles.data.client.data_client import DataClient, Range, ReadAhead
from adamctl.roles.data.client.link import DataServerLink
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import DataReadReply

START_S = 20.0
IN_FLIGHT = 8


class Reading(NamedTuple):
    """What a reader got: examples a second, and bytes of the bodies that they came in for each of them."""

    rate: float
    example_bytes: float


class DataProcesses(RoleProcesses):
    """Data servers with so many decoding threads each; `servers` are their names."""

    def __init__(self, count: int, threads: int, data: Sequence[str]) -> None:
        super().__init__()
        self.servers = tuple(f"data-{number}" for number in range(1, count + 1))
        self._threads, self._data = threads, tuple(data)

    def _start(self, stack: ExitStack) -> None:
        common = ("--socket-folder", str(self.folder), "--port", "0", "--log-level", "warning")
        member = (*common, "--controller", f"unix://{self.folder}/controller.s", "--threads", str(self._threads))
        roots = tuple(part for folder in self._data for part in ("--data", folder))
        self.roles.add(
            RoleCommand(CONTROLLER, CONTROLLER, ("--dir", str(self.folder / "store"), *common)),
            *(RoleCommand("data", node, (*member, *roots)) for node in self.servers),
        )
        self.roles.start()
        self.wait_serving(CONTROLLER, *self.servers)

    def read(
        self, config: DataConfig, shape: tuple[int, ...], length: int, seconds: float, pass_number: int
    ) -> Reading:
        """Reads passes from this one on, in ranges of `length`, for about `seconds`, and discards what comes."""
        return run(self._read(config, shape, length, seconds, pass_number))

    async def _read(
        self, config: DataConfig, shape: tuple[int, ...], length: int, seconds: float, pass_number: int
    ) -> Reading:
        transport, hello = StreamTransport(), role_hello("worker", "bench")
        links = []
        for node in self.servers:
            address = f"unix://{self.folder}/{node}.s"
            links.append(_CountingLink(node, partial(transport.connect, address, hello, deadline_s=START_S)))
        client = DataClient.over(links)
        try:
            data = await client.open(config, shape, 0)
            ahead = ReadAhead(client, data, ranges_in_flight=IN_FLIGHT)
            asking = asyncio.create_task(self._ask(ahead, data.examples["train"], length, pass_number))
            for _ in range(2 * IN_FLIGHT):  # so that it is at speed when it is timed
                (await ahead.take()).release()
            examples, began_s = 0, time.perf_counter()
            while (now_s := time.perf_counter()) < began_s + seconds:
                batch = await ahead.take()
                examples += len(batch.images)
                batch.release()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await ahead.close()
            sent = sum(link.body_bytes for link in links), sum(link.examples for link in links)
            return Reading(examples / (now_s - began_s), sent[0] / sent[1])
        finally:
            await client.close()

    @staticmethod
    async def _ask(ahead: ReadAhead, examples: int, length: int, pass_number: int) -> None:
        while True:
            for start in range(0, examples, length):
                await ahead.ask(Range("train", pass_number, start, min(start + length, examples)))
            pass_number += 1


class _CountingLink(DataServerLink):
    """Counts the bytes of the bodies of replies, and the examples in them."""

    body_bytes = examples = 0

    async def request(self, *arguments: object, **options: object) -> Reply:
        reply = await super().request(*arguments, **options)  # type: ignore[arg-type]
        if isinstance(reply.message, DataReadReply):
            self.body_bytes += len(reply.body)
            self.examples += reply.message.examples
        return reply
