"""Whole runs: the same roles through agents and by hand, and how long no example is counted when something is lost."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from statistics import median
from typing import Any

import psutil

from adamctl.bench.watched_run import Sample, WatchedRun, examples_per_s, small_experiment
from adamctl.errors import RunFailedError

TRAIN = {"passes": 1_000_000, "batch": 32}
SAME = ("--ps", "2", "--threads", "1", "--set", "cluster.apply_threads=1", "--set", "cluster.replication=2")
BY_HAND = ("--workers", "2", *SAME)
THROUGH_AGENTS = ("--hosts", "2", "--on", "local", *SAME)
WARM_S = 3.0
ROLE_S, HOST_S = 1.5, 5.0 + 1.0 + 2.0
"""The bars after the loss of a role, and of a host: G + D/4 + 2 s with the usual lease."""
WATCH_ROLE_S, WATCH_HOST_S = 10.0, 25.0


def stall_s(samples: Sequence[Sample], from_s: float, to_s: float) -> float:
    """Returns the longest time in which no example was counted, of what lies between two times."""
    steps = [after.at_s for before, after in pairwise(samples) if after.examples > before.examples]
    inside = [from_s, *(at_s for at_s in steps if from_s <= at_s <= to_s), to_s]
    return max(after - before for before, after in pairwise(inside))


async def throughput(rounds: int, seconds: float) -> dict[str, Any]:
    """Returns `ratio`, of the examples per second through agents and by hand: the median of rounds, each of both."""
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        experiment = small_experiment(folder, "hosts", **TRAIN)
        for _ in range(rounds):
            rates = {}
            for name, flags in (("agents", THROUGH_AGENTS), ("by_hand", BY_HAND)):
                async with WatchedRun((experiment, *flags)) as run:
                    from_s = await run.trains() + WARM_S
                    await asyncio.sleep(WARM_S + seconds + 1.0)
                    rates[name] = examples_per_s(run.samples, from_s, from_s + seconds)
            found.append(rates)
    ratios = [rates["agents"] / rates["by_hand"] for rates in found]
    return {"ratio": median(ratios), "rounds": found}


async def role_killed() -> dict[str, Any]:
    """Returns `stall_s` after a parameter server of a run on two hosts was killed."""
    return await _fault(_kill_server, WATCH_ROLE_S)


async def host_lost() -> dict[str, Any]:
    """Returns `stall_s` after all processes of one of two hosts were frozen, as by a cut of its network."""
    return await _fault(_freeze_host, WATCH_HOST_S)


async def _fault(fault: Any, watch_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as folder:
        experiment = small_experiment(folder, "hosts", **TRAIN)
        async with WatchedRun((experiment, *THROUGH_AGENTS), every_s=0.02) as run:
            await run.trains()
            await asyncio.sleep(WARM_S)
            usual_s = stall_s(run.samples, time.monotonic() - WARM_S, time.monotonic())
            frozen = fault(psutil.Process(run.pid))
            at_s = time.monotonic()
            try:
                await asyncio.sleep(watch_s)
                if run.has_ended:
                    raise RunFailedError("the run has ended by the fault; expected it to go on")
                return {"stall_s": stall_s(run.samples, at_s, at_s + watch_s), "usual_s": usual_s}
            finally:
                for process in frozen:
                    with suppress(psutil.Error):
                        process.kill()


def _kill_server(front: psutil.Process) -> list[psutil.Process]:
    _agent_with_server(front)[1].send_signal(signal.SIGKILL)
    return []


def _freeze_host(front: psutil.Process) -> list[psutil.Process]:
    agent, _ = _agent_with_server(front)
    frozen = [agent, *agent.children(recursive=True)]
    for process in frozen:
        process.suspend()
    return frozen


def _agent_with_server(front: psutil.Process) -> tuple[psutil.Process, psutil.Process]:
    """Returns the agent that has `ps-1`, and that server."""
    for agent in front.children():
        for child in agent.children():
            line = child.cmdline()
            if "--name" in line and line[line.index("--name") + 1] == "ps-1":
                return agent, child
    raise RunFailedError("expected an agent with ps-1; found none")
