"""Members of a group map each other's memory, or send what it shows: every way gives the same bits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import AdamctlError, HandshakeError, NoAddressError, UnreachableError
from adamctl.kernels.partition.memory import BlockName
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.stages import StageCut, cut_network, cuts_of
from adamctl.model.description import Conv2D, Dense, LocalContrastNorm, MaxPool2D, Model, Softmax
from adamctl.model.partition.rules import make_plan
from adamctl.net import shared_memory
from adamctl.net.address import TransportKind
from adamctl.net.handshake import make_hello
from adamctl.net.limits import ServerLimits
from adamctl.net.stream import StreamTransport
from adamctl.roles.worker.partition import copies, links, sending, sleeping
from adamctl.roles.worker.partition.group import Group
from adamctl.roles.worker.partition.links import LostNeighbourError, NotAttachedError
from adamctl.roles.worker.partition.sleeping import NAMELESS
from adamctl.roles.worker.partition.threads import Flight
from adamctl.wire.messages import GroupMember, PartDataRequest
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.partition.replica import Replica
from tests.kernels.partition.test_member import (
    BATCH,
    BY_ROWS,
    IMAGES,
    LOCAL,
    NINE,
    ROWS_AND_UNITS,
    UNEVEN,
    VECTOR,
    small_integers,
)
from tests.net.world import until
from tests.roles.worker.partition.linked import EPOCH, Kinds, LinkedMember, linked

FLIGHTS = 10
SMALLER, EVALUATED = frozenset({3, 6}), frozenset({2, 3, 7})
SHARED = "shared memory" if NAMELESS else "Unix socket"


def always(kind: TransportKind) -> Kinds:
    return lambda own, other: kind


async def check_same_bits(model: Model, made: list[LinkedMember]) -> None:
    """Some flights are evaluations, and some batches are smaller."""
    network = made[0].network
    weights = weights_of(model)
    batches = [small_integers(model, seed)[1] for seed in range(FLIGHTS)]
    for number in SMALLER:
        batches[number] = Batch(batches[number].images[:3], batches[number].labels[:3])
    expected = Replica(network, BATCH, 1, weights).run(batches, evaluations=EVALUATED)
    for number, batch in enumerate(batches):
        for one in made:
            one.submit(Flight(number + 1, batch, number not in EVALUATED))
    for one in made:
        await one.all_done(FLIGHTS)
    lead = next(one for one in made if one.member.arrays(0).outputs[-1] is not None)
    found = [lead.done[number].found for number in range(1, FLIGHTS + 1)]
    assert [(row.loss, row.correct) for row in found] == [(loss, correct) for _, loss, correct in expected]
    for own, one in enumerate(made):
        assert not one.failures
        gradients = one.member.arrays(FLIGHTS % one.group.flights).gradients
        for gradient, right in zip(gradients, expected[-1][0][own], strict=True):
            np.testing.assert_array_equal(gradient, right)


def weights_of(model: Model) -> list[np.ndarray]:  # type: ignore[type-arg]
    return [weight * np.float32(0.3) for weight in small_integers(model, 3)[0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "flights"), [("tcp", 1), ("tcp", 3), ("shared", 2)])
@pytest.mark.parametrize(("model", "cuts"), [(IMAGES, UNEVEN), (IMAGES, ROWS_AND_UNITS), (LOCAL, BY_ROWS)])
async def test_members_find_what_they_find_in_turn(
    model: Model, cuts: list[StageCut], kind: TransportKind, flights: int, backend: str, tmp_path: Path
) -> None:
    network = cut_network(model, cuts, backend)  # type: ignore[arg-type]
    async with linked(network, flights, weights_of(model), tmp_path, always(kind), threads=2) as made:
        await check_same_bits(model, made)
        how = "TCP" if kind == "tcp" else SHARED
        for own, one in enumerate(made):
            assert one.links.transports == {other: how for other in range(len(made)) if other != own}


async def test_nine_partitions_of_which_some_share_memory(tmp_path: Path) -> None:
    """Three machines of three members each."""

    def kinds(own: int, other: int) -> TransportKind:
        return "shared" if own // 3 == other // 3 else "tcp"

    network = cut_network(VECTOR, NINE, BACKENDS[-1])
    async with linked(network, 2, weights_of(VECTOR), tmp_path, kinds) as made:
        await check_same_bits(VECTOR, made)
        assert made[4].links.transports == {one: SHARED if one // 3 == 1 else "TCP" for one in range(9) if one != 4}


@pytest.mark.skipif(not NAMELESS, reason="memory is shared on Linux only")
async def test_memory_is_used_only_if_it_is_shared_both_ways(tmp_path: Path) -> None:
    """The second member may not map the first one's memory."""
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    limits = {1: ServerLimits(region_bytes_max=1)}
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("shared"), limits=limits) as made:
        assert [one.links.transports for one in made] == [{1: "Unix socket"}, {0: "Unix socket"}]
        await check_same_bits(IMAGES, made)


async def test_without_sockets_or_memory_that_others_can_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS."""
    monkeypatch.setattr(sleeping, "NAMELESS", False)
    monkeypatch.setattr(shared_memory, "SUPPORTED", False)
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("shared"), threads=2) as made:
        assert [one.links.transports for one in made] == [{1: "Unix socket"}, {0: "Unix socket"}]
        await check_same_bits(IMAGES, made)


PLANNED = Model(
    (12, 12, 2), (Conv2D(4, 3), MaxPool2D(2), LocalContrastNorm(3), Conv2D(3, 3), Dense(8, "relu"), Softmax(4))
)
LARGE_HEAD = Model((6,), (Dense(8, "relu"), Softmax(5000)))


@pytest.mark.parametrize("model", [PLANNED, LARGE_HEAD])
@pytest.mark.parametrize("partitions", [2, 3])
async def test_what_is_sent_is_what_the_plan_says(model: Model, partitions: int, tmp_path: Path) -> None:
    plan = make_plan(model, partitions)
    network = cut_network(model, cuts_of(plan), BACKENDS[-1])
    _, batch = small_integers(model, 3)
    async with linked(network, 2, weights_of(model), tmp_path, always("tcp")) as made:
        for number in range(1, 4):
            for one in made:
                one.submit(Flight(number, batch))
        for one in made:
            await one.all_done(3)
        planned = [0] * partitions
        for pair in plan.traffic():
            planned[pair.sender] += (pair.up_bytes + pair.down_bytes) * BATCH + pair.flight_bytes
        await until(lambda: [one.links.sent.block_bytes for one in made] == [3 * size for size in planned])
        for one in made:
            assert one.links.sent.framing_bytes <= 60 * one.links.sent.frames


async def test_blocks_are_cut_into_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (copies, sending):
        monkeypatch.setattr(module, "PIECE_BYTES", 100)
    network = cut_network(IMAGES, UNEVEN, BACKENDS[-1])
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("tcp")) as made:
        await check_same_bits(IMAGES, made)
        assert sum(one.links.sent.block_bytes for one in made) > 50 * sum(one.links.sent.frames for one in made)


async def test_a_lost_connection_names_the_partition(tmp_path: Path) -> None:
    network = cut_network(IMAGES, UNEVEN, BACKENDS[-1])
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("tcp")) as made:
        await made[1].server.close()
        await until(lambda: bool(made[0].failures and made[2].failures))
        for one in (made[0], made[2]):
            assert {type(failure) for failure in one.failures} == {LostNeighbourError}
            assert {failure.partition for failure in one.failures} == {1}  # type: ignore[attr-defined]
            assert "the connection to partition 1 (w1) is lost" in str(one.failures[0])


# --- members that do not find each other ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            UnreachableError("tcp://10.0.0.2:7000: connection refused"),
            "was not reached within 0.2 s: tcp://10.0.0.2:7000",
        ),
        (
            NoAddressError("it is on another machine; found unix:///x"),
            "has no usable address: it is on another machine",
        ),
        (HandshakeError("wrong token"), "refuses this member: wrong token"),
    ],
)
async def test_who_is_not_reached_is_named_with_the_reason(
    error: AdamctlError, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one, which only waits to be reached, gives it time to say so."""
    monkeypatch.setattr(links, "ATTACH_S", 0.2)

    def kinds(own: int, other: int) -> TransportKind:
        if (own, other) == (0, 1):
            raise error
        return "tcp"

    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    with pytest.raises(NotAttachedError, match=re.escape(f"partition 1 (w1) {message}")) as found:
        async with linked(network, 2, weights_of(IMAGES), tmp_path, kinds):
            pass
    assert found.value.partition == 1


@asynccontextmanager
async def two(folder: Path, flights: tuple[int, int] = (2, 2)) -> AsyncIterator[list[LinkedMember]]:
    """Yields the members of a group that serve and have not attached."""
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    members = tuple(GroupMember(f"w{own}", 1, "host", ()) for own in range(2))
    groups = [Group("job", EPOCH, own, members, "hash", BATCH, flights[own]) for own in range(2)]
    pair = [LinkedMember(group, network, folder, always("tcp")) for group in groups]
    try:
        for one in pair:
            one.peers = pair
            await one.serve(None)
        yield pair
    finally:
        for one in pair:
            await one.close()


async def test_one_that_does_not_reach_this_member_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ATTACH_S", 0.2)
    monkeypatch.setattr(links, "LATER_S", 0.2)
    async with two(tmp_path) as pair:
        with pytest.raises(NotAttachedError, match=r"partition 1 \(w1\) did not attach .* reach partition 0 \(w0\)"):
            await pair[0].links.attach()


async def test_members_with_other_numbers_of_flights_are_told_what_to_do(tmp_path: Path) -> None:
    async with two(tmp_path, (2, 3)) as pair:
        with pytest.raises(NotAttachedError, match=r"expected plan hash, .* the same version and --threads, or set"):
            await pair[0].links.attach()


# --- frames that are wrong --------------------------------------------------------------------------------------------


async def test_frames_of_strangers_and_of_old_groups_change_nothing(tmp_path: Path) -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("tcp")) as made:
        first = made[0]
        memory = first.neighbours.memories[1]
        names = list(memory._layout.places)
        before = [memory.array(name).copy() for name in names]
        block = next(number for number, name in enumerate(names) if name.kind == "output" and name.flight == 1)
        body = np.ones_like(before[block])
        stranger = await StreamTransport().connect(
            first.server.addresses[0], make_hello("worker", "w1", 1), deadline_s=5
        )
        old = PartDataRequest(EPOCH - 1, block, 1, BATCH)
        await stranger.send_one_way(old, [body], deadline_s=5)
        await stranger.send_one_way(PartDataRequest(EPOCH - 1, 999, 1), deadline_s=5)
        await asyncio.sleep(0.1)
        assert not stranger.closed, "frames of another group are dropped, without more"
        await stranger.send_one_way(PartDataRequest(EPOCH, block, 1, BATCH), [body], deadline_s=5)
        assert "that has attached on this connection" in await asyncio.wait_for(stranger.wait_lost(), 10)
        for found, right in zip((memory.array(name) for name in names), before, strict=True):
            np.testing.assert_array_equal(found, right)
        assert set(memory.words.tolist()) == {0, 2}, "free words stand for the flights before the first"
        await check_same_bits(IMAGES, made)


@pytest.mark.parametrize("with_body", [False, True])
async def test_a_damaged_frame_of_a_member_ends_its_connection_with_the_reason(with_body: bool, tmp_path: Path) -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, BACKENDS[-1])
    async with linked(network, 2, weights_of(IMAGES), tmp_path, always("tcp")) as made:
        first, second = made
        connection = second.links._connections[0]
        memory = first.neighbours.memories[1]
        words = memory.words.tolist()
        body = [bytes(64)] if with_body else []
        with suppress(UnreachableError):  # it may be cut already
            await connection.send_one_way(PartDataRequest(EPOCH, 999, 1), body, deadline_s=5)
        await until(lambda: bool(second.failures))
        failure = second.failures[0]
        assert isinstance(failure, LostNeighbourError) and failure.partition == 0
        assert "PART_DATA from partition 1 (w1): expected one of" in str(failure)
        assert memory.words.tolist() == words
        assert BlockName("free", 0, 0) in memory._layout.places
