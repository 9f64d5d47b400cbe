"""Whole runs in which a worker is slow or stands still, or servers have copies, against runs without.

All roles have their cores before other programs of this machine, by control groups, and workers a share of a core
each: so their speeds are what they are said to be. Their quotas begin once they evaluate: they need not start with
them. Rounds alternate, and the best round of each kind of run counts: what disturbs a run makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.sandblaster.experiments import Workload
from adamctl.bench.sandblaster.whole_runs import Iteration, Trained, train
from adamctl.bench.watched_run import WatchedRun
from adamctl.errors import RunFailedError
from adamctl.kernels.threads import available_cores

Progress = Callable[[str], None]
CORES = 0.4
"""Of a worker at full speed: all of them, servers and a little of other programs fit on two cores."""
SLOW = 0.25
"""Speed of a slow worker."""
SETTLED = 3
"""Evaluations until the coordinator knows a worker's new speed."""
MIDDLE = (0.25, 0.75)
"""The part of a batch in which a worker is stopped, as a share of its bundles."""
SLOW_EVALUATIONS = 5
"""Of a slow worker alone, after those until its speed is known."""
CANNOT = {"cannot": "needs control groups for processor time that this user may write to (cgroup v1 cpu, or v2)"}
POLL_S, MIDDLE_S = 0.005, 120.0
ONE, OTHER = "worker-1", "worker-2"


class DisturbedRuns:
    """Runs of one workload, without and with a disturbance.

    Attributes:
        passes: evaluations of each run.
    """

    def __init__(
        self, workload: Workload, passes: int, batch: int, data: Sequence[str], progress: Progress,
        groups: ControlGroups | None,
    ) -> None:  # fmt: skip
        """`batch`: examples of an evaluation. `groups`: None where none can be made."""
        self.passes, self._groups = passes, groups
        self._workload, self._data, self._progress = workload, data, progress
        self._settings = {"optimizer.batch": min(batch, workload.examples), "cluster.threads": 1}

    def measure_slow(self, rounds: int) -> dict[str, Any]:
        """Returns the time of an evaluation by a worker and one at SLOW of its speed, over its ideal.

        That is the time of both if their speeds added up. Each is measured alone: with a quota as small as the slow
        one's, a process gets a little more than that.
        """
        if self._groups is None:
            return CANNOT
        found: list[tuple[float, float, float]] = []
        for _ in range(rounds):
            alone, slow = self._alone(CORES), self._alone(SLOW * CORES, min(self.passes, SETTLED + SLOW_EVALUATIONS))
            both = self._together({ONE: CORES, OTHER: SLOW * CORES})
            alone_s, slow_s, both_s = (run.evaluation_s(SETTLED) for run in (alone, slow, both))
            found.append((alone_s, slow_s, both_s))
        alone_s, slow_s, both_s = map(min, zip(*found, strict=True))
        return {"ratio": both_s / ideal_s(alone_s, slow_s), "rounds": rounds} | dict(
            alone_s=alone_s, speed_of_the_slow_one=alone_s / slow_s, together_s=both_s, **_counts(both),
        )  # fmt: skip

    def measure_stopped(self, rounds: int) -> dict[str, Any]:
        """Returns the time of a batch in whose middle one of two equal workers is stopped, over the other one alone.

        Batches after it, which the other one does alone, count as well: the slower counts.
        """
        if self._groups is None:
            return CANNOT
        alone, batches, after = [], [], []
        for _ in range(rounds):
            alone.append(self._alone(CORES).evaluation_s(SETTLED))
            stopped_at: list[float] = []
            both = self._together({ONE: CORES, OTHER: CORES}, stopped_at)
            here = disturbed_iteration(both.iterations, stopped_at[0])
            batches.append(both.evaluation_s(here, here + 1))
            after.append(both.evaluation_s(here + 1))
        alone_s, batch_s, after_s = min(alone), min(batches), min(after)
        return {
            "ratio": max(batch_s, after_s) / alone_s, "rounds": rounds, "alone_s": alone_s, "batch_s": batch_s,
            "after_s": after_s, **_counts(both),
        }  # fmt: skip

    def measure_copies(self, rounds: int) -> dict[str, Any]:
        """Returns the time of an iteration with three copies of everything that is kept, over that with one.

        Of the whole training set and with as many threads as cores, on three servers.
        """
        whole = {"optimizer.batch": "full", "cluster.threads": available_cores(), "cluster.ps": 3}
        pairs = []
        for _ in range(rounds):
            one, three = (
                self._train(f"copies: {copies}", whole | {"cluster.replication": copies}) for copies in (1, 3)
            )
            pairs.append((one.evaluation_s(SETTLED), three.evaluation_s(SETTLED)))
        one_s, three_s = map(min, zip(*pairs, strict=True))
        return {"ratio": three_s / one_s, "rounds": rounds, "one_copy_s": one_s, "three_copies_s": three_s}

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _alone(self, cores: float, passes: int | None = None) -> Trained:
        async def limit(run: WatchedRun) -> None:
            self._limit(run, {ONE: cores})

        return self._train(f"a worker alone on {cores:g} of a core", {"cluster.workers": 1}, limit, passes)

    def _together(self, cores: dict[str, float], stopped_at: list[float] | None = None) -> Trained:
        async def disturb(run: WatchedRun) -> None:
            self._limit(run, cores)
            if stopped_at is not None:
                await stop_in_the_middle(run, OTHER, stopped_at)

        what = f"workers on {' and '.join(f'{one:g}' for one in cores.values())} of a core"
        return self._train(what if stopped_at is None else f"{what}, one is stopped", {"cluster.workers": 2}, disturb)

    def _limit(self, run: WatchedRun, cores: dict[str, float]) -> None:
        assert self._groups is not None
        for node, share in cores.items():
            self._groups.give(run.process(node).pid, share)

    def _train(self, what: str, settings: dict[str, Any], disturb: Any = None, passes: int | None = None) -> Trained:
        passes = self.passes if passes is None else passes
        self._progress(f"{self._workload.name}: {passes} evaluations, {what}")
        return train(self._workload, passes, self._settings | settings, self._data, disturb, groups=self._groups)


def ideal_s(alone_s: float, other_alone_s: float) -> float:
    """Returns how long two workers would take together if their speeds added up."""
    return 1 / (1 / alone_s + 1 / other_alone_s)


async def stop_in_the_middle(run: WatchedRun, node: str, stopped_at: list[float]) -> None:
    """Stops a process for good in the middle of a batch, some batches from now; adds Unix time to `stopped_at`.

    Raises:
        RunFailedError: there is no batch to be stopped in.
    """
    until_s = time.monotonic() + MIDDLE_S
    first: int | None = None
    while time.monotonic() < until_s:
        progress = run.progress
        batch = None if progress is None else progress.batch
        if batch is not None:
            if batch.stop_reason:
                break
            first = batch.evaluations + SETTLED if first is None else first
            if batch.evaluations >= first and MIDDLE[0] <= batch.bundles / batch.bundles_total <= MIDDLE[1]:
                os.kill(run.process(node).pid, signal.SIGSTOP)
                stopped_at.append(time.time())
                return
        await asyncio.sleep(POLL_S)
    raise RunFailedError("expected a batch in whose middle a worker can be stopped; found none: give more --passes")


def disturbed_iteration(iterations: Sequence[Iteration], at_s: float) -> int:
    """Returns the number of the iteration that lasted at a time: 0 is the first after the beginning.

    Raises:
        RunFailedError: there is none, or none after it.
    """
    later = [number for number, one in enumerate(iterations[1:]) if one.at_s > at_s]
    if len(later) < 2:
        raise RunFailedError("expected iterations after the one that was disturbed; found none: give more --passes")
    return later[0]


def _counts(run: Trained) -> dict[str, int]:
    batch = run.result["batch"]
    return {"bundles": batch["bundles_total"], "backups": batch["backups"], "backups_won": batch["backups_won"]}
