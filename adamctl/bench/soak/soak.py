"""A cluster under faults for hours (`adamctl bench soak`): nothing acknowledged is lost, and no process grows.

Three controllers, three servers with stores and three copies of everything, and clients that push ones to all of a
model, one push after another. Every half minute something happens to one process (`plan.py`), and when all copies are
there again, something else may. The cluster's metrics are scraped every second, and resident memory is taken from them.
At the end each value of the model is the number of acknowledged pushes, exactly.

All is written down as it goes (`record.py`). If this process ends before, the same command goes on where it was: the
servers come back from their stores, and the values are compared with the account of the pushes before any new one.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from adamctl.api.parameter_client.asynchronous import AsyncParameterClient
from adamctl.bench.failover.cluster import wait_whole
from adamctl.bench.metrics import scrape
from adamctl.bench.report import make_report
from adamctl.bench.soak.cluster import METRICS, SoakCluster, free_ports
from adamctl.bench.soak.plan import GROWTH_MIB_PER_HOUR_MAX, SERVERS, Fault, fault_of, growth, problem_of
from adamctl.bench.soak.record import FAULTS, SAMPLES, AccountFile, Record, State
from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.roles.folder_lock import FolderLock

JOB = "soak"
COPIES = 3
CLIENTS = 2
LEASE_S = 4.0
FAULT_EVERY_S = 30.0
QUIET_FIRST_S = 5.0
SCRAPE_EVERY_S = 1.0
SAMPLE_EVERY_S = 10.0
TELL_EVERY_S = 60.0
SHAPE = (256, 1000)
PAUSE_S = 0.01
WHOLE_S = 300.0
CALL_S = 300.0
OWN = "clients"
"""This process: the clients, and the links between all others."""
PACKAGES = ("adamctl", "numpy", "uvloop", "lmdb")
Say = Callable[[str], None]


@dataclass(frozen=True)
class SoakSettings:
    """What a soak does; of one that goes on, all but the folder are as they were."""

    folder: Path
    seconds: float
    seed: int = 1
    acks: str = "durable"
    fault_every_s: float = FAULT_EVERY_S


def run_soak(settings: SoakSettings, say: Say) -> dict[str, Any]:
    """Runs a soak to its end, or what is left of it; returns the report, which is also written to the folder.

    Raises:
        ConfigurationError: the folder cannot be used, or its soak is over.
        RunFailedError: something acknowledged was lost, a client's push failed, or copies did not come back.
    """
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"--folder {settings.folder}: cannot be made: {error.strerror}") from error
    lock = FolderLock(settings.folder, "--folder", "soak")
    try:
        record = Record(settings.folder)
        state = record.state()
        if state is not None and state.done:
            raise ConfigurationError(
                f"the soak in {settings.folder} is over; its report is there; give another --folder"
            )
        if state is None:
            state = State(seconds=settings.seconds, seed=settings.seed, acks=settings.acks, ports=free_ports())
        else:
            say(f"going on after {state.elapsed_s / 60:.1f} of {state.seconds / 60:.1f} minutes")
        return asyncio.run(Soak(record, state, settings.fault_every_s, say).run())
    finally:
        lock.release()


class Soak:
    """One start of a soak."""

    def __init__(self, record: Record, state: State, fault_every_s: float, say: Say) -> None:
        self._record, self._state, self._say = record, state, say
        self._fault_every_s = fault_every_s
        self._before_s = state.elapsed_s
        self._pushing = asyncio.Event()
        self._failure: BaseException | None = None
        self._resident_mib: dict[str, float] = {}
        self._scrapes = self._up = 0
        self._own = psutil.Process()

    @property
    def _elapsed_s(self) -> float:
        return self._before_s + time.monotonic() - self._began_s

    async def run(self) -> dict[str, Any]:
        state = self._state
        self._began_s = time.monotonic()
        async with SoakCluster(self._record.folder.absolute(), state.ports, LEASE_S) as cluster:
            self._cluster = cluster
            async with AsyncParameterClient(cluster.url(JOB), deadline_s=CALL_S) as reader:
                self._reader = reader
                await reader.register(
                    {"weights": np.zeros(SHAPE, np.float32)},
                    servers=len(SERVERS), replication=COPIES, acks=state.acks,  # type: ignore[arg-type]
                )  # fmt: skip
                await self._take_up()
                await self._work()
                await self._check()
            return self._report()

    # --- what was before ----------------------------------------------------------------------------------------------

    async def _take_up(self) -> None:
        """Checks what the starts before have pushed, and begins an account of this one.

        Pushes on their way when this process was ended may have been applied or not, each part of them for itself; so
        the values found are the base of what comes.
        """
        state, record = self._state, self._record
        values = await self._values()
        if state.starts and (base := record.base(state.starts)) is not None:
            account = AccountFile(record.account_file(state.starts), CLIENTS)
            problem = problem_of(values, base, account.total)
            account.close()
            if problem and state.acks == "durable":
                raise RunFailedError(f"after the start before: {problem}")
            self._say(f"what was pushed before is there: {account.total.acknowledged} pushes")
        record.save_base(state.starts + 1, values)
        state.starts += 1
        self._account = AccountFile(record.account_file(state.starts), CLIENTS)
        record.save(state)

    async def _values(self) -> NDArray[np.float32]:
        values: NDArray[np.float32] = np.array((await self._reader.pull())["weights"])
        return values

    # --- the work -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Pushes, scrapes and causes faults until the time is over, and every copy is there again."""
        self._pushing.set()
        pushing = [asyncio.create_task(self._push(number)) for number in range(CLIENTS)]
        beside = [asyncio.create_task(self._scrape()), asyncio.create_task(self._tell())]
        try:
            await self._cause_faults()
            self._pushing.clear()
            await asyncio.gather(*pushing)
        finally:
            for task in (*pushing, *beside):
                task.cancel()
            await asyncio.gather(*pushing, *beside, return_exceptions=True)
            self._save()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RunFailedError(f"{type(self._failure).__name__}: {self._failure}") from self._failure

    def _save(self) -> None:
        self._state.elapsed_s = self._elapsed_s
        self._record.save(self._state)

    async def _push(self, number: int) -> None:
        """Pushes one after another; a failed push ends the soak."""
        ones = {"weights": np.ones(SHAPE, np.float32)}
        try:
            async with AsyncParameterClient(self._cluster.url(JOB), deadline_s=CALL_S) as client:
                await client.register()
                while self._pushing.is_set():
                    self._account.sends(number)
                    await client.add(ones, copy=False)
                    await client.wait()
                    self._account.acknowledged(number)
                    await asyncio.sleep(PAUSE_S)
                if client.rolled_back:
                    raise RunFailedError(f"{client.rolled_back} acknowledged shard pushes of a client were rolled back")
        except Exception as error:
            self._failure = self._failure or error

    async def _cause_faults(self) -> None:
        store = self._cluster.connect()
        try:
            await self._pause(QUIET_FIRST_S)
            while self._elapsed_s < self._state.seconds:
                began_s = time.monotonic()
                await self._one_fault(store)
                self._save()
                await self._pause(self._fault_every_s - (time.monotonic() - began_s))
            await wait_whole(store, JOB, COPIES, WHOLE_S)
        finally:
            await store.close()

    async def _pause(self, seconds: float) -> None:
        """Waits, not beyond the end, unless a client fails."""
        until_s = time.monotonic() + min(seconds, self._state.seconds - self._elapsed_s)
        while time.monotonic() < until_s:
            self._raise_failure()
            await asyncio.sleep(min(0.2, max(until_s - time.monotonic(), 0.001)))
        self._raise_failure()

    async def _one_fault(self, store: Any) -> None:
        """Causes the next fault; returns when a push was acknowledged after it and every copy is there again."""
        fault = fault_of(self._state.seed, self._state.faults, LEASE_S)
        self._state.faults += 1
        at_s, acknowledged = self._elapsed_s, self._account.total.acknowledged
        causing = asyncio.create_task(self._cause(fault))
        try:
            await self._next_push(acknowledged + CLIENTS, fault)  # beyond those that were on their way
            pushed_s = self._elapsed_s - at_s
        finally:
            await causing
        await wait_whole(store, JOB, COPIES, WHOLE_S)
        whole_s = self._elapsed_s - at_s
        self._record.add(
            FAULTS,
            {
                "at_s": round(at_s, 3), "kind": fault.kind, "node": fault.node, "seconds": fault.seconds,
                "pushed_after_s": round(pushed_s, 3), "whole_after_s": round(whole_s, 3),
            },
        )  # fmt: skip

    async def _next_push(self, acknowledged: int, fault: Fault) -> None:
        """Waits until more pushes are acknowledged."""
        until_s = time.monotonic() + WHOLE_S
        while self._account.total.acknowledged <= acknowledged:
            self._raise_failure()
            if time.monotonic() > until_s:
                raise RunFailedError(f"no push was acknowledged for {WHOLE_S:g} s after {fault}")
            await asyncio.sleep(0.02)

    async def _cause(self, fault: Fault) -> None:
        cluster, node = self._cluster, fault.node
        if fault.kind in ("kill", "controller killed"):
            cluster.signal(node, signal.SIGKILL)
            return
        if fault.kind == "cut":
            cluster.links.cut_off.add(node)
        elif fault.kind == "disk full":
            cluster.fill_disk(node, True)
        else:
            cluster.signal(node, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            if fault.kind == "cut":
                cluster.links.cut_off.discard(node)
            elif fault.kind == "disk full":
                cluster.fill_disk(node, False)
            else:
                cluster.signal(node, signal.SIGCONT)

    # --- metrics ------------------------------------------------------------------------------------------------------

    async def _scrape(self) -> None:
        sampled_s = -SAMPLE_EVERY_S
        pushes, since_s = self._account.total.acknowledged, time.monotonic()
        while True:
            with suppress(OSError, TimeoutError, AdamctlError):
                text = await scrape(self._cluster.metrics_url)
                self._resident_mib |= resident_mib(text)
                self._up, self._scrapes = text.count("adamctl_node_up{") - text.count("} 0.0\n"), self._scrapes + 1
            now_s = time.monotonic()
            if now_s - sampled_s >= SAMPLE_EVERY_S:
                sampled_s, done = now_s, self._account.total.acknowledged
                self._sample((done - pushes) / max(now_s - since_s, 1e-3))
                pushes, since_s = done, now_s
                self._resident_mib = {}
            await asyncio.sleep(SCRAPE_EVERY_S)

    def _sample(self, pushes_per_s: float) -> None:
        resident = dict(self._resident_mib)
        with suppress(psutil.Error, KeyError):
            resident[METRICS] = psutil.Process(self._cluster.pids()[METRICS]).memory_info().rss / 2**20
        resident[OWN] = self._own.memory_info().rss / 2**20
        self._record.add(
            SAMPLES,
            {
                "at_s": round(self._elapsed_s, 3),
                "since_start_s": round(time.monotonic() - self._began_s, 3),
                "pushes_per_s": round(pushes_per_s, 3),
                "resident_mib": {node: round(mib, 3) for node, mib in sorted(resident.items())},
            },
        )
        self._save()

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            account = self._account.total
            most = max(self._resident_mib.items(), key=lambda one: one[1], default=("-", 0.0))
            self._say(
                f"{self._elapsed_s / 60:.1f} of {self._state.seconds / 60:.1f} min: {account.acknowledged} pushes, "
                f"{self._state.faults} faults, {self._scrapes} scrapes; largest {most[0]} {most[1]:.0f} MiB"
            )

    # --- the end ------------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        """Raises RunFailedError: a value is not what the account says."""
        base = self._record.base(self._state.starts)
        assert base is not None
        problem = problem_of(await self._values(), base, self._account.total)
        if problem:
            raise RunFailedError(problem)
        if not self._scrapes:
            raise RunFailedError("the metrics server answered no scrape")

    def _report(self) -> dict[str, Any]:
        state, record = self._state, self._record
        slopes = growth(record.samples())
        faults = list(record.lines(FAULTS))
        accounts = [AccountFile(record.account_file(start), CLIENTS) for start in range(1, state.starts + 1)]
        result = {
            "case": f"{COPIES} servers, {COPIES} copies, {state.acks}",
            "minutes": round(state.elapsed_s / 60, 2),
            "faults": len(faults),
            "faults_by_kind": {kind: sum(f["kind"] == kind for f in faults) for kind in {f["kind"] for f in faults}},
            "pushes_acknowledged": sum(account.total.acknowledged for account in accounts),
            "pushes_lost": 0,
            "pushed_after_s_worst": max((fault["pushed_after_s"] for fault in faults), default=0.0),
            "whole_after_s_worst": max((fault["whole_after_s"] for fault in faults), default=0.0),
            "starts": state.starts,
            "ends": dict(self._cluster.ends),
            "growth_mib_per_hour": {node: round(slope, 2) for node, slope in slopes.items()},
            "growth_bar_mib_per_hour": GROWTH_MIB_PER_HOUR_MAX,
            "meets": all(slope <= GROWTH_MIB_PER_HOUR_MAX for slope in slopes.values()) if slopes else None,
        }
        for account in accounts:
            account.close()
        report = make_report("soak", PACKAGES, [result])
        record.save_report(report)
        state.done = True
        record.save(state)
        return report


def resident_mib(text: str) -> dict[str, float]:
    """Returns node -> MiB from what a metrics server said."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line.startswith("adamctl_process_resident_memory_bytes{"):
            labels, _, value = line.rpartition(" ")
            node = labels.partition('node="')[2].partition('"')[0]
            found[node] = float(value) / 2**20
    return found
