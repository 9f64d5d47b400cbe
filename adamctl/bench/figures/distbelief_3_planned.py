"""The planned half of DistBelief figure 3: the paper's networks on the paper's machines, as these are assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from adamctl.bench.figures.figure import Claim, Judged, Line, Panel, Point
from adamctl.bench.figures.judging import between
from adamctl.bench.figures.paper_machines import DISTBELIEF, DISTBELIEF_SLOW_LINKS, Core, PaperMachine
from adamctl.model.layout import tensors_of
from adamctl.model.scaling.distbelief import (
    BATCH,
    MACHINE,
    MAPS,
    SAID_OF_IMAGES,
    SAID_OF_SPEECH,
    curve,
    images,
    speech,
)
from adamctl.model.scaling.speedup import ClusterMachine

MACHINES = (1, 2, 4, 8, 16, 32, 64, 81, 128)
TICKS = (1, 2, 4, 8, 16, 32, 64, 128)
SPREAD = 0.2
"""Of stage times from machine to machine, in the second line."""
SPEECH, LARGEST = "speech", f"images, {MAPS[-1]} nodes"
NAMES = (SPEECH, *(f"images, {maps} nodes" for maps in MAPS))
SPEECH_PEAK, SPEECH_MOST = (4, 16), 4.0
LARGEST_LEAST, LARGEST_MOST = 8.0, 16.0
Curve = Mapping[int, float]
"""Speed-up by machines."""


@cache
def planned_curve(name: str, machine: ClusterMachine, by_rows: bool = True) -> Curve:
    """Returns a planned curve of one of NAMES."""
    model = speech() if name == SPEECH else images(MAPS[NAMES.index(name) - 1])
    return dict(curve(model, MACHINES, machine, BATCH, by_rows))


def machine_of(paper: PaperMachine, core: Core, spread: float = 0.0) -> ClusterMachine:
    """Returns a machine of the paper, for the planner: a core there does the share of its peak that one here does.

    Memory, latency and what a message takes are those of `adamctl.model.scaling.distbelief`.
    """
    products_per_s = paper.peak_per_s * core.share_of_peak / 2  # a product and its sum are two operations
    link = paper.link_bytes_per_s
    return replace(MACHINE, products_per_s=products_per_s, link_bytes_per_s=link, spread=spread)


def panels_of(core: Core) -> Iterator[Panel]:
    """Yields the planned panels: row cuts, with and without a spread; tiles; row cuts over slow links."""
    fast, slow = machine_of(DISTBELIEF, core), machine_of(DISTBELIEF_SLOW_LINKS, core)
    spread = [_line("", planned_curve(name, machine_of(DISTBELIEF, core, SPREAD)), color, is_faint=True)
              for color, name in enumerate(NAMES)]  # fmt: skip
    rows = [_line(f"{name}, {_millions(name):,.0f} M parameters", planned_curve(name, fast), color)
            for color, name in enumerate(NAMES)]  # fmt: skip
    yield _panel(f"planned, 10 Gbit/s, cut by rows (thin: stages vary by {SPREAD:.0%})", (*rows, *spread))
    tiles = [_line(f"{name}", planned_curve(name, fast, by_rows=name == SPEECH), color)
             for color, name in enumerate(NAMES)]  # fmt: skip
    yield _panel("planned, 10 Gbit/s, images cut into tiles", tiles)
    lines = [_line(name, planned_curve(name, slow), color) for color, name in enumerate(NAMES)]
    yield _panel("planned, 1 Gbit/s, cut by rows", lines)


def _line(name: str, points: Curve, color: int, *, is_faint: bool = False) -> Line:
    found = tuple(Point(count, speed_up) for count, speed_up in points.items())
    return Line(name, "planned", found, color, is_faint=is_faint)


def _panel(title: str, lines: Sequence[Line]) -> Panel:
    diagonal = Line("as many times as machines", "theory", (Point(1, 1), Point(MACHINES[-1], MACHINES[-1])))
    claims = (
        Claim("cross", f"the paper, 5: speech {SAID_OF_SPEECH[1]:g} at {SAID_OF_SPEECH[0]}", *SAID_OF_SPEECH),
        Claim("cross", f"the paper, 5: the largest over {SAID_OF_IMAGES[1]:g} at {SAID_OF_IMAGES[0]}", *SAID_OF_IMAGES),
    )
    return Panel(
        "machines of 20 cores", "speed-up of a mini-batch", (*lines, diagonal), claims, title, x_logarithmic=True,
        y_logarithmic=True, ticks=TICKS,
    )  # fmt: skip


def _millions(name: str) -> float:
    model = speech() if name == SPEECH else images(MAPS[NAMES.index(name) - 1])
    return sum(tensor.size for tensor in tensors_of(model)) / 1e6


def planned_bars(core: Core) -> Iterator[Judged]:
    """Yields the bars of the plans, all read from the first line: 10 Gbit/s, cut by rows, no spread."""
    machine = machine_of(DISTBELIEF, core)
    words, largest = planned_curve(SPEECH, machine), planned_curve(LARGEST, machine)
    peak = max(words, key=lambda count: words[count])
    at = SAID_OF_IMAGES[0]
    yield between(f"{SPEECH}, planned, is fastest at", peak, *SPEECH_PEAK, " machines")
    yield Judged(
        f"{SPEECH}, planned, at its peak: below {SPEECH_MOST:g}", f"{words[peak]:.3g}",
        "met" if words[peak] < SPEECH_MOST else "missed",
    )  # fmt: skip
    rising = largest[MACHINES[MACHINES.index(at) + 1]] > largest[at] > largest[MACHINES[MACHINES.index(at) - 1]]
    before, after = (MACHINES[MACHINES.index(at) + step] for step in (-1, 1))
    found = ", ".join(f"{largest[count]:.3g} at {count}" for count in (before, at, after))
    yield Judged(f"{LARGEST}, planned: still rises at {at}", found, "met" if rising else "missed")
    yield between(f"{LARGEST}, planned, at {at}", largest[at], LARGEST_LEAST, LARGEST_MOST, " times")
    order = [planned_curve(name, machine)[at] for name in sorted(NAMES, key=_millions)]
    is_rising = all(one < other for one, other in pairwise(order))
    shown = ", ".join(f"{value:.3g}" for value in order)
    yield Judged(f"planned, at {at}: more parameters gain more", shown, "met" if is_rising else "missed")


def planned_rows(core: Core) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Returns the columns and rows of the table of plans."""
    fast, slow = machine_of(DISTBELIEF, core), machine_of(DISTBELIEF_SLOW_LINKS, core)
    curves = {f"{name}": planned_curve(name, fast) for name in NAMES}
    curves |= {f"{name}, tiles": planned_curve(name, fast, by_rows=False) for name in NAMES[1:]}
    curves |= {f"{name}, 1 Gbit/s": planned_curve(name, slow) for name in (SPEECH, LARGEST)}
    rows = tuple((f"{count}", *(f"{points[count]:.3g}" for points in curves.values())) for count in MACHINES)
    return ("machines", *curves), rows


def said_of_plans(core: Core) -> Iterator[str]:
    """Yields what is assumed, in words."""
    fast = machine_of(DISTBELIEF, core)
    yield (
        f"Planned: {'; '.join(DISTBELIEF.sources)}; the share of peak of a core here, so "
        f"{fast.products_per_s / 1e9:.0f} billion products a second of a machine; memory of "
        f"{fast.memory_bytes_per_s / 1e9:g} GB/s, {fast.latency_s * 1e6:g} us of latency, {fast.message_s * 1e6:g} us "
        f"of a processor for a message at each end, mini-batches of {BATCH}, all assumed; one mini-batch under way at "
        "a time; nothing is fitted to the paper's curve."
    )
    yield (
        "The planned networks are the paper's: speech, and images of 100 x 100 with 21,000 one-vs-all outputs; pooling "
        "and strides are ours, as the paper gives none. The runtime cuts by rows; tiles are only planned. Bars are "
        "read from the lines for 10 Gbit/s, by rows, with machines that are all equally fast."
    )
