"""Adam figure 8: connections per second over the compute threads of one machine (Adam 4.3.1).

`bench worker` measures each network with as many threads as there are cores. Beyond, a speed is planned: the smaller of
what the interpreter lock allows and, for a network that no cache holds, what memory bandwidth allows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adamctl.bench.figures.figure import Figure, Judged, Line, Panel, Point, Table, measured, planned
from adamctl.bench.figures.judging import at_least, median_point
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import command, edited, example
from adamctl.bench.figures.session import Session
from adamctl.bench.kernels.measuring import memory_limit
from adamctl.bench.slices import cache_bytes
from adamctl.config.load import load_experiment
from adamctl.kernels.threads import available_cores
from adamctl.model.layout import ELEMENT_BYTES, tensors_of

NETWORKS = ("mnist", "mnist, padding same", "speech")
PADDED = ("kernel = 5\n", 'kernel = 5\npadding = "same"\n')
BATCHES = (32, 128)
PLANNED = (2, 4, 8, 16)
"""Threads for which `bench worker` tells what the interpreter lock allows."""
PASSES = 5
"""Over the parameters, in a step: read forward and backward, gradient written and read, weights written."""
TWICE_LEAST = 1.9
MEMORY, SETTINGS = "memory bandwidth", "settings"
MEMORY_S = 0.3


def measure(session: Session) -> None:
    seconds, batches = session.sized(1.0, 0.1), session.sized(BATCHES, BATCHES[:1])
    threads = sorted({*(count for count in PLANNED if count <= available_cores()), 1, available_cores()})
    with TemporaryDirectory(prefix="adamctl-bench-") as folder:
        files = _files(Path(folder))
        session.take(SETTINGS, lambda: _settings(files, batches, threads, seconds))
        line = ("--thread-counts", ",".join(map(str, threads)), "--rounds", "1", "--seconds", str(seconds))
        settings = {f"{name}, batch {batch}": (file, batch) for name, file in files.items() for batch in batches}

        def one(name: str, number: int) -> Any:
            if name == MEMORY:
                limit = memory_limit(available_cores())
                limit.measure(MEMORY_S / 3)  # the arrays get their pages
                return limit.measure(MEMORY_S)
            file, batch = settings[name]
            return _kept(command(("bench", "worker", str(file), "--batches", str(batch), *line)))

        session.in_turn((MEMORY, *settings), one)


def _files(folder: Path) -> dict[str, Path]:
    same = edited("mnist.toml", folder / "mnist_same.toml", PADDED)
    return dict(zip(NETWORKS, (example("mnist.toml"), same, example("speech.toml")), strict=True))


def _settings(
    files: Mapping[str, Path], batches: Sequence[int], threads: Sequence[int], seconds: float
) -> dict[str, Any]:
    models = {name: load_experiment(file).experiment.model for name, file in files.items()}
    return {
        "batches": batches,
        "threads": threads,
        "seconds": seconds,
        "cache_bytes": cache_bytes(3),
        "parameters": {name: sum(tensor.size for tensor in tensors_of(model)) for name, model in models.items()},
    }


def _kept(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what counts of a report: connections/s by threads, and what the interpreter lock allows."""
    rows = report["results"]
    locks = report.get("interpreter_lock", ())  # not measured without numba
    lock = locks[0] if locks else {}
    return {
        "connections_per_s": {str(row["threads"]): row["connections_per_s"] for row in rows},
        "connections": rows[0]["connections_per_example"],
        "lock_allows": lock.get("predicted_speed_up"),
        "lock_held_share": lock.get("held_share"),
    }


# --- the figure -------------------------------------------------------------------------------------------------------


def figure_of(rounds: Rounds) -> Figure:
    settings = rounds[SETTINGS]
    cases = [(name, batch) for batch in settings["batches"] for name in NETWORKS]
    found = {case: _Case(rounds, *case) for case in cases}
    panels = tuple(
        Panel(
            "compute threads (dots: in proportion to one thread)", "billion connections per second",
            tuple(line for color, name in enumerate(NETWORKS) for line in found[name, batch].lines(color)),
            title=f"batches of {batch}", x_logarithmic=True, y_logarithmic=True, ticks=(1, *PLANNED),
        )
        for batch in settings["batches"]
    )  # fmt: skip
    bars = tuple(bar for case in found.values() for bar in case.bars())
    table = Table(
        ("network", "batch", "threads", "G connections/s", "times one", "lowest", "highest"),
        tuple(row for case in found.values() for row in case.rows()),
    )
    return Figure(panels, bars, (table,), tuple(_sentences(settings, list(found.values()), rounds)))


class _Case:
    """One network with one batch."""

    def __init__(self, rounds: Rounds, name: str, batch: int) -> None:
        self.name, self.batch = name, batch
        self._rounds = rounds.all_of(f"{name}, batch {batch}")
        self._threads = sorted(int(count) for count in self._rounds[0]["connections_per_s"])
        settings = rounds[SETTINGS]
        parameters_bytes = settings["parameters"][name] * ELEMENT_BYTES
        self.fits_the_cache = parameters_bytes <= settings["cache_bytes"]
        steps_per_s = statistics.median(rounds.all_of(MEMORY)) / (PASSES * parameters_bytes)
        self._memory_allows = steps_per_s * batch * self._rounds[0]["connections"]

    def _rates(self, threads: int) -> list[float]:
        return [one["connections_per_s"][str(threads)] for one in self._rounds]

    def ratios(self, threads: int) -> list[float]:
        """Returns the speed over that of one thread, of each round."""
        return [rate / alone for rate, alone in zip(self._rates(threads), self._rates(1), strict=True)]

    def lines(self, color: int) -> Iterator[Line]:
        yield measured(
            self.name, [median_point(count, [rate / 1e9 for rate in self._rates(count)]) for count in self._threads],
            color,
        )  # fmt: skip
        alone = statistics.median(self._rates(1)) / 1e9
        beyond = list(self._planned(alone))
        if beyond:
            last = max(self._threads)
            start = Point(last, statistics.median(self._rates(last)) / 1e9)
            yield planned(f"{self.name}, planned", (start, *beyond), color)
        yield Line("", "theory", tuple(Point(count, alone * count) for count in (1, *PLANNED)))

    def _planned(self, alone: float) -> Iterator[Point]:
        """Yields the points beyond the cores of this machine; none if the lock could not be measured."""
        allowed = [one["lock_allows"] for one in self._rounds if one["lock_allows"]]
        for count in PLANNED if allowed else ():
            if count > max(self._threads):
                by_lock = alone * statistics.median(one[str(count)] for one in allowed)
                yield Point(count, by_lock if self.fits_the_cache else min(by_lock, self._memory_allows / 1e9))

    def bars(self) -> Iterator[Judged]:
        if 2 in self._threads:
            ratio = statistics.median(self.ratios(2))
            yield at_least(f"{self.name}, batches of {self.batch}, two threads over one", ratio, TWICE_LEAST)

    def rows(self) -> Iterator[tuple[str, ...]]:
        for count in self._threads:
            rates, ratios = self._rates(count), self.ratios(count)
            shown = (statistics.median(rates) / 1e9, statistics.median(ratios), min(ratios), max(ratios))
            yield self.name, f"{self.batch}", f"{count}", *(f"{value:.3f}" for value in shown)


def _sentences(settings: Mapping[str, Any], cases: Sequence[_Case], rounds: Rounds) -> Iterator[str]:
    most = max(settings["threads"])
    above = [
        f"{case.name} in batches of {case.batch} ({statistics.median(case.ratios(most)):.3f})"
        for case in cases
        if most > 1 and min(case.ratios(most)) > most
    ]
    if most > 1:
        medians = sorted(statistics.median(case.ratios(most)) for case in cases)
        spread = f"medians are {medians[0]:.2f} to {medians[-1]:.2f} times one thread"
        told = ", ".join(above) or "none"
        linear = f"above linear in every round: {told}; {spread}"
        yield (
            "The paper's (4.3.1) is above linear up to 4 cores, because of caches, then linear, to 16. Here, with "
            f"{most} threads, {linear}."
        )
    yield (
        f"Measured: medians of {len(rounds.all_of(MEMORY))} rounds of {settings['seconds']:g} s in turn, with the "
        "smallest and the largest; one replica, threads without locks, synthetic examples, nothing sent to servers."
    )
    bandwidth = statistics.median(rounds.all_of(MEMORY)) / 1e9
    cached = ", ".join(dict.fromkeys(case.name for case in cases if case.fits_the_cache)) or "none"
    yield (
        "Planned, beyond the cores of this machine: what the interpreter lock allows (a queue of threads for it) or, "
        f"for networks that the cache of {settings['cache_bytes'] / 1e6:.0f} MB does not hold, what memory allows: "
        f"{PASSES} passes over the parameters a step at {bandwidth:.3g} GB/s, as all cores here have. Networks that it "
        "holds: "
        f"{cached}. Cores that are not there share neither caches nor clocks in this plan."
    )
