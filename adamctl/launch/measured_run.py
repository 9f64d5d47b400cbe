"""What a finished or running run has measured of its partitions, from its folder: for `adamctl plan --measured`."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.config.resolved import read_resolved
from adamctl.errors import ConfigurationError
from adamctl.launch.finding import find_any_run
from adamctl.launch.live_runs import state_folder
from adamctl.launch.run_folder import EXPERIMENT
from adamctl.model.partition.plan import PartitionPlan
from adamctl.roles.coordinator.core.progress import Computed
from adamctl.roles.coordinator.records import METRICS_NAME
from adamctl.wire.unreadable import UNREADABLE

EXAMPLES_LEAST = 100
"""Fewer examples say little: first batches compile, and fill caches."""


class _Line(msgspec.Struct):
    """A line of metrics, as far as it is read."""

    kind: str = ""
    computed: Computed = ()


@dataclass(frozen=True)
class MeasuredRun:
    """A run and what it has measured.

    Attributes:
        plan: its partitions; one for whole replicas.
        batch: examples of a flight.
        compute_s: of each partition, seconds of one thread for one example, forward, backward and its accruing.
        examples: that this is the mean of.
    """

    folder: Path
    plan: PartitionPlan
    batch: int
    compute_s: tuple[float, ...]
    examples: int


def read_measured(run: str, runs: Path, experiment: Experiment) -> MeasuredRun:
    """Returns what a run has measured.

    Args:
        run: its folder, NAME/NNN, or NAME for the newest of that name.
        runs: the folder of run folders.
        experiment: that is planned; the run's network has to be its network.

    Raises:
        ConfigurationError: there is no such run, it is of another network, or it has measured nothing.
    """
    folder = find_any_run(run, runs, state_folder(os.environ))
    ran = read_resolved(folder / EXPERIMENT)
    if ran.model != experiment.model:
        found = f"{folder} is of another one ({_difference(ran, experiment)})"
        raise ConfigurationError(f"--measured {run}: expected a run of this network; {found}")
    plan, told = plan_of(ran), _last_told(folder / METRICS_NAME)
    examples = min((count for _, count in told), default=0)
    if len(told) != plan.partitions or examples < EXAMPLES_LEAST or not all(seconds > 0 for seconds, _ in told):
        raise ConfigurationError(
            f"--measured {run}: expected compute seconds of {plan.partitions} partition(s), for {EXAMPLES_LEAST} or "
            f"more examples, in {folder / METRICS_NAME}; found {examples}. Let a run train for some seconds first"
        )
    return MeasuredRun(folder, plan, ran.train.batch, tuple(seconds / count for seconds, count in told), examples)


def _last_told(file: Path) -> Computed:
    """Returns what the last line tells that tells anything; the very last one may be incomplete."""
    decoder = msgspec.json.Decoder(_Line)
    told: Computed = ()
    try:
        with file.open("rb") as stream:
            for line in stream:
                with suppress(*UNREADABLE):
                    told = decoder.decode(line).computed or told
    except OSError as error:
        raise ConfigurationError(f"--measured: {file}: cannot be read: {error.strerror}") from error
    return told


def _difference(ran: Experiment, wanted: Experiment) -> str:
    """Returns the first thing in which two networks differ."""
    if ran.model.input != wanted.model.input:
        return f"input {list(ran.model.input)} instead of {list(wanted.model.input)}"
    pairs = zip(ran.model.layers, wanted.model.layers, strict=False)
    for number, (one, other) in enumerate(pairs, 1):
        if one != other:
            return f"layer {number} differs"
    if len(ran.model.layers) != len(wanted.model.layers):
        return f"{len(ran.model.layers)} layers instead of {len(wanted.model.layers)}"
    return "its loss differs"
