"""A parameter server with more clients than it can serve: is its memory bounded, do all clients get equal shares?"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psutil

from adamctl.bench.ps.client import CALL_S, WEIGHTS, ClientProcess, Done, Order, all_do
from adamctl.bench.ps.cluster import PsCluster
from adamctl.bench.ps.job import weights_record
from adamctl.bench.report import make_report
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.net.limits import ServerLimits

PACKAGES = ("adamctl", "numpy", "uvloop", "msgspec")
CONNECTIONS = 64
PROCESSES = 4
SAMPLE_S = 0.05


def run_ps_stress(
    *,
    seconds: float = 60.0,
    model_bytes: int = 16_000_000,
    block_bytes: int = 1 << 20,
    connections: int = CONNECTIONS,
    processes: int = PROCESSES,
    apply_threads: int = 1,
    transport: str = "auto",
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the report that `adamctl bench ps-throughput --stress --json` prints.

    `connections` clients in `processes` processes push the whole model, each two pushes at a time. The server's memory
    quota is what it held before, a second buffer of each shard, and the bodies that its limits allow it to receive.

    Raises:
        ConfigurationError: the connections cannot be divided evenly.
        RunFailedError: a process could not be started.
    """
    if seconds <= 0:
        raise ConfigurationError(f"--seconds: expected more than 0; found {seconds:g}")
    if connections % processes:
        raise ConfigurationError(f"expected a multiple of {processes} connections; found {connections}")
    with ExitStack() as stack:
        progress(f"{connections} connections from {processes} processes push for {seconds:g} s")
        cluster = stack.enter_context(PsCluster(1, apply_threads))
        cluster.create_job(WEIGHTS, weights_record(model_bytes, block_bytes, 1))
        clients = [
            stack.enter_context(
                ClientProcess(cluster.controller, transport, number, (WEIGHTS,), connections // processes)
            )
            for number in range(processes)
        ]
        for client in clients:
            client.ready()
        server = cluster.processes()[0]
        before_bytes = _own_bytes(server)
        done, peak_bytes, errors = _watch(clients, server, Order("push", seconds))
        if not errors:
            all_do(clients[:1], Order("check weights", pushes=sum(done.pushes_by_client)))
    quota_bytes = before_bytes + model_bytes + ServerLimits().memory_bytes_max
    row = {
        "connections": connections,
        "processes": processes,
        "transport": transport,
        "apply_threads": apply_threads,
        "model_bytes": model_bytes,
        "seconds": done.seconds,
        "pushes": done.pushes,
        "gb_per_s": done.push_bytes / max(done.seconds, 1e-9) / 1e9,
        **_spread(done),
        "server_memory_before_bytes": before_bytes,
        "server_memory_peak_bytes": peak_bytes,
        "server_memory_quota_bytes": quota_bytes,
        "within_quota": peak_bytes <= quota_bytes,
        "errors": errors,
    }
    return make_report("ps-throughput-stress", PACKAGES, [row])


def _watch(clients: list[ClientProcess], server: psutil.Process, order: Order) -> tuple[Done, int, list[str]]:
    """Runs an order; returns its result, the server's peak resident memory and the errors."""
    for client in clients:
        client.start(order)
    peak_bytes, until_s = 0, time.monotonic() + order.seconds + CALL_S
    while time.monotonic() < until_s and not all(client.answered() for client in clients):
        peak_bytes = max(peak_bytes, _own_bytes(server))
        time.sleep(SAMPLE_S)
    total, errors = Done(), list[str]()
    for client in clients:
        try:
            done = client.finish(Order(order.do, CALL_S))
        except RunFailedError as error:
            errors.append(str(error))
            continue
        total.seconds = max(total.seconds, done.seconds)
        total.pushes += done.pushes
        total.push_bytes += done.push_bytes
        total.push_latencies_s += done.push_latencies_s
        total.pushes_by_client += done.pushes_by_client
    return total, max(peak_bytes, _own_bytes(server)), errors


def _own_bytes(process: psutil.Process) -> int:
    """Returns the process's own memory: without files and without mapped client memory."""
    info = process.memory_info()
    return int(info.rss - getattr(info, "shared", 0))


def _spread(done: Done) -> dict[str, Any]:
    """Latencies, and how evenly connections were served."""
    latencies = sorted(done.push_latencies_s)
    if not latencies:
        return {}
    least, most = min(done.pushes_by_client), max(done.pushes_by_client)
    return {
        "push_latency_p50_s": latencies[len(latencies) // 2],
        "push_latency_p99_s": latencies[min(len(latencies) * 99 // 100, len(latencies) - 1)],
        "push_latency_max_s": latencies[-1],
        "pushes_per_connection_min": least,
        "pushes_per_connection_max": most,
        "fairness_max_over_min": most / max(least, 1),
    }
