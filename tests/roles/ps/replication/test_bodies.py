"""Bodies that travel between copies: copied, damaged, or failing where nobody expects it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.errors import DamagedDataError, RemoteError
from adamctl.roles.ps.core.exactly_once import MemoryRecord
from adamctl.roles.ps.core.instructions import Reply
from adamctl.roles.ps.core.shard_message import CopyRecord, ShardCopy, encode_body, lengths_of, own_records
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ReplicaFetchReply, ReplicaPrepareRequest
from tests.roles.ps.ps_cluster import pulled
from tests.roles.ps.replication.copies import THREE, add, replicated, values_of, zeroed


def records_of(size: int) -> list[CopyRecord]:
    arrays = [np.arange(size, dtype=np.float32), np.broadcast_to(np.float32(3), (size,))]
    copy = ShardCopy("a", 1, 0, 1, 1, 1, size, lengths_of(arrays), MemoryRecord())
    return [CopyRecord(copy, arrays)]


def test_what_is_received_is_copied_and_can_be_written_to() -> None:
    body = bytearray(b"".join(bytes(piece) for piece in encode_body(records_of(1000))))
    (found,) = own_records(memoryview(body))
    values, state = found.arrays
    assert values.flags.writeable and values.flags.c_contiguous and state.strides == (0,)
    before = values.copy()
    body[:] = bytes(len(body))
    np.testing.assert_array_equal(values, before)
    assert set(state.tolist()) == {3.0}
    with pytest.raises(DamagedDataError):
        own_records(memoryview(body))


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_damaged_body_is_refused_and_changes_nothing(size: int) -> None:
    async with replicated(74) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        context = await world.cluster.context("ps", "stranger")
        connection = await context.connect("ps-0", deadline_s=10)
        body = bytearray(b"".join(bytes(piece) for piece in encode_body(records_of(size))))
        body[-1] ^= 1
        with pytest.raises(RemoteError) as caught:
            await connection.request(ReplicaPrepareRequest("a", 1, 1, {0: 1}), (bytes(body),), deadline_s=10)
        assert caught.value.code == ErrorCode.DAMAGED_DATA
        await connection.close()
        assert values_of(await pulled(client)) == {0.0}
        await client.close()


async def test_what_fails_unexpectedly_while_it_is_sent_is_sent_again_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the state is under way for ever, and so is every push to that shard."""
    async with replicated(75) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        server = world.servers["ps-0"]
        replicating = server._keeper.replicating
        assert replicating is not None
        encode_well, failing = replicating._encode, iter((True, True))

        def fail(*records: Any) -> Any:
            if next(failing, False):
                raise ValueError("as if it were too large for a frame")
            return encode_well(*records)

        monkeypatch.setattr(replicating, "_encode", fail)
        await add(client)
        assert values_of(await pulled(client)) == {1.0}
        assert server.status()["background_failures"] == 2
        await client.close()


async def test_who_asks_is_answered_when_something_fails_unexpectedly(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a body is copied in a thread, and when an answer fits into no frame."""
    async with replicated(76) as world:
        await world.add_job(THREE)
        client = await zeroed(world)
        server = world.servers["ps-0"]
        replicating = server._keeper.replicating
        assert replicating is not None

        def fail(*_: Any) -> Any:
            raise RuntimeError("out of memory, say")

        monkeypatch.setattr(replicating, "_own", fail)
        connection = await (await world.cluster.context("ps", "stranger")).connect("ps-0", deadline_s=10)
        body = b"".join(bytes(piece) for piece in encode_body(records_of(100_000)))
        with pytest.raises(RemoteError) as caught:
            await connection.request(ReplicaPrepareRequest("a", 1, 1, {0: 1}), (body,), deadline_s=10)
        assert caught.value.code == ErrorCode.INTERNAL
        await connection.close()
        await client.close()
        told: list[int] = []

        def no_room(*_: Any) -> None:
            raise ValueError("larger than a frame may be")

        request = SimpleNamespace(answered=False, reply=no_room, fail=lambda code, _: told.append(code))
        replicating.reply(Reply(request, ReplicaFetchReply(1, 0, 1)))
        assert told == [ErrorCode.WRONG_LENGTH]
