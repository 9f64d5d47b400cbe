"""How long pushes stay unacknowledged when a parameter server is lost (`adamctl bench failover`).

Three servers hold three copies of everything; one client pushes whole numbers to all parts of a model, one push after
another, each acknowledged by every in-sync copy. A fault hits the primary of some parts; the result is the time from
the fault to the acknowledgement of the first push that began after it. Then the server comes back, and the next round
waits until every part has its copies again. At the end the sums show whether every push was applied exactly once.

    kill    kill -9; peers of the process (the controllers, or with etcd the other servers) find its port closed
    stop    SIGSTOP for three leases: indistinguishable from a server whose machine is gone
    cut     nothing sent by it or to it arrives, for three leases; needs network namespaces
"""

from __future__ import annotations

import asyncio
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from adamctl.api.parameter_client.asynchronous import AsyncParameterClient
from adamctl.bench.failover.cluster import FailoverCluster, buckets_of, wait_whole
from adamctl.bench.report import make_report
from adamctl.errors import RunFailedError
from adamctl.launch.joining import find_controller
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import nodes_of
from adamctl.roles.controller.core.service.config import lease_config

Fault: TypeAlias = Literal["kill", "stop", "cut"]
FAULTS: tuple[Fault, ...] = ("kill", "stop", "cut")
PACKAGES = ("adamctl", "numpy", "uvloop")
SERVERS = 3
JOB = "failover"
KILL_BAR_S = 1.5
AWAY_LEASES = 3.0
WHOLE_S = 60.0
EXACT_MAX = 1 << 24
BETWEEN_PUSHES_S = 0.005


@dataclass(frozen=True)
class FailoverSettings:
    """What to measure: each fault with each lease, for `rounds` rounds. Raises ConfigurationError for a lease that a
    controller would refuse.
    """

    faults: Sequence[Fault] = FAULTS
    leases_s: Sequence[float] = (4.0, 1.0)
    rounds: int = 20
    model_bytes: int = 4_000_000
    config_store: str = ""
    """URL of an etcd cluster that keeps the configuration, instead of a controller started for the benchmark."""

    def __post_init__(self) -> None:
        for lease_s in self.leases_s:
            lease_config(lease_s, None)


def bar_s(fault: Fault, lease_s: float) -> float:
    """Returns the target: one second, plus the time of detection unless the death is reported at once."""
    if fault == "kill":
        return KILL_BAR_S
    config = lease_config(lease_s, None)
    return config.lost_after_s + config.beacon_interval_s + 1.0


def run_failover_benchmark(
    settings: FailoverSettings, progress: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Returns the report that `adamctl bench failover --json` prints.

    Raises:
        RunFailedError: a push was lost or applied twice, or copies did not come back.
        UnreachableError: the etcd cluster does not answer.
    """
    if settings.config_store:
        hello = make_hello("front", "bench")
        asyncio.run(find_controller(StreamTransport(), (settings.config_store,), hello, progress))
    results = []
    for lease_s in settings.leases_s:
        for fault in settings.faults:
            with FailoverCluster(SERVERS, lease_s, config_store=settings.config_store) as cluster:
                results.append(asyncio.run(_Series(cluster, fault, settings, progress).run()))
    return make_report("failover", PACKAGES, results)


class _Series:
    """Rounds of one fault with one lease."""

    def __init__(
        self, cluster: FailoverCluster, fault: Fault, settings: FailoverSettings, progress: Callable[[str], None]
    ) -> None:
        self._cluster, self._fault, self._settings, self._progress = cluster, fault, settings, progress
        self._acknowledged_s: list[tuple[float, float]] = []  # start and acknowledgement of each push
        self._enough = False
        self._failure: BaseException | None = None

    async def run(self) -> dict[str, Any]:
        rows = max(self._settings.model_bytes // 4000, SERVERS)
        async with AsyncParameterClient(self._cluster.url(JOB), deadline_s=120.0) as client:
            await client.register(
                {"weights": np.zeros((rows, 1000), np.float32)},
                servers=SERVERS,
                replication=SERVERS,
                acks="replicated",
            )
            pushing = asyncio.create_task(self._push(client, rows))
            try:
                away_s, whole_s = await self._rounds()
                self._enough = True
                await pushing
            finally:
                pushing.cancel()
                await asyncio.gather(pushing, return_exceptions=True)
            applied = await self._applied(client)
            await client.close(end=True)
        return {
            "case": f"{self._fault}, lease {self._cluster.lease_s:g} s",
            "rounds": len(away_s),
            "median_s": statistics.median(away_s),
            "worst_s": max(away_s),
            "bar_s": bar_s(self._fault, self._cluster.lease_s),
            "whole_again_median_s": statistics.median(whole_s),
            "pushes_acknowledged": len(self._acknowledged_s),
            "pushes_applied": applied,
            "rounds_s": [round(seconds, 3) for seconds in away_s],
        }

    async def _push(self, client: AsyncParameterClient, rows: int) -> None:
        """Pushes one after another until told to stop; the last one is acknowledged, too."""
        ones = {"weights": np.ones((rows, 1000), np.float32)}
        loop = asyncio.get_running_loop()
        try:
            while not self._enough:
                began_s = loop.time()
                await client.add(ones)
                await client.wait()
                self._acknowledged_s.append((began_s, loop.time()))
                await asyncio.sleep(BETWEEN_PUSHES_S)
        except Exception as error:
            self._failure = error

    async def _applied(self, client: AsyncParameterClient) -> int:
        """Returns how many pushes the parameters hold.

        Raises:
            RunFailedError: the last push failed, or an element does not hold exactly the acknowledged pushes.
        """
        self._raise_failure()
        told = len(self._acknowledged_s)
        if told >= EXACT_MAX:
            raise RunFailedError(f"{told} pushes are more than float32 counts exactly; run fewer --rounds")
        values = (await client.pull())["weights"]
        least, most = float(values.min()), float(values.max())
        if not least == most == told:
            raise RunFailedError(f"{told} pushes were acknowledged; the parameters hold {least:g} to {most:g} of them")
        return round(least)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RunFailedError(f"the client's push failed: {self._failure}") from self._failure

    # --- rounds -------------------------------------------------------------------------------------------------------

    async def _rounds(self) -> tuple[list[float], list[float]]:
        store = self._cluster.connect()
        away_s: list[float] = []
        whole_s: list[float] = []
        try:
            for number in range(self._settings.rounds):
                await wait_whole(store, JOB, SERVERS, WHOLE_S + 10 * self._cluster.lease_s)
                await self._next_push(asyncio.get_running_loop().time())
                primary = await self._primary(store, number)
                away_s.append(await self._round(primary))
                whole_s.append(await wait_whole(store, JOB, SERVERS, WHOLE_S + 10 * self._cluster.lease_s))
                self._progress(
                    f"{self._fault}, lease {self._cluster.lease_s:g} s, round {number + 1} of {self._settings.rounds}: "
                    f"{primary} away, acknowledged again after {away_s[-1]:.2f} s, whole after {whole_s[-1]:.1f} s more"
                )
        finally:
            await store.close()
        return away_s, whole_s

    async def _primary(self, store: Any, number: int) -> str:
        """Returns one of the servers that are primary of something."""
        primaries = sorted({record.primary for record in (await buckets_of(store, JOB)).values()})
        return primaries[number % len(primaries)]

    async def _round(self, node: str) -> float:
        """Causes the fault, and returns the time until a push that began afterwards was acknowledged."""
        loop = asyncio.get_running_loop()
        cluster = self._cluster
        before = await self._incarnation(node)
        began_s = loop.time()
        if self._fault == "kill":
            cluster.kill(node)
        elif self._fault == "stop":
            cluster.stop(node)
        else:
            assert cluster.links is not None
            await asyncio.to_thread(cluster.links.cut, node)
        away_s = await self._next_push(began_s)
        left_s = began_s + AWAY_LEASES * cluster.lease_s - loop.time()
        if self._fault != "kill":
            await asyncio.sleep(max(left_s, 0.0))
            if self._fault == "stop":
                cluster.go_on(node)
            else:
                assert cluster.links is not None
                await asyncio.to_thread(cluster.links.heal, node)
        await self._bring_back(node, before)
        return away_s

    async def _bring_back(self, node: str, before: int) -> None:
        """Returns when a server is a member again, by itself or, if it has ended, restarted as a supervisor would do.

        Raises:
            RunFailedError: neither happens.
        """
        cluster, loop = self._cluster, asyncio.get_running_loop()
        until_s = loop.time() + WHOLE_S
        while not await asyncio.to_thread(cluster.has_ended, node):
            if await self._incarnation(node) > before:
                return
            if loop.time() > until_s:
                raise RunFailedError(f"{node} has neither rejoined nor ended:\n{cluster.log_end(node)}")
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.start, node)
        await asyncio.to_thread(cluster.wait_serving, node)

    async def _incarnation(self, node: str) -> int:
        """Returns a server's incarnation as a member, 0 if it is not one."""
        store = self._cluster.connect()
        try:
            _, entries = await store.read("/nodes/")
        finally:
            await store.close()
        return next((record.incarnation for record in nodes_of(entries, "ps") if record.node == node), 0)

    async def _next_push(self, after_s: float) -> float:
        """Waits for the first push that began after a time; returns how long after that time it was acknowledged."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + WHOLE_S + 10 * self._cluster.lease_s
        while True:
            self._raise_failure()
            index = bisect_left(self._acknowledged_s, (after_s,))  # pushes are in start order
            if index < len(self._acknowledged_s):
                return self._acknowledged_s[index][1] - after_s
            if loop.time() > until_s:
                raise RunFailedError(f"no push was acknowledged for {until_s - after_s:.0f} s")
            await asyncio.sleep(0.005)
