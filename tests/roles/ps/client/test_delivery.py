"""Pushes that wait for their turn at a server which has lost its place: they go to the new one at once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.errors import DeadlineError, RemoteError, UnreachableError
from adamctl.model.layout import Tensor
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.core.admission import APPLIED
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AttachReply,
    AttachRequest,
    ConfigEntry,
    Hello,
    HelloReply,
    Message,
    PushReply,
    PushRequest,
    PushResult,
)

JOB, PUSHES = "j", 12
LAYOUT = LayoutRecord((Tensor("t0", 0, (1, 4), 0, "zeros", 0.0),), 1)


class Answered:
    """A reply without a body."""

    def __init__(self, message: Message) -> None:
        self.message, self.body, self.received_into = message, memoryview(b""), False

    def release(self) -> None:
        """Nothing to give back."""


class TwoServers:
    """A configuration service, and the two servers of a job with one bucket, which moves from the first to the second.

    The first falls silent, and its connections break; back again, it does not hold the bucket any more.
    """

    kind = "auto"

    def __init__(self) -> None:
        self.primary, self.epoch = "p1", 1
        self.silent: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self.asked: dict[str, list[int]] = {"p1": [], "p2": []}
        self.done = 0
        self.unread = 0
        """How often the configuration service does not answer."""

    async def read(self, prefix: str) -> tuple[int, Sequence[ConfigEntry]]:
        if self.unread:
            self.unread -= 1
            await asyncio.sleep(30.0)
            raise DeadlineError("no controller has answered within 30 s")
        record = JobRecord("running", LAYOUT.layout().hash, RuleConfig("add"), 0, replication=2)
        values = {
            job_key(JOB): encode(record),
            layout_key(JOB): encode(LAYOUT),
            bucket_key(JOB, 0): encode(BucketRecord(self.epoch, self.primary, ("p1", "p2"))),
            **{node_key(one): encode(NodeRecord(one, "ps", 1, (f"memory://{one}",), "h", 1)) for one in ("p1", "p2")},
        }
        return 1, [ConfigEntry(key, value, 1) for key, value in values.items() if key.startswith(prefix)]

    async def connect(
        self, address: str, identity: Hello, *, deadline_s: float, expects: tuple[str, str]
    ) -> OneConnection:
        return OneConnection(self, address.removeprefix("memory://"))

    async def push(self, server: str, number: int) -> PushResult:
        """Tells who has it now when the bucket has moved; applies the next number only."""
        self.asked[server].append(number)
        if server == "p1":
            if self.silent is not None:
                await asyncio.shield(self.silent)
                raise UnreachableError("the connection is lost")
            self.primary, self.epoch = "p2", 2
            return PushResult(0, ErrorCode.UNKNOWN_SHARD, 0, 0, 0)
        if number != self.done + 1:
            return PushResult(0, ErrorCode.SEQUENCE_GAP, 0, 0, 0)
        self.done = number
        return PushResult(0, ErrorCode.OK, self.epoch, number, 0)


class OneConnection:
    """A connection to one of them."""

    kind, closed = "tcp", False

    def __init__(self, servers: TwoServers, name: str) -> None:
        self._servers, self._name = servers, name
        self.peer, self.peer_name = HelloReply(1, (), "ps", name, 1, 1 << 20), name

    async def request(self, message: Message, body: Any = (), *, deadline_s: float, into: Any = None) -> Answered:
        if isinstance(message, AttachRequest):
            return Answered(AttachReply({}))
        assert isinstance(message, PushRequest)
        await asyncio.sleep(0.001)
        return Answered(PushReply((await self._servers.push(self._name, message.parts[0].sequence),)))

    async def close(self) -> None:
        self.closed = True


def test_what_waits_for_its_turn_at_a_server_that_lost_its_place_is_not_sent_there_first() -> None:
    async def go() -> None:
        servers = TwoServers()
        client = ParameterClient(servers, lambda: make_hello("worker", "w", 1), servers, JOB)  # type: ignore[arg-type]
        await client.attach()
        pushes = []
        for _ in range(PUSHES):
            push = PushSet(client.layout, 1.0)
            push.delta(0, np.ones(4, np.float32))
            pushes.append(client.start_push(push))
        await asyncio.sleep(0.05)
        assert sorted(servers.asked["p1"]) == list(range(1, PUSHES + 1))
        silent, servers.silent = servers.silent, None
        assert silent is not None
        silent.set_result(None)
        for each in pushes:
            assert not (await each.wait(60.0)).refused
        assert servers.asked["p1"][PUSHES:] == [1]  # it told what all of them need to know
        assert servers.done == PUSHES
        await client.close()

    run_virtual(go())


def test_a_push_whose_shards_have_moved_outlasts_a_configuration_service_that_does_not_answer() -> None:
    async def go() -> None:
        servers = TwoServers()
        client = ParameterClient(servers, lambda: make_hello("worker", "w", 1), servers, JOB)  # type: ignore[arg-type]
        await client.attach()
        servers.silent, servers.unread = None, 2
        push = PushSet(client.layout, 1.0)
        push.delta(0, np.ones(4, np.float32))
        assert not (await client.push(push, deadline_s=300.0)).refused
        assert servers.done == 1 and servers.unread == 0
        await client.close()

    run_virtual(go())


class Forgetful(TwoServers):
    """Answers a push as told, then says that it has forgotten the client."""

    def __init__(self, first: PushResult | RemoteError) -> None:
        super().__init__()
        self.first: PushResult | RemoteError | None = first

    async def push(self, server: str, number: int) -> PushResult:
        first, self.first = self.first, None
        if isinstance(first, RemoteError):
            raise first
        return first or PushResult(0, ErrorCode.CLIENT_EVICTED, 1, 7, 0, "forgotten")


@pytest.mark.parametrize(
    ("first", "unsure"),
    [
        (RemoteError(ErrorCode.NOT_READY, "too few copies", {APPLIED: True}), True),
        (RemoteError(ErrorCode.NOT_READY, "too few copies"), False),
        (PushResult(0, ErrorCode.STALE_EPOCH, 2, 7, 0, "moved when it was applied"), True),
        (PushResult(0, ErrorCode.STALE_EPOCH, 2, 0, 0, "moved before"), False),
        (PushResult(0, ErrorCode.SEQUENCE_GAP, 1, 7, 0), False),
        (PushResult(0, ErrorCode.UNKNOWN_SHARD, 0, 0, 0), False),
    ],
)
def test_what_was_applied_and_not_acknowledged_is_not_taken_for_refused_when_the_client_is_forgotten(
    first: PushResult | RemoteError, unsure: bool
) -> None:
    """Who pushes it again under a new name may push it twice; what was not consumed may well be pushed again."""

    async def go() -> None:
        servers = Forgetful(first)
        client = ParameterClient(servers, lambda: make_hello("worker", "w", 1), servers, JOB)  # type: ignore[arg-type]
        await client.attach()
        push = PushSet(client.layout, 1.0)
        push.delta(0, np.ones(4, np.float32))
        (refused,) = (await client.push(push)).refused
        assert (refused.code, refused.unsure) == (ErrorCode.CLIENT_EVICTED, unsure)
        await client.close()

    run_virtual(go())
