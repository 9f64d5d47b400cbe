"""What scraping metrics costs a run (`adamctl bench metrics`), in processor time, as machines are shared.

`adamctl train` trains in processes of its own, and `adamctl metrics serve` beside it. Periods with and without scraping
follow each other in pairs, with alternating order; of each the processor seconds of the roles and the examples trained
on are known. Scraping once a second costs less than two periods differ by chance, so in the part `amplified` the
cluster is scraped as often as asked, and the extra processor time of one scrape follows; `each_second` measures the bar
as it is said, for comparison.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from adamctl.bench.bars import Bar, Progress, row_of
from adamctl.bench.report import make_report
from adamctl.bench.watched_run import WatchedRun, examples_at, small_experiment
from adamctl.errors import RunFailedError
from adamctl.kernels.threads import available_cores

PACKAGES = ("adamctl", "prometheus-client", "numpy")
BAR = Bar("processor time of one scrape, of a second of all cores", 0.005)
START_S = 30.0
SETTLE_S = 1.0
PASSES = 1_000_000


@dataclass(frozen=True)
class Period:
    """Some seconds of training. `roles_s`, `server_s`: processor time of the roles, and of the metrics server."""

    seconds: float
    examples: float
    roles_s: float
    server_s: float
    scrapes: int


def extra_of(pairs: Sequence[tuple[Period, Period]], cores: int) -> dict[str, Any]:
    """Returns what scraping cost in pairs of periods (with, without).

    `ratio` is the processor time of one scrape, of the roles and of the metrics server, as a share of what all cores
    have in a second: so much throughput a run loses that keeps them all busy, if it is scraped once a second.
    `roles_ratio` leaves out the server's own time, which may be spent on another machine. Of the roles it is the time
    beyond that which the same number of examples takes without scraping.
    """
    roles_s, own_s = [], []
    for scraped, quiet in pairs:
        expected_s = quiet.roles_s * scraped.examples / quiet.examples
        roles_s.append((scraped.roles_s - expected_s) / scraped.scrapes)
        own_s.append((scraped.server_s - quiet.server_s) / scraped.scrapes)
    both_s = [one + other for one, other in zip(roles_s, own_s, strict=True)]
    return {
        "ratio": statistics.median(both_s) / cores,
        "roles_ratio": statistics.median(roles_s) / cores,
        "spread": (min(both_s) / cores, max(both_s) / cores),
        "pairs": len(pairs),
        "scrapes": sum(scraped.scrapes for scraped, _ in pairs),
        "roles_ms_per_scrape": 1000 * statistics.median(roles_s),
        "server_ms_per_scrape": 1000 * statistics.median(own_s),
        "cores": cores,
        "busy_cores": statistics.median(quiet.roles_s / quiet.seconds for _, quiet in pairs),
    }


def run_metrics_benchmark(
    seconds: float, pairs: int, rate_per_s: float, experiment: str = "", progress: Progress = lambda line: None
) -> dict[str, Any]:
    """Returns the report that `adamctl bench metrics --json` prints.

    Args:
        seconds: length of a period.
        rate_per_s: scrapes per second of the part `amplified`.
        experiment: file of what to train; without it, a small network on handwritten digits.

    Raises:
        RunFailedError: the run ended, or the metrics server does not come up.
    """
    return asyncio.run(_measure(seconds, pairs, rate_per_s, experiment, progress))


async def _measure(
    seconds: float, pairs: int, rate_per_s: float, experiment: str, progress: Progress
) -> dict[str, Any]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="adamctl-bench-") as place:
        small = small_experiment(place, "scraped", evaluate_every=PASSES, checkpoint_every=PASSES)
        async with WatchedRun((experiment or small, "--passes", str(PASSES))) as run:
            await run.trains()
            async with _metrics_server(await run.address("controller"), run.token) as (pid, url):
                for name, rate in (("amplified", rate_per_s), ("each_second", 1.0)):
                    load = os.getloadavg()[0]
                    measured = [await _pair(run, pid, url, seconds, rate, bool(n % 2)) for n in range(pairs)]
                    rows.append(row_of(name, BAR, extra_of(measured, available_cores()), load))
                    progress(f"{name}: {rows[-1]['ratio']:.3%} of all cores, {pairs} pairs of {seconds:g} s")
    return make_report("metrics", PACKAGES, rows)


async def _pair(
    run: WatchedRun, pid: int, url: str, seconds: float, rate: float, quiet_first: bool
) -> tuple[Period, Period]:
    found: dict[bool, Period] = {}
    for scraped in (False, True) if quiet_first else (True, False):
        found[scraped] = await _period(run, pid, url, seconds, rate if scraped else 0.0)
    return found[True], found[False]


async def _period(run: WatchedRun, pid: int, url: str, seconds: float, rate: float) -> Period:
    roles = list(run.processes().values())
    server = psutil.Process(pid)
    before, began_s = _processor_s(roles), time.monotonic()
    server_s, scrapes = _processor_s([server]), 0
    while (left_s := began_s + seconds - time.monotonic()) > 0:
        if not rate:
            await asyncio.sleep(left_s)
            continue
        await scrape(url)
        scrapes += 1
        await asyncio.sleep(max(began_s + scrapes / rate - time.monotonic(), 0.0))
    after, ended_s = _processor_s(roles), time.monotonic()
    server_s = _processor_s([server]) - server_s
    while not run.samples or run.samples[-1].at_s < ended_s:
        if run.has_ended:
            raise RunFailedError("expected a run that trains during the whole measurement; found its end")
        await asyncio.sleep(0.02)
    examples = examples_at(run.samples, ended_s) - examples_at(run.samples, began_s)
    if examples <= 0:
        raise RunFailedError("no example was trained on during a period; give more --seconds")
    return Period(ended_s - began_s, examples, after - before, server_s, scrapes)


def _processor_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(taken.user + taken.system for taken in times))


@asynccontextmanager
async def _metrics_server(controller: str, token: str) -> AsyncIterator[tuple[int, str]]:
    """Runs `adamctl metrics serve`; yields its process and URL."""
    line = (sys.executable, "-m", "adamctl", "metrics", "serve", "--controller", controller, "--port", "0")
    process = await asyncio.create_subprocess_exec(
        *line, stdout=asyncio.subprocess.PIPE, env={**os.environ, "ADAMCTL_TOKEN": token}
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            said = (await process.stdout.readline()).decode()
        if "http://" not in said:
            raise RunFailedError(f"the metrics server does not come up; it said {said!r}")
        yield process.pid, said.split()[-1]
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def scrape(url: str) -> str:
    """Returns what a metrics server says. Raises RunFailedError: it does not answer well."""
    host, _, path = url.removeprefix("http://").partition("/")
    reader, writer = await asyncio.open_connection(*host.rsplit(":", 1))
    try:
        async with asyncio.timeout(START_S):
            writer.write(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    finally:
        writer.close()
    if " 200 " not in head.partition("\r\n")[0] + " ":
        raise RunFailedError(f"{url}: expected 200; found {head.partition(chr(13))[0]!r}")
    return body
