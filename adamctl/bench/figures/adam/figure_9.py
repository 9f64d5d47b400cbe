"""Adam figure 9: updates per second of one parameter server over its cores (Adam 4.3.2).

`bench ps-throughput` measures with as many apply threads as there are cores; beyond, the rate of one thread times
threads is planned, at most what memory or the link lets through.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from adamctl.bench.figures.figure import Claim, Figure, Judged, Line, Panel, Point, Table, measured, planned
from adamctl.bench.figures.judging import at_least, at_most, median_point
from adamctl.bench.figures.paper_machines import ADAM, GBIT
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import command
from adamctl.bench.figures.session import Session
from adamctl.bench.namespaces import TCP_SHARE
from adamctl.bench.ps.job import FactorsSize
from adamctl.bench.ps.throughput import ADAM_G_UPDATES_PER_S
from adamctl.kernels.threads import available_cores
from adamctl.model.layout import ELEMENT_BYTES

SETTINGS, SERVERS, LINK = "settings", "servers", "link"
LINK_BYTES_PER_S = ADAM.link_bytes_per_s
PLANNED = (1, 2, 4, 8, 16)
SCALED_TO = 8
"""Cores up to which weights scaled in the paper, where the network is fast enough."""
DELTA_BYTES = 3 * ELEMENT_BYTES
"""Moved in memory for an update of a weight by a delta: the delta is read, the weight read and written."""
TWICE_LEAST, LINK_MOST = 1.7, 0.32


class Case(NamedTuple):
    """A line of the figure.

    Attributes:
        name: in the legend.
        run: SERVERS or LINK, whose report has it.
        mode: of the report's rows.
        limited_by: what bounds the plan: `memory`, `link` or nothing.
    """

    name: str
    run: str
    mode: str
    limited_by: str = ""


CASES = (
    Case("weights over TCP on loopback", SERVERS, "push", "memory"),
    Case("weights over a link of 10 Gbit/s", LINK, "push", "link"),
    Case("weights, no network (one delta a shard)", SERVERS, "local, 1 delta", "memory"),
    Case("factors over TCP on loopback", SERVERS, "factors"),
    Case("factors, no network", SERVERS, "local, factors"),
)


def measure(session: Session) -> None:
    megabytes, seconds = session.sized(100.0, 4.0), session.sized(1.0, 0.2)
    threads = sorted({*(count for count in PLANNED if count <= available_cores()), available_cores()})
    session.take(SETTINGS, lambda: {"megabytes": megabytes, "seconds": seconds, "threads": threads})
    common = (
        "bench", "ps-throughput", "--transport", "tcp", "--apply-threads", ",".join(map(str, threads)),
        "--model-megabytes", str(megabytes), "--rounds", "1", "--seconds", str(seconds), "--mode", "push",
    )  # fmt: skip
    more = {SERVERS: ("--mode", "factors", "--mode", "local"), LINK: ("--link", f"{LINK_BYTES_PER_S / GBIT:g}Gbit")}
    session.in_turn(more, lambda name, number: _kept(command((*common, *more[name]))))


def _kept(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what counts of a report's rows."""
    keys = ("mode", "apply_threads", "g_updates_per_s", "limit_gb_per_s")
    return [{key: row.get(key) for key in keys} for row in report["results"]]


# --- the figure -------------------------------------------------------------------------------------------------------


def figure_of(rounds: Rounds) -> Figure:
    settings = rounds[SETTINGS]
    rates = {case: _rates(rounds, case) for case in CASES}
    memory = _memory_bytes_per_s(rounds)
    lines = [line for color, case in enumerate(CASES) for line in _lines(case, rates[case], memory, color)]
    claims = (
        Claim("level", f"the paper, 4.3.2: over {ADAM_G_UPDATES_PER_S:g} billion", y=ADAM_G_UPDATES_PER_S),
        Claim("vertical", "the paper, 4.3.2: up to here weights scaled on a fast network", x=SCALED_TO),
    )
    panel = Panel(
        "apply threads of the server (hollow: planned)", "billion updates per second", tuple(lines), claims,
        x_logarithmic=True, y_logarithmic=True, ticks=PLANNED,
    )  # fmt: skip
    table = Table(
        ("case", "threads", "G updates/s", "lowest", "highest", "times one"),
        tuple(row for case in CASES for row in _rows(case, rates[case])),
    )
    return Figure((panel,), tuple(_bars(rates)), (table,), tuple(_sentences(settings, rounds, memory)))


Rates = dict[int, list[float]]
"""Billion updates per second of each round, by apply threads."""


def _rates(rounds: Rounds, case: Case) -> Rates:
    found: Rates = {}
    for rows in rounds.all_of(case.run):
        for row in rows:
            if row["mode"] == case.mode:
                found.setdefault(row["apply_threads"], []).append(row["g_updates_per_s"])
    return found


def _memory_bytes_per_s(rounds: Rounds) -> float:
    """Returns memory bandwidth with all cores: the median of what stood beside deltas."""
    local = [row for rows in rounds.all_of(SERVERS) for row in rows if row["mode"] == "local, 1 delta"]
    most = max(row["apply_threads"] for row in local)
    return 1e9 * statistics.median(float(row["limit_gb_per_s"]) for row in local if row["apply_threads"] == most)


def _lines(case: Case, rates: Rates, memory_bytes_per_s: float, color: int) -> Iterator[Line]:
    yield measured(case.name, [median_point(count, rounds) for count, rounds in sorted(rates.items())], color)
    most, alone = max(rates), statistics.median(rates[1])
    limit = _limit(case, memory_bytes_per_s)
    beyond = [Point(count, min(alone * count, limit)) for count in PLANNED if count > most]
    yield planned("", [Point(most, statistics.median(rates[most])), *beyond], color)


def _limit(case: Case, memory_bytes_per_s: float) -> float:
    """Returns billion updates per second that memory or the link lets through."""
    if case.limited_by == "memory":
        return memory_bytes_per_s / DELTA_BYTES / 1e9
    return LINK_BYTES_PER_S * TCP_SHARE / ELEMENT_BYTES / 1e9 if case.limited_by == "link" else float("inf")


def _bars(rates: Mapping[Case, Rates]) -> Iterator[Judged]:
    weights, factors = CASES[1], (CASES[3], CASES[4])
    for case in factors:
        if 2 in rates[case]:
            ratio = statistics.median(two / one for one, two in zip(rates[case][1], rates[case][2], strict=True))
            yield at_least(f"{case.name}, two threads over one", ratio, TWICE_LEAST)
    for count, rounds in sorted(rates[weights].items()):
        yield at_most(f"{weights.name}, threads: {count}", statistics.median(rounds), LINK_MOST, " billion")
    over_tcp = rates[factors[0]]
    best = statistics.median(over_tcp[max(over_tcp)])
    yield at_least(f"{factors[0].name}, threads: {max(over_tcp)}", best, ADAM_G_UPDATES_PER_S, " billion")


def _rows(case: Case, rates: Rates) -> Iterator[tuple[str, ...]]:
    for count, rounds in sorted(rates.items()):
        ratio = statistics.median(one / other for one, other in zip(rounds, rates[1], strict=True))
        values = (statistics.median(rounds), min(rounds), max(rounds))
        yield case.name, f"{count}", *(f"{value:.3g}" for value in values), f"{ratio:.2f}"


def _sentences(settings: Mapping[str, Any], rounds: Rounds, memory_bytes_per_s: float) -> Iterator[str]:
    size = FactorsSize()
    yield (
        f"An update of weights is one number of one push; of factors, what one example adds to one weight: a push of "
        f"{size.examples} examples to {size.outputs} x {size.inputs} weights is {size.updates / 1e9:.1f} billion. The "
        "paper does not say how it counts. If it counts changes of a stored weight, factors are "
        f"{size.examples} times less."
    )
    yield (
        f"Measured: medians of {len(rounds.all_of(LINK))} rounds of {settings['seconds']:g} s, with the smallest and "
        "the largest; one server, one client, all on this machine, no share of cores; weights of "
        f"{settings['megabytes']:g} MB in blocks of 1 MiB, float32. The paper's "
        "traffic of ImageNet is emulated by these sizes."
    )
    yield (
        "Planned, hollow: the rate of one thread times threads; weights at most by memory, "
        f"{memory_bytes_per_s / 1e9:.3g} GB/s as all cores here have, {DELTA_BYTES} bytes an update, or by the link of "
        f"10 Gbit/s with TCP's share of {TCP_SHARE:.3f}. The paper's server has 16 cores of 1.8 GHz (4.2)."
    )
