"""Probes: soon after a connection has closed, again while nobody has come back, several at a time."""

from __future__ import annotations

import asyncio
import logging

from adamctl.config.records import NodeRecord
from adamctl.net.address import host_id
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.testing.virtual_clock import run_virtual
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.core.service.events import Gone
from adamctl.roles.controller.probing import Probes, has_ended
from adamctl.roles.failure_detector import PROBE_AGAIN_S, PROBE_SOON_S, PROBES_MAX


def node(name: str, incarnation: int = 1, addresses: tuple[str, ...] = ()) -> NodeRecord:
    return NodeRecord(name, "ps", incarnation, addresses, host_id(), 1)


def test_nodes_are_probed_together_soon_and_until_they_are_gone_or_back() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        asked: list[tuple[str, float]] = []
        there, gone = {"a", "b"}, []
        begun_s = loop.time()

        async def probe(record: NodeRecord) -> bool:
            asked.append((record.node, round(loop.time() - begun_s, 6)))
            await asyncio.sleep(0.4)
            return len(asked) > 2

        def heard(event: Gone) -> None:
            gone.append(event)
            there.discard(event.node)

        probes = Probes(probe, lambda: [node(name) for name in sorted(there)], heard)
        probes.later(PROBE_AGAIN_S)
        probes.later(PROBE_SOON_S)
        probes.later(PROBE_AGAIN_S)
        await asyncio.sleep(10)
        again_s = PROBE_SOON_S + PROBE_AGAIN_S
        assert asked == [("a", PROBE_SOON_S), ("b", PROBE_SOON_S), ("a", again_s), ("b", again_s)]
        assert gone == [Gone("a", 1), Gone("b", 1)]
        probes.close()

    run_virtual(scenario())


def test_probes_are_bounded_and_one_node_is_probed_once_at_a_time() -> None:
    async def scenario() -> None:
        asked: list[str] = []

        async def probe(record: NodeRecord) -> bool:
            asked.append(record.node)
            await asyncio.sleep(1)
            return False

        probes = Probes(probe, list, lambda event: None)
        for number in range(2 * PROBES_MAX):
            probes.now(node(f"n{number}"))
            probes.now(node(f"n{number}"))
        await asyncio.sleep(0.5)
        assert len(asked) == len(set(asked)) == PROBES_MAX
        probes.close()

    run_virtual(scenario())


async def test_a_process_has_ended_when_nobody_or_somebody_else_is_where_it_was() -> None:
    transport = StreamTransport()
    context = RoleContext(
        role="controller",
        node="controller-0",
        options={},
        transport=transport,
        controller=None,
        stopping=asyncio.Event(),
        log=logging.getLogger("adamctl.test"),
    )
    server = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0", 7), lambda request: None)
    assert not await has_ended(context, node("ps-0", 7, server.addresses))
    assert await has_ended(context, node("ps-0", 6, server.addresses)), "the next process of that name"
    assert await has_ended(context, node("ps-1", 7, server.addresses))
    assert not await has_ended(context, node("ps-1", 7)), "nobody can say"
    await server.close()
    assert await has_ended(context, node("ps-0", 7, server.addresses))
