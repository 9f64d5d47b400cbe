"""`adamctl train` with L-BFGS, all roles as processes of this machine: what became of each iteration, and when."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.sandblaster.experiments import DOWNPOUR, LBFGS, Workload
from adamctl.bench.watched_run import WatchedRun
from adamctl.errors import RunFailedError
from adamctl.kernels.threads import available_cores
from adamctl.net.loop import run

LOOK_S = 0.02
"""A batch is looked at so often, to be disturbed in its middle."""
Disturb = Callable[[WatchedRun], Awaitable[None]]
"""Does something to a run while it trains."""


class Iteration(NamedTuple):
    """A commit.

    Attributes:
        at_s: Unix time.
        seconds: of training, until then.
        evaluations: until then.
        loss: with the L2 term.
    """

    at_s: float
    seconds: float
    evaluations: int
    loss: float


@dataclass(frozen=True)
class Trained:
    """A run that has ended.

    Attributes:
        result: what it printed.
        iterations: the first is where it began; none under the rules of Downpour.
    """

    result: Mapping[str, Any]
    iterations: Sequence[Iteration]

    @property
    def command_share(self) -> float:
        """Share of its time in which servers carried out commands while workers waited."""
        batch = self.result["batch"]
        return float(batch["command_seconds"] / (batch["command_seconds"] + batch["evaluation_seconds"]))

    def images_per_s(self, examples: int) -> float:
        """Returns images per second after the first iteration, all commands included. Raises as `evaluation_s`.

        `examples`: of an evaluation.
        """
        return examples / self.evaluation_s(1)

    def evaluation_s(self, first: int, last: int | None = None) -> float:
        """Returns the seconds of an evaluation and its commands: the median of iterations from `first` to `last`.

        Raises:
            RunFailedError: there are none.
        """
        times = [
            (after.seconds - before.seconds) / (after.evaluations - before.evaluations)
            for before, after in zip(self.iterations, self.iterations[1:], strict=False)
        ][first:last]
        if not times:
            raise RunFailedError(f"expected more than {first + 1} iterations; found {len(self.iterations)}")
        return statistics.median(times)


def measure_images(
    workload: Workload, passes: int, rounds: int, data: Sequence[str],
    progress: Callable[[str], None] = lambda _: None, groups: ControlGroups | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns images per second of whole runs in turn, of L-BFGS's evaluations and of Downpour.

    Args:
        passes: evaluations, and half as many passes of Downpour. What comes before the second evaluation does not
            count: reading the examples is part of the first.

    Raises:
        RunFailedError: a run fails, or has no second evaluation.
    """
    settings = {"cluster.threads": available_cores()}
    pairs = []
    for number in range(rounds):
        progress(f"{workload.name}: round {number + 1} of {rounds}, whole runs of L-BFGS and of Downpour")
        mine = train(workload, passes, settings, data, groups=groups).images_per_s(workload.examples)
        downpour = train(workload, max(passes // 2, 1), settings, data, optimizer=DOWNPOUR, groups=groups)
        pairs.append((mine, float(downpour.result["images_per_s"])))
    return {
        "whole_run_ratio": statistics.median(mine / theirs for mine, theirs in pairs),
        "whole_run_evaluation_images_per_s": statistics.median(mine for mine, _ in pairs),
        "whole_run_downpour_images_per_s": statistics.median(theirs for _, theirs in pairs),
    }


def train(
    workload: Workload,
    passes: int,
    settings: Mapping[str, Any],
    data: Sequence[str] = (),
    disturb: Disturb | None = None,
    optimizer: Mapping[str, Any] = LBFGS,
    groups: ControlGroups | None = None,
) -> Trained:
    """Trains until `passes` evaluations are used up.

    Args:
        settings: of the experiment, such as `cluster.workers`.
        data: folders in which data are looked up.
        disturb: is called once workers evaluate, and ends before the run does.
        groups: give all roles their cores before other programs.

    Raises:
        RunFailedError: the run fails.
    """
    folders = [str(Path(one).absolute()) for one in data]
    toml = workload.toml(passes, {"train.evaluate_every": passes + 1, **settings}, optimizer)
    return run(_train(toml, folders, disturb, groups))


async def _train(toml: str, data: Sequence[str], disturb: Disturb | None, groups: ControlGroups | None) -> Trained:
    with TemporaryDirectory(prefix="adamctl-bench-") as folder:
        file = Path(folder) / "bench.toml"
        file.write_text(toml)
        arguments = (str(file), *(part for one in data for part in ("--data", one)))
        async with WatchedRun(arguments, every_s=LOOK_S) as watched:
            if groups is not None:
                for process in watched.processes().values():
                    groups.give(process.pid, available_cores())
            if disturb is not None:
                await watched.trains()
                await disturb(watched)
            result = await watched.result()
            return Trained(result, [_iteration(record) for record in watched.records("iteration")])


def _iteration(record: Mapping[str, Any]) -> Iteration:
    return Iteration(record["time"], record["train_seconds"], record["evaluations"], record["loss"])
