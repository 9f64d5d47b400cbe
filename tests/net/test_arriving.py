"""Large bodies are handed over piece by piece while they arrive; whoever takes none of it notices nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.errors import UnreachableError
from adamctl.net.arriving import ARRIVING_BYTES_MIN, Pieces
from adamctl.net.transport import Arrival, Request
from adamctl.wire.messages import PushRequest
from tests.net.test_conformance import PUSH, mirror
from tests.net.world import World, everywhere, until

MIB = 1 << 20


class Taker:
    """Takes those pieces that are in `take`; fails at piece `fails`."""

    def __init__(self, stops: Sequence[int], take: Sequence[int] = (), fails: int = -1) -> None:
        self.stops = stops
        self.got: list[tuple[int, bytes]] = []
        self._take, self._fails = take, fails

    def arrived(self, piece: int, data: memoryview) -> bool:
        if piece == self._fails:
            raise ZeroDivisionError
        self.got.append((piece, bytes(data)))
        return piece in self._take


@settings(max_examples=300, deadline=None)
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), rest=st.integers(0, 200), data=st.data())
def test_pieces_that_are_not_taken_are_where_they_belong(sizes: list[int], rest: int, data: st.DataObject) -> None:
    body = Random(1).randbytes(sum(sizes) + rest)
    stops = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    take = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    taker, memory = Taker(stops, sorted(take)), memoryview(bytearray(len(body)))
    pieces = Pieces(taker, memory, "somebody")
    sent = [body[stop - size : stop] for size, stop in zip(sizes, stops, strict=True)]
    for number, (segment, part) in enumerate(zip(pieces.segments, [*sent, body[len(body) - rest :]], strict=True)):
        segment[:] = part
        if len(segment):
            pieces.filled(number)
    assert taker.got == list(enumerate(sent))
    for number, (size, stop) in enumerate(zip(sizes, stops, strict=True)):
        if number not in take:
            assert memory[stop - size : stop] == sent[number]
    assert memory[len(body) - rest :] == body[len(body) - rest :]


@everywhere()
async def test_a_large_body_is_handed_over_in_pieces_and_is_then_complete(world: World) -> None:
    takers: list[Taker] = []

    def arriving(request: Request) -> Arrival | None:
        assert isinstance(request.message, PushRequest) and request.peer.node == "worker-0"
        assert len(request.body) == len(body)
        takers.append(Taker([MIB, MIB + 5, 2 * MIB]))
        return takers[-1]

    def handle(request: Request) -> None:
        assert request.arrival is takers[-1]
        mirror(request)

    _, connection = await world.pair(handle, arriving=arriving)
    for body in (Random(1).randbytes(2 * MIB + 77), Random(2).randbytes(2 * MIB)):
        reply = await connection.request(PUSH, [body], deadline_s=30)
        assert bytes(reply.body) == body
        reply.release()
        assert takers[-1].got == list(enumerate([body[:MIB], body[MIB : MIB + 5], body[MIB + 5 : 2 * MIB]]))
    assert len(takers) == 2


@everywhere()
async def test_small_bodies_and_unwanted_ones_come_as_ever(world: World) -> None:
    asked: list[int] = []

    def arriving(request: Request) -> Arrival | None:
        asked.append(len(request.body))
        return None

    def handle(request: Request) -> None:
        assert request.arrival is None
        mirror(request)

    _, connection = await world.pair(handle, arriving=arriving)
    for size in (0, ARRIVING_BYTES_MIN - 1, ARRIVING_BYTES_MIN):
        body = Random(size).randbytes(size)
        reply = await connection.request(PUSH, [body], deadline_s=30)
        assert bytes(reply.body) == body
        reply.release()
    assert asked == [ARRIVING_BYTES_MIN]


@everywhere()
async def test_whoever_fails_with_a_piece_gets_the_request_all_the_same(world: World) -> None:
    takers = [Taker([MIB, 2 * MIB, 3 * MIB], fails=fails) for fails in (0, 1)]
    left = iter(takers)
    _, connection = await world.pair(mirror, arriving=lambda _: next(left))
    for _ in takers:
        body = Random(3).randbytes(3 * MIB)
        reply = await connection.request(PUSH, [body], deadline_s=30)
        assert bytes(reply.body) == body
        reply.release()
    assert [len(taker.got) for taker in takers] == [0, 1]  # and are told of no more pieces


@everywhere()
async def test_whoever_fails_with_the_question_gets_the_request_all_the_same(
    world: World,
) -> None:
    def arriving(request: Request) -> Arrival | None:
        raise ZeroDivisionError

    _, connection = await world.pair(mirror, arriving=arriving)
    body = Random(4).randbytes(MIB)
    reply = await connection.request(PUSH, [body], deadline_s=30)
    assert bytes(reply.body) == body
    reply.release()


@everywhere("tcp", "unix", "tcp-uvloop", "unix-uvloop")
async def test_a_body_that_never_ends_leaves_nothing(world: World) -> None:
    handled: list[Request] = []

    class Cutting(Taker):
        def arrived(self, piece: int, data: memoryview) -> bool:
            asyncio.get_running_loop().call_soon(
                partial(world.connections[0]._protocol.end, UnreachableError("cut"), at_once=True)
            )
            return super().arrived(piece, data)

    cutting = Cutting([MIB, 24 * MIB], take=[0])
    await world.pair(handled.append, arriving=lambda _: cutting)
    with pytest.raises(UnreachableError):
        await world.connections[0].request(PUSH, [bytes(24 * MIB)], deadline_s=30)
    await until(lambda: bool(world.disconnected))
    assert [piece for piece, _ in cutting.got] == [0]
    assert not handled
