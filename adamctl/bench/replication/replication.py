"""The cost of copies of buckets: three servers on this machine, the same pushes to one copy and to three.

    whole   every shard is pushed once per round, and a round is acknowledged before the next, so that nothing folds
    hot     factors of one example, small on the wire, change the same few shards at rising rates; the cost of copies
            then depends on how many shards are dirty, not on how often they change

Rounds of one copy and of three alternate, and the best of each counts. All sums are checked at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from adamctl.bench.child import Child, Pipe
from adamctl.bench.ps.client import acknowledged, push_of
from adamctl.bench.ps.cluster import PsCluster
from adamctl.bench.ps.job import FactorsSize, check_factors, check_weights, factors_record, weights_record
from adamctl.bench.report import make_report
from adamctl.bench.role_processes import connect_store, role_hello
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.net.address import kind_named
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.ps.client.parameter_client import ParameterClient, PendingPush, PushSet

PACKAGES = ("adamctl", "numpy", "uvloop", "msgspec")
SERVERS = 3
COPIES = 3
HOT_CUT_FOR = 1
"""Servers that the layout assumes: fewer than three, for larger shards, so that bytes dominate."""
ATTACH_S = 60.0
CALL_S = 120.0
SETTLE_S = 0.5
UNDER_WAY_MAX = 64
ONE, THREE, HOT = "one-copy", "three-copies", "hot"


@dataclass(frozen=True)
class ReplicationSettings:
    """What to measure.

    Attributes:
        model_bytes: size of the weights of `whole`.
        hot_bytes: size of the shards that stay dirty in `hot`.
        pushes_per_s: rate of `hot` at 1x.
        factors_of_rate: the other rates, as multiples of that.
        rounds, seconds: rounds of each side, and their length.
    """

    model_bytes: int = 32_000_000
    hot_bytes: int = 8 << 20
    pushes_per_s: float = 8.0
    factors_of_rate: tuple[int, ...] = (1, 4, 16)
    rounds: int = 5
    seconds: float = 2.0
    transport: str = "tcp"

    def __post_init__(self) -> None:
        """Raises ConfigurationError for settings that cannot be measured."""
        for flag, value in (
            ("--model-megabytes", self.model_bytes),
            ("--rate", self.pushes_per_s),
            ("--rounds", self.rounds),
            ("--seconds", self.seconds),
        ):
            if value <= 0:
                raise ConfigurationError(f"{flag}: expected more than 0; found {value:g}")

    @property
    def hot_size(self) -> FactorsSize:
        inputs = 1024
        return FactorsSize(max(self.hot_bytes // 4 // inputs, 1), inputs, 1)


def run_replication_benchmark(
    settings: ReplicationSettings, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures and returns the report that `adamctl bench replication --json` prints.

    Raises:
        RunFailedError: a process ended, a push was refused, or the values are not the sum of the pushes.
    """
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        progress(f"starting {SERVERS} servers")
        cluster = stack.enter_context(PsCluster(SERVERS, 1))
        weights = weights_record(settings.model_bytes, 1 << 20, SERVERS)
        cluster.create_job(ONE, weights)
        cluster.create_job(THREE, weights, COPIES)
        cluster.create_job(HOT, factors_record(settings.hot_size, HOT_CUT_FOR), COPIES)
        child = stack.enter_context(Child(_serve, cluster.controller, settings.transport, settings.hot_size))
        child.receive(ATTACH_S + CALL_S)
        results += _measure_whole(settings, cluster, child, progress)
        results += _measure_hot(settings, cluster, child, progress)
        child.ask(Order("check"), CALL_S)
    return make_report("replication", PACKAGES, results)


def _measure_whole(
    settings: ReplicationSettings, cluster: PsCluster, child: Child, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    best = dict.fromkeys((ONE, THREE), 0.0)
    for job in best:
        child.ask(Order(job, seconds=0.2), CALL_S)
    for number in range(settings.rounds):
        progress(f"whole: round {number + 1} of {settings.rounds}")
        for job in best:
            done: Done = child.ask(Order(job, seconds=settings.seconds), settings.seconds + CALL_S)
            best[job] = max(best[job], done.pushed_bytes / done.seconds)
    return [
        {
            "case": "whole",
            "model_bytes": settings.model_bytes,
            "transport": settings.transport,
            "one_copy_gb_per_s": best[ONE] / 1e9,
            "three_copies_gb_per_s": best[THREE] / 1e9,
            "ratio": best[THREE] / best[ONE],
        }
    ]


def _measure_hot(
    settings: ReplicationSettings, cluster: PsCluster, child: Child, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    rows = []
    child.ask(Order(HOT, seconds=0.2, pushes_per_s=settings.pushes_per_s), CALL_S)
    for factor in settings.factors_of_rate:
        rate = settings.pushes_per_s * factor
        progress(f"hot: {rate:g} pushes/s")
        time.sleep(SETTLE_S)
        before = _shipped(cluster)
        done: Done = child.ask(Order(HOT, seconds=settings.seconds, pushes_per_s=rate), settings.seconds + CALL_S)
        after = _shipped(cluster)
        shipped_bytes, records = after[0] - before[0], after[1] - before[1]
        rows.append(
            {
                "case": "hot",
                "rate": f"{factor}x",
                "dirty_bytes": settings.hot_bytes,
                "pushes_per_s": done.pushes / done.seconds,
                "changed_gb_per_s": done.pushes * settings.hot_bytes / done.seconds / 1e9,
                "shipped_gb_per_s": shipped_bytes / done.seconds / 1e9,
                "records_per_s": records / done.seconds,
                "shipped_per_change": shipped_bytes / (COPIES - 1) / max(done.pushes * settings.hot_bytes, 1),
                "latency_p50_s": done.latency_p50_s,
            }
        )
    return rows


def _shipped(cluster: PsCluster) -> tuple[int, int]:
    """Returns the bytes and records that all servers have sent to other servers."""
    found = [status["replication"] for status in cluster.status()]
    return sum(int(one["bytes"]) for one in found), sum(int(one["records"]) for one in found)


# --- in the process ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """An order to the client process: push to a job for some seconds, one push at a time or at a given rate."""

    job: str
    seconds: float = 0.0
    pushes_per_s: float = 0.0


@dataclass(frozen=True)
class Done:
    """The result of an order."""

    seconds: float
    pushes: int
    pushed_bytes: int
    latency_p50_s: float


def _serve(controller: str, transport: str, hot: FactorsSize, pipe: Pipe) -> None:
    run(_work(controller, transport, hot, pipe))


async def _work(controller: str, transport: str, hot: FactorsSize, pipe: Pipe) -> None:
    store = connect_store(controller)
    sides = {name: _Side(store, transport, name, number, hot) for number, name in enumerate((ONE, THREE, HOT))}
    try:
        for side in sides.values():
            await side.client.attach(deadline_s=ATTACH_S)
        pipe.send("ready")
        while (order := await asyncio.to_thread(pipe.recv)) is not None:
            if order.job == "check":
                for side in sides.values():
                    await side.check()
                pipe.send("checked")
            else:
                pipe.send(await sides[order.job].push(order))
    except AdamctlError as error:
        pipe.send(RunFailedError(f"the client: {error}"))
    finally:
        for side in sides.values():
            await side.client.close()
        await store.close()


class _Side:
    """One job, the values pushed to it, and the number of pushes."""

    def __init__(self, store: Any, transport: str, job: str, number: int, hot: FactorsSize) -> None:
        hello = role_hello("worker", f"bench-{number}", number + 1)
        self.client = ParameterClient(StreamTransport(kind=kind_named(transport)), lambda: hello, store, job)
        self._job, self._hot, self._pushes = job, hot, 0
        self._push: PushSet | None = None

    async def push(self, order: Order) -> Done:
        if self._push is None:
            self._push = push_of(self.client, self._hot if self._job == HOT else None)
        push, latencies_s = self._push, list[float]()
        under_way: deque[tuple[float, PendingPush]] = deque()
        began_s = time.perf_counter()
        count = 0
        while time.perf_counter() - began_s < order.seconds:
            due_s = began_s + count / order.pushes_per_s if order.pushes_per_s else 0.0
            while under_way and (not order.pushes_per_s or len(under_way) >= UNDER_WAY_MAX or under_way[0][1].done):
                latencies_s.append(await _settled(*under_way.popleft()))
            await asyncio.sleep(max(due_s - time.perf_counter(), 0.0))
            under_way.append((time.perf_counter(), self.client.start_push(push)))
            count += 1
        while under_way:
            latencies_s.append(await _settled(*under_way.popleft()))
        self._pushes += count
        seconds = time.perf_counter() - began_s
        return Done(seconds, count, 4 * count * self.client.layout.parameter_count, float(np.median(latencies_s)))

    async def check(self) -> None:
        """Raises RunFailedError unless every parameter is the sum of the pushes."""
        flat = np.zeros(self.client.layout.flat_size, np.float32)
        await self.client.pull(flat, deadline_s=CALL_S, exact=True)
        if self._job == HOT:
            check_factors(self.client.layout, flat, self._hot, self._pushes)
        else:
            check_weights(self.client.layout, flat, self._pushes)


async def _settled(started_s: float, pending: PendingPush) -> float:
    """Returns how long a push took. Raises RunFailedError if a part of it was refused."""
    await acknowledged(pending, CALL_S)
    return time.perf_counter() - started_s
