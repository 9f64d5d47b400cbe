"""Which number of partitions a run has, and whether its workers have the memory: settled before a process starts.

`cluster.partitions = "auto"` is settled once. The run's experiment then holds the number and the cuts, so that the
coordinator and every worker have the same plan, and a run that continues it has, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import flights_of, memory_of_worker, plan_of
from adamctl.errors import ConfigurationError
from adamctl.kernels.threads import available_cores
from adamctl.launch.reckoning import Machine
from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE, Conditions, Link
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rates
from adamctl.model.partition.rules import cuts_for, make_plan
from adamctl.model.partition.search import (
    Choice,
    choose_partitions,
    divisors,
    largest_bytes,
    least_bytes,
    smallest_number_that_fits,
    too_large,
)
from adamctl.model.partition.work import SLOTS_IN_USE, SLOTS_PER_THREAD, Pushing
from adamctl.net.shared_memory import SUPPORTED

WITHIN_HOST = Link(bytes_per_s=5e9, latency_s=50e-6)
"""What goes between processes of one machine: a copy in memory, and a wait (docs/decisions/0028)."""
BETWEEN_HOSTS = Link(125e6, 100e-6, TCP_PROCESSOR_S_PER_BYTE)
"""What a run on a cluster is priced with, as `adamctl plan` is: 1 Gbit/s."""
READ_AHEAD_RANGES = 2
Note = Callable[[str], None]
Measure = Callable[[Sequence[PartitionPlan], int], Rates]
"""Measures the rates of plans for batches of so many examples."""
FILE_NAME = "partitions.json"


def conditions_of(
    experiment: Experiment, link: Link, threads: int | None = None, memory_bytes: int | None = None
) -> Conditions:
    """Returns what a run of an experiment is priced for.

    Args:
        threads: of each worker where the experiment leaves that open; None: as many as this machine has cores.
        memory_bytes: likewise, of one worker; None: no limit.
    """
    train, cluster = experiment.train, experiment.cluster
    if train.in_step:
        threads = 1
    elif cluster.threads != "auto" or threads is None:
        threads = available_cores() if cluster.threads == "auto" else cluster.threads
    fetches = 1.0 if train.n_fetch == "auto" else train.steps_per_push / train.steps_per_fetch
    pushing = Pushing(
        train.batch * train.steps_per_push, cluster.ps, experiment.push_protocol, train.wire_push, train.wire_pull,
        fetches, experiment.applies_locally, experiment.optimizer.clip_norm is not None,
    )  # fmt: skip
    own_bytes = memory_of_worker(experiment)
    return Conditions(
        train.batch, threads, flights_of(experiment, threads), SLOTS_IN_USE, train.steps_per_push, pushing, link,
        memory_bytes if own_bytes is None else own_bytes, READ_AHEAD_RANGES * train.range_batches * train.batch,
    )  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a run's workers are: on this machine, which they share, or (None) on machines of a cluster."""

    machine: Machine | None

    def conditions(self, experiment: Experiment, workers: int) -> Conditions:
        """Returns what a run with so many workers is priced for; nothing is known of the memory of a cluster's."""
        if self.machine is None:
            return conditions_of(experiment, BETWEEN_HOSTS, threads=1)
        threads = max(self.machine.cores // workers, 1)
        return conditions_of(experiment, WITHIN_HOST, threads, self.machine.memory_bytes // workers)

    def smallest_that_fits(self, experiment: Experiment) -> int | None:
        """Returns the fewest partitions whose memory is enough, with as many workers as there are, or as they need."""

        def conditions(partitions: int) -> Conditions:
            return self.conditions(experiment, -(-experiment.cluster.workers // partitions) * partitions)

        return smallest_number_that_fits(experiment.model, conditions, experiment.partition)


@dataclass(frozen=True)
class Settled:
    """An experiment whose number of partitions is settled.

    Attributes:
        record: for the run's folder, if the number was chosen: it, the plan, and what was said of the choice.
    """

    experiment: Experiment
    record: dict[str, Any] | None = None


def numbers_of(experiment: Experiment) -> tuple[int, ...]:
    """Returns the numbers of partitions that a run may have, ascending: its own, or those that `auto` chooses from."""
    wanted = experiment.cluster.partitions
    if wanted != "auto":
        return (wanted,)
    found = divisors(experiment.cluster.workers)
    return tuple(number for number in found if number == 1 or (SUPPORTED and _is_possible(experiment, number)))


def check_memory(experiment: Experiment, place: Place, note: Note) -> None:
    """Refuses a run whose workers cannot hold their partitions.

    Where `memory_per_worker` is not set, the workers of this machine share what it, or the control group, allows; whole
    replicas that seem to need more are then only warned of.

    Raises:
        ConfigurationError: the message names the need, the limit, its key, and the fewest partitions that fit.
    """
    cluster, numbers = experiment.cluster, numbers_of(experiment)
    conditions = place.conditions(experiment, cluster.workers)
    limit_bytes, is_set = conditions.memory_bytes, cluster.memory_per_worker is not None
    if limit_bytes is None:
        return
    needed_bytes = least_bytes(experiment.model, numbers, conditions, experiment.partition)
    if needed_bytes > limit_bytes:
        refusal = too_large(_holders(experiment), limit_bytes, needed_bytes, place.smallest_that_fits(experiment))
        if is_set or 1 not in numbers:
            raise refusal
        note(f"warning: {refusal}")
    elif is_set:
        slow = replace(conditions, slots=SLOTS_PER_THREAD)
        most_bytes = least_bytes(experiment.model, numbers, slow, experiment.partition)
        if most_bytes > limit_bytes:
            note(
                f"note: cluster.memory_per_worker is {_gigabytes(limit_bytes)}: a worker needs "
                f"{_gigabytes(needed_bytes)} while parameter servers keep up, else up to {_gigabytes(most_bytes)}"
            )


def settle(experiment: Experiment, place: Place, resume: str, note: Note, measure: Measure) -> Settled:
    """Returns the experiment with `partitions = "auto"` settled: by memory first, and predicted time second.

    A run that continues another keeps that one's partitions, if it has as many workers that they fit. Otherwise the
    choice is among the numbers that divide the workers, beside as many whole replicas.

    Args:
        resume: the checkpoint that the run continues from, or `none`.
        measure: called if there is more than one number to choose from.
    """
    if experiment.cluster.partitions != "auto":
        return Settled(experiment)
    conditions = place.conditions(experiment, experiment.cluster.workers)
    numbers = tuple(number for number in numbers_of(experiment) if _fits(experiment, number, conditions)) or (1,)
    earlier = _partitions_of_earlier(experiment, numbers, resume)
    if earlier is not None:
        text = f"{earlier.cluster.partitions}, as the run that this one continues"
        return _settled(earlier, text, {}, note)
    plans = [make_plan(experiment.model, one, cuts_for(experiment.partition, one)) for one in numbers]
    if len(plans) == 1:
        return _settled(_with_partitions(experiment, plans[0]), _only(plans[0], experiment, conditions), {}, note)
    note(f"measuring what parts of the network take here, to choose from {', '.join(map(str, numbers))} partitions")
    rates = measure(plans, experiment.train.batch)
    choice = choose_partitions(
        experiment.model, experiment.cluster.workers, rates, conditions, experiment.partition, numbers
    )
    return _settled(_with_partitions(experiment, choice.plan), _said(choice), _figures(choice), note)


def write_record(settled: Settled, folder: Path) -> None:
    """Writes how the number was chosen into the run's folder, if it was chosen."""
    if settled.record is not None:
        (folder / FILE_NAME).write_text(json.dumps(settled.record, indent=1) + "\n", encoding="utf-8")


def measure_here(plans: Sequence[PartitionPlan], batch: int) -> Rates:
    """Returns this machine's rates for plans."""
    from adamctl.bench.slices import measure_rates  # loads kernels, which a run without `auto` leaves to its workers

    return measure_rates(plans, batch)


def _settled(experiment: Experiment, text: str, figures: dict[str, Any], note: Note) -> Settled:
    said = f"cluster.partitions = auto: {text}"
    note(said)
    partitions = experiment.cluster.partitions
    return Settled(
        experiment, {"partitions": partitions, "plan_hash": plan_of(experiment).hash, "said": said, **figures}
    )


def _only(plan: PartitionPlan, experiment: Experiment, conditions: Conditions) -> str:
    """Returns why one number of partitions is the only one to choose."""
    workers = experiment.cluster.workers
    if plan.partitions == 1:
        return f"1: no other number is possible with {workers} worker{'s' * (workers > 1)}"
    whole, limit = (
        _gigabytes(size or 0) for size in (largest_bytes(make_plan(plan.model, 1), conditions), conditions.memory_bytes)
    )
    each = _gigabytes(largest_bytes(plan, conditions))
    return f"{plan.partitions}: partitions of {each} each win; a whole replica of {whole} does not fit {limit}"


def _said(choice: Choice) -> str:
    """Returns which of partitions and whole replicas wins, and why."""
    partitions, workers = choice.plan.partitions, choice.replicas.replicas
    replicas = f"{workers} whole replica{'s' * (workers > 1)}"
    whole = f"{replicas} of {_gigabytes(choice.replicas.memory_bytes)} each"
    if choice.wins == "replicas":
        return f"1: {whole} win, with {choice.replicas.examples_per_s:,.0f} examples per second predicted"
    found = (
        f"{partitions}: {workers // partitions} x {partitions} partitions of {_gigabytes(choice.price.memory_bytes)}"
    )
    found += f" each win, with {choice.price.examples_per_s:,.0f} examples per second predicted; {whole}"
    return f"{found}: {choice.replicas.examples_per_s:,.0f}" if choice.replicas.fits else f"{found} do not fit"


def _figures(choice: Choice) -> dict[str, Any]:
    return {
        "wins": choice.wins,
        "examples_per_s": choice.price.examples_per_s,
        "memory_bytes": choice.price.memory_bytes,
        "bound_by": choice.price.binds,
        "replicas": {
            "examples_per_s": choice.replicas.examples_per_s,
            "memory_bytes": choice.replicas.memory_bytes,
            "fits": choice.replicas.fits,
        },
    }


def _with_partitions(experiment: Experiment, plan: PartitionPlan) -> Experiment:
    """Returns the experiment with a plan's number, and with those of its cuts that are not the rules'."""
    partitions = plan.partitions
    cluster = msgspec.structs.replace(experiment.cluster, partitions=partitions)
    if partitions == 1:
        return msgspec.structs.replace(experiment, cluster=cluster)
    own = cuts_for(experiment.partition, partitions)
    cuts: dict[str, Cut] = dict(own)
    while (made := make_plan(experiment.model, partitions, cuts)).hash != plan.hash:
        pairs = zip(plan.stages, made.stages, strict=True)
        cuts |= dict([next((wanted.name, wanted.cut) for wanted, found in pairs if wanted.cut != found.cut)])
    return msgspec.structs.replace(experiment, cluster=cluster, partition=dict(cuts))


def _partitions_of_earlier(experiment: Experiment, numbers: Sequence[int], resume: str) -> Experiment | None:
    """Returns the experiment with the partitions of the run that it continues; None if they do not suit it."""
    if resume == "none":
        return None
    from adamctl.roles.coordinator.checkpoint.manifest import read_manifest

    earlier = read_manifest(Path(resume)).experiment
    partitions = earlier.cluster.partitions
    if partitions == "auto" or partitions not in numbers:
        return None
    wanted, found = (cuts_for(one.partition, partitions) for one in (experiment, earlier))
    if any(found.get(name) != cut for name, cut in wanted.items()):
        return None
    cluster = msgspec.structs.replace(experiment.cluster, partitions=partitions)
    return msgspec.structs.replace(experiment, cluster=cluster, partition=earlier.partition)


def _is_possible(experiment: Experiment, partitions: int) -> bool:
    """Whether the network can be cut so."""
    try:
        make_plan(experiment.model, partitions, cuts_for(experiment.partition, partitions))
    except ConfigurationError:
        return False
    return True


def _fits(experiment: Experiment, partitions: int, conditions: Conditions) -> bool:
    needed_bytes = least_bytes(experiment.model, (partitions,), conditions, experiment.partition)
    return conditions.memory_bytes is None or needed_bytes <= conditions.memory_bytes


def _holders(experiment: Experiment) -> str:
    workers, partitions = experiment.cluster.workers, experiment.cluster.partitions
    if partitions in ("auto", 1):
        return f"{workers} worker{'s' * (workers > 1)}"
    return f"{partitions} partitions"


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.2f} GB"
