"""Every bar that batch algorithms are built to meet, measured in one run, each as a ratio to a peer or to a limit.

Parts stand alone, and some share a measurement. What cannot be measured on this machine is said in its row.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from adamctl.bench.bars import Bar, Found, Progress, row_of
from adamctl.bench.control_groups import ControlGroups, control_groups
from adamctl.bench.kernels.lbfgs_rounds import measure_rounds
from adamctl.bench.report import make_report
from adamctl.bench.sandblaster.disturbed import DisturbedRuns
from adamctl.bench.sandblaster.evaluation import measure_evaluation
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.problems import PROBLEMS, Problem
from adamctl.bench.sandblaster.rounds import measure_server_rounds
from adamctl.bench.sandblaster.searches import evaluations_row, measure_searches, per_iteration_row
from adamctl.bench.sandblaster.time_to_loss import measure_time_to_loss
from adamctl.bench.sandblaster.whole_runs import measure_images
from adamctl.bench.sandblaster.wire_bytes import measure_bytes
from adamctl.errors import ConfigurationError
from adamctl.kernels.threads import available_cores
from adamctl.roles.data.catalogue.catalogue import find_source

PACKAGES = ("adamctl", "numpy", "numba", "scipy", "uvloop", "msgspec")
Groups = ControlGroups | None

BARS: Mapping[str, Bar] = {
    "evaluations": Bar("evaluations to the loss of SciPy's L-BFGS-B, ten pairs; the worst problem", 1.1),
    "per-iteration": Bar("evaluations an iteration", 1.15),
    "images": Bar(
        "images/s in an evaluation, against Downpour; threads alone or whole runs, the worse", 0.95, at_least=True
    ),
    "time-to-loss": Bar("time to a loss, against PyTorch's LBFGS and SciPy with its gradients", 0.9),
    "command-share": Bar("commands' share of an iteration's time", 0.03),
    "rounds": Bar("milliseconds between evaluations: R1, commit, R3, 10,000 parameters", 5.0),
    "kernels": Bar("R1 and R3 against copying the history once, one core", 3.0),
    "bytes": Bar("bytes of an evaluation, against (workers + bundles) x parameters", 1.05),
    "slow-worker": Bar("a second worker at a quarter of the speed, against its ideal share", 1.15),
    "stopped-worker": Bar("one of two workers is stopped in mid-batch, against the other alone", 1.2),
    "copies": Bar("an iteration with three copies, against one", 1.15),
}
WHOLE_RUNS = frozenset(BARS) - {"evaluations", "per-iteration", "rounds", "kernels"}
"""Parts that train on the workload's data."""


@dataclass(frozen=True)
class SandblasterSettings:
    """What to measure, and how much of it.

    Attributes:
        only: names of parts; empty: all.
        evaluations: of SciPy on each problem.
        problems: those, by name.
        workload: of evaluations, and of the race to a loss.
        data: folders in which data are looked up.
        peer_python: an interpreter with PyTorch and SciPy.
        race_passes: evaluations of each side of the race.
        passes: of each disturbed run, and of the longer one where bytes are counted.
        rounds: of the race, and of disturbed runs; medians count.
        small_batch, small_portion: examples of an evaluation in disturbed runs, and of one of its portions.
        slices, seconds: of each side, and their length, where evaluations and Downpour take turns.
        iterations: with a full history, whose rounds on a server are timed.
        elements, turns: of vectors, and of R1 and R3 on them.
    """

    only: tuple[str, ...] = ()
    evaluations: int = 100
    problems: Mapping[str, Problem] = field(default_factory=lambda: PROBLEMS)
    workload: Workload = field(default_factory=Workload)
    data: tuple[str, ...] = ()
    peer_python: str = sys.executable
    race_passes: int = 30
    passes: int = 14
    rounds: int = 3
    small_batch: int = 30_000
    small_portion: int = 100
    slices: int = 45
    seconds: float = 0.1
    iterations: int = 60
    elements: int = 1 << 24
    turns: int = 7

    def __post_init__(self) -> None:
        """Raises ConfigurationError: a part is unknown."""
        unknown = [name for name in self.only if name not in BARS]
        if unknown:
            raise ConfigurationError(f"--only: expected some of {', '.join(BARS)}; found {', '.join(unknown)}")

    @property
    def small(self) -> Workload:
        """The workload of disturbed runs, in smaller portions: so that there are enough bundles."""
        return replace(self.workload, batch=self.small_portion)

    def wants(self, names: Iterable[str]) -> bool:
        return not self.only or not set(self.only).isdisjoint(names)


def run_sandblaster_benchmark(settings: SandblasterSettings, progress: Progress = lambda line: None) -> dict[str, Any]:
    """Measures and returns the report that `adamctl bench sandblaster --json` prints.

    Raises:
        ConfigurationError: a package that a part needs is not installed, or its data are not found.
        RunFailedError: a process ended, or a run failed.
    """
    if settings.wants(WHOLE_RUNS):
        find_source(settings.workload.data_config, settings.data)
    rows: list[dict[str, Any]] = []
    for names, measure in PARTS.items():
        if settings.wants(names):
            load = round(os.getloadavg()[0], 2)
            with control_groups("cpu") as groups:
                found = measure(settings, progress, groups)
            wanted = [name for name in names if name in found and settings.wants((name,))]
            rows += [row_of(name, BARS[name], found[name], load) for name in wanted]
    return make_report("sandblaster", PACKAGES, rows)


# --- parts ------------------------------------------------------------------------------------------------------------


def _searches(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    found = measure_searches(settings.problems, settings.evaluations, progress)
    return {"evaluations": evaluations_row(found), "per-iteration": per_iteration_row(found)}


def _images(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    workload, threads = settings.workload, available_cores()
    progress(f"{workload.name}: evaluations and Downpour in turn, {threads} thread(s)")
    found = measure_evaluation(
        workload.downpour(), threads, workload.batch, workload.examples, slices=settings.slices,
        seconds=settings.seconds,
    )  # fmt: skip
    whole = measure_images(workload, settings.passes, settings.rounds, settings.data, progress, groups)
    ratio = min(found.ratio_vs_downpour, whole["whole_run_ratio"])
    return {"images": {"ratio": ratio, "network": workload.name, "threads": threads, **found._asdict(), **whole}}


def _rounds(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    progress(f"one server: {settings.iterations} iterations of 10,000 parameters")
    found = measure_server_rounds(iterations=settings.iterations)
    return {
        "rounds": {
            "ratio": 1e3 * found.median_s, "p10_ms": 1e3 * found.p10_s, "p90_ms": 1e3 * found.p90_s,
            "parameters": found.parameters, "iterations": found.iterations,
        }
    }  # fmt: skip


def _kernels(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    progress(f"R1 and R3 on vectors of {settings.elements:,} elements")
    found = measure_rounds(settings.elements, turns=settings.turns)
    return {
        "kernels": {
            "ratio": found.ratio, "elements": found.elements, "copy_s": found.copy_s, "measure_s": found.measure_s,
            "commit_s": found.commit_s, "step_s": found.step_s,
        }
    }  # fmt: skip


def _race(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    found = measure_time_to_loss(
        settings.workload,
        settings.race_passes,
        settings.rounds,
        settings.data,
        settings.peer_python,
        progress,
        groups,
    )
    return dict(found)


def _bytes(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    passes = (max(settings.passes // 3, 1), settings.passes)
    return {"bytes": measure_bytes(settings.small, passes, settings.small_batch, settings.data, progress)}


def _runs(settings: SandblasterSettings, progress: Progress, groups: Groups, workload: Workload) -> DisturbedRuns:
    return DisturbedRuns(workload, settings.passes, settings.small_batch, settings.data, progress, groups)


def _slow(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    return {"slow-worker": _runs(settings, progress, groups, settings.small).measure_slow(settings.rounds)}


def _stopped(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    return {"stopped-worker": _runs(settings, progress, groups, settings.small).measure_stopped(settings.rounds)}


def _copies(settings: SandblasterSettings, progress: Progress, groups: Groups) -> dict[str, Found]:
    return {"copies": _runs(settings, progress, groups, settings.workload).measure_copies(settings.rounds)}


PARTS: Mapping[Sequence[str], Callable[[SandblasterSettings, Progress, Groups], dict[str, Found]]] = {
    ("evaluations", "per-iteration"): _searches,
    ("images",): _images,
    ("time-to-loss", "command-share"): _race,
    ("rounds",): _rounds,
    ("kernels",): _kernels,
    ("bytes",): _bytes,
    ("slow-worker",): _slow,
    ("stopped-worker",): _stopped,
    ("copies",): _copies,
}
"""What measures which parts."""
