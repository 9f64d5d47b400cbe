"""How far past clients slow down a client that still pushes: small shards with copies remember more and more of them.

Each past client has pushed to every shard once. Then a live client pushes to all shards, one push after another, in
turn to a job whose shards remember no other client and to a job whose shards remember all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from adamctl.bench.child import Child, Pipe
from adamctl.bench.ps.client import acknowledged, push_of
from adamctl.bench.ps.cluster import PsCluster
from adamctl.bench.ps.job import check_weights, weights_record
from adamctl.bench.report import make_report
from adamctl.bench.role_processes import connect_store, role_hello
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.net.address import kind_named
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.ps.client.parameter_client import ParameterClient, PushSet
from adamctl.roles.ps.core.exactly_once import CLIENTS_MAX

PACKAGES = ("adamctl", "numpy", "uvloop", "msgspec")
SERVERS = COPIES = 3
FRESH, REMEMBERING = "fresh", "remembering"
SHARD_BYTES = 4 << 10
CALL_S = 120.0
AT_ONCE = 8
"""Past clients that join and leave together."""
BETWEEN = CLIENTS_MAX // 2
"""Past clients between two pushes of the live one: a client that rests while more come than a shard remembers would be
forgotten."""
FIRST_INCARNATION = 1000


@dataclass(frozen=True)
class PastClientsSettings:
    """What to measure.

    Attributes:
        clients: number of past clients.
        shards: number of shards of 4 KiB.
        rounds, seconds: rounds of each side, and their length.
    """

    clients: int = 900
    shards: int = 300
    rounds: int = 5
    seconds: float = 1.0
    transport: str = "tcp"

    def __post_init__(self) -> None:
        """Raises ConfigurationError for settings that cannot be measured."""
        for flag, value in (
            ("--past-clients", self.clients),
            ("--shards", self.shards),
            ("--rounds", self.rounds),
            ("--seconds", self.seconds),
        ):
            if value <= 0:
                raise ConfigurationError(f"{flag}: expected more than 0; found {value:g}")


def run_past_clients_benchmark(
    settings: PastClientsSettings, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures and returns the report that `adamctl bench replication --past-clients N --json` prints.

    Raises:
        RunFailedError: a process ended, a push was refused, or the values are not the sum of the pushes.
    """
    best = dict.fromkeys((FRESH, REMEMBERING), float("inf"))
    with ExitStack() as stack:
        progress(f"starting {SERVERS} servers")
        cluster = stack.enter_context(PsCluster(SERVERS, 1))
        record = weights_record(settings.shards * SHARD_BYTES, SHARD_BYTES, SERVERS)
        for job in best:
            cluster.create_job(job, record, COPIES)
        progress(f"{settings.clients} clients join and leave")
        child = stack.enter_context(Child(_serve, cluster.controller, settings))
        child.receive(CALL_S + settings.clients)
        for number in range(settings.rounds):
            progress(f"round {number + 1} of {settings.rounds}")
            for job in best:
                best[job] = min(best[job], child.ask(job, settings.seconds + CALL_S))
        child.ask("check", CALL_S)
    row = {
        "case": "past-clients",
        "clients": settings.clients,
        "shards": settings.shards,
        "transport": settings.transport,
        "fresh_s": best[FRESH],
        "remembering_s": best[REMEMBERING],
        "ratio": best[REMEMBERING] / best[FRESH],
    }
    return make_report("replication", PACKAGES, [row])


# --- in the process ---------------------------------------------------------------------------------------------------


def _serve(controller: str, settings: PastClientsSettings, pipe: Pipe) -> None:
    run(_work(controller, settings, pipe))


async def _work(controller: str, settings: PastClientsSettings, pipe: Pipe) -> None:
    store = connect_store(controller)

    def client(job: str, number: int) -> ParameterClient:
        hello = role_hello("worker", f"bench-{number}", FIRST_INCARNATION + number)
        return ParameterClient(StreamTransport(kind=kind_named(settings.transport)), lambda: hello, store, job)

    sides = {job: client(job, 0) for job in (FRESH, REMEMBERING)}
    pushes: dict[str, PushSet] = {}
    pushed = dict.fromkeys(sides, 0)

    async def push(side: ParameterClient) -> None:
        await acknowledged(side.start_push(pushes[side.job]), CALL_S)
        pushed[side.job] += 1

    async def come_and_go(number: int) -> None:
        past = client(REMEMBERING, number)
        try:
            await past.attach(deadline_s=CALL_S)
            await push(past)
        finally:
            await past.close()

    try:
        for job, side in sides.items():
            await side.attach(deadline_s=CALL_S)
            pushes[job] = push_of(side, None)
            await push(side)
        for first in range(1, settings.clients + 1, AT_ONCE):
            last = min(first + AT_ONCE - 1, settings.clients)
            await asyncio.gather(*(come_and_go(number) for number in range(first, last + 1)))
            if last // BETWEEN > (first - 1) // BETWEEN:
                await push(sides[REMEMBERING])
        pipe.send("ready")
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            if order == "check":
                for job, side in sides.items():
                    flat = np.zeros(side.layout.flat_size, np.float32)
                    await side.pull(flat, deadline_s=CALL_S, exact=True)
                    check_weights(side.layout, flat, pushed[job])
                pipe.send("checked")
                continue
            began_s, before = perf_counter(), pushed[order]
            while (seconds := perf_counter() - began_s) < settings.seconds or pushed[order] == before:
                await push(sides[order])
            pipe.send(seconds / (pushed[order] - before))
    except AdamctlError as error:
        pipe.send(RunFailedError(f"the client: {error}"))
    finally:
        for side in sides.values():
            await side.close()
        await store.close()
