"""The planned half of DistBelief figure 3: the paper's networks on the paper's machines, as these are assumed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

from adamctl.bench.figures.figure import Claim, Judged, Line, Panel, Point
from adamctl.bench.figures.judging import between, judged
from adamctl.bench.figures.paper_machines import GBIT
from adamctl.model.layout import tensors_of
from adamctl.model.scaling.distbelief import (
    ASSUMED,
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
FAST = replace(MACHINE, link_bytes_per_s=10 * GBIT)
"""The same with faster links, since the paper says nothing of them."""
UNEVEN = replace(MACHINE, spread=0.2)
"""The same with phases that differ more from machine to machine."""
SPEECH, LARGEST = "speech", f"images, {MAPS[-1]} nodes"
NAMES = (SPEECH, *(f"images, {maps} nodes" for maps in MAPS))
SPEECH_PEAK, SPEECH_MOST = (4, 16), 4.0
LARGEST_LEAST, LARGEST_MOST = 8.0, 16.0
Curve = Mapping[int, float]
"""Speed-up by machines."""


@cache
def planned_curve(name: str, machine: ClusterMachine = MACHINE, by_rows: bool = False) -> Curve:
    """Returns a planned curve of one of NAMES; `by_rows`: image networks are cut as our runtime cuts them."""
    model = speech() if name == SPEECH else images(MAPS[NAMES.index(name) - 1])
    return dict(curve(model, MACHINES, machine, BATCH, by_rows))


def panels_of() -> Iterator[Panel]:
    """Yields the planned panels: images cut into tiles, with less and more spread; cut by rows; with faster links."""
    uneven = [_line("", planned_curve(name, UNEVEN), color, is_faint=True) for color, name in enumerate(NAMES)]
    tiles = [_line(f"{name}, {_millions(name):,.0f} M parameters", planned_curve(name), color)
             for color, name in enumerate(NAMES)]  # fmt: skip
    title = f"planned, 1 Gbit/s, images in tiles (thin: spread of {UNEVEN.spread:.0%})"
    yield _panel(title, (*tiles, *uneven))
    rows = [_line(name, planned_curve(name, by_rows=True), color) for color, name in enumerate(NAMES)]
    yield _panel("planned, 1 Gbit/s, images cut by rows, as they are here", rows)
    fast = [_line(name, planned_curve(name, FAST), color) for color, name in enumerate(NAMES)]
    yield _panel("planned, 10 Gbit/s, images cut into tiles", fast)


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
        "machines, 16 cores at work in each", "speed-up of a mini-batch", (*lines, diagonal), claims, title,
        x_logarithmic=True, y_logarithmic=True, ticks=TICKS,
    )  # fmt: skip


def _millions(name: str) -> float:
    model = speech() if name == SPEECH else images(MAPS[NAMES.index(name) - 1])
    return sum(tensor.size for tensor in tensors_of(model)) / 1e6


def planned_bars() -> Iterator[Judged]:
    """Yields the bars of the plans, all read from the first panel."""
    words, largest = planned_curve(SPEECH), planned_curve(LARGEST)
    peak = max(words, key=lambda count: words[count])
    at = SAID_OF_IMAGES[0]
    yield between(f"{SPEECH}, planned, is fastest at", peak, *SPEECH_PEAK, " machines")
    yield judged(
        f"{SPEECH}, planned, at its peak: below {SPEECH_MOST:g}", f"{words[peak]:.3g}", words[peak] < SPEECH_MOST
    )
    before, after = (MACHINES[MACHINES.index(at) + step] for step in (-1, 1))
    rising = largest[after] > largest[at] > largest[before]
    found = ", ".join(f"{largest[count]:.3g} at {count}" for count in (before, at, after))
    yield judged(f"{LARGEST}, planned: still rises at {at}", found, rising)
    yield between(f"{LARGEST}, planned, at {at}", largest[at], LARGEST_LEAST, LARGEST_MOST, " times")
    order = [planned_curve(name)[at] for name in sorted(NAMES, key=_millions)]
    is_rising = all(one < other for one, other in pairwise(order))
    shown = ", ".join(f"{value:.3g}" for value in order)
    yield judged(f"planned, at {at}: more parameters gain more", shown, is_rising)


def planned_rows() -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Returns the columns and rows of the table of plans."""
    curves = {name: planned_curve(name) for name in NAMES}
    curves |= {f"{name}, by rows": planned_curve(name, by_rows=True) for name in NAMES[1:]}
    curves |= {f"{name}, 10 Gbit/s": planned_curve(name, FAST) for name in (SPEECH, LARGEST)}
    rows = tuple((f"{count}", *(f"{points[count]:.3g}" for points in curves.values())) for count in MACHINES)
    return ("machines", *curves), rows


def said_of_plans() -> Iterator[str]:
    """Yields what is assumed, in words."""
    said = "; ".join(f"{what}: {text}" for what, text in ASSUMED.items())
    yield f"Planned, with what is assumed of the paper's machines and nothing fitted to its curve. {said}."
    yield (
        "The planned networks are the paper's: speech, and images of 100 x 100 with 21,000 one-vs-all outputs; pooling "
        "and strides are ours, as the paper gives none. The runtime cuts by rows; tiles are only planned. Bars are "
        "read from the first planned panel."
    )
