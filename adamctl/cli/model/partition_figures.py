"""The figures of `adamctl plan` and of `adamctl summary --partitions`, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from adamctl.bench.slices import measure_rates
from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.launch.measured_run import MeasuredRun
from adamctl.launch.partitions import conditions_of as run_conditions
from adamctl.launch.reckoning import Machine as ThisMachine
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.cost import Conditions, Link, Price, price, price_replicas
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.measured import propose_cuts, scaled, slowness
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rates, check_rates
from adamctl.model.partition.rules import cuts_for, make_plan
from adamctl.model.partition.search import WORTH, choose_partitions, compare, divisors, smallest_that_fits
from adamctl.model.partition.work import Pushing, held_elements, parameter_traffic, work_of
from adamctl.wire.unreadable import UNREADABLE

RATES_BYTES_MAX = 16 << 20
Progress = Callable[[str], None]


def conditions_of(experiment: Experiment, link: Link) -> Conditions:
    """Returns what a run of an experiment is priced for, each worker on a machine like this one."""
    return run_conditions(experiment, link, memory_bytes=ThisMachine.here().memory_bytes)


def rates_for(experiment: Experiment, partitions: Sequence[int], file: str | None, progress: Progress) -> Rates:
    """Returns the rates of a file or, without one, of this machine, measured for these numbers of partitions.

    Raises:
        ConfigurationError: the file cannot be read, or holds no rates.
    """
    if file is not None:
        return read_rates(Path(file))
    plans = []
    for number in dict.fromkeys((1, *partitions)):
        with suppress(ConfigurationError):  # too many partitions for this network
            plans.append(make_plan(experiment.model, number, cuts_for(experiment.partition, number)))
    return measure_rates(plans, experiment.train.batch, progress)


def numbers_of(experiment: Experiment, partitions: int | None) -> tuple[int, ...]:
    """Returns the numbers of partitions that a summary may be about: one, or those that `auto` chooses from.

    Nothing if the experiment has one partition and no other number is asked for.
    """
    workers, wanted = experiment.cluster.workers, experiment.cluster.partitions
    if partitions is not None:
        return (partitions,)
    if wanted == "auto":
        return divisors(workers)
    return (wanted,) if wanted > 1 else ()


def read_rates(file: Path) -> Rates:
    """Reads rates as `adamctl plan --json` prints them, alone or with all else that it prints.

    Raises:
        ConfigurationError: the file cannot be read, or holds no rates.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(RATES_BYTES_MAX + 1)
        values = msgspec.json.decode(content[:RATES_BYTES_MAX])
        rates = msgspec.convert(values["rates"] if isinstance(values, dict) and "rates" in values else values, Rates)
    except OSError as error:
        raise ConfigurationError(f"--rates {file}: cannot be read: {error.strerror}") from error
    except UNREADABLE as error:
        raise ConfigurationError(
            f"--rates {file}: expected what adamctl plan EXP.toml --json prints; found something else: {error}"
        ) from error
    try:
        check_rates(rates)
    except ConfigurationError as error:
        raise ConfigurationError(f"--rates {file}: {error}") from error
    return rates


def summary_figures(experiment: Experiment, numbers: Sequence[int], rates: Rates, link: Link) -> dict[str, Any]:
    """Returns the plan of a number of partitions, part by part, and what it costs.

    One number is cut by the rules and the user's cuts; of several, the best is chosen, with the best cuts found.

    Raises:
        ConfigurationError: the network cannot be cut so; or, of several numbers, none fits the memory.
    """
    conditions, cuts = conditions_of(experiment, link), experiment.partition
    if len(numbers) > 1:
        plan = choose_partitions(experiment.model, experiment.cluster.workers, rates, conditions, cuts).plan
    else:
        plan = make_plan(experiment.model, numbers[0], cuts_for(cuts, numbers[0]))
    partitions, priced = plan.partitions, price(plan, rates, conditions)
    return {
        "plan_hash": plan.hash,
        "partitions": partitions,
        "head": plan.head,
        "stages": [_stage(plan, index, rates) for index in range(len(plan.stages))],
        "members": [_member(plan, priced, p, conditions) for p in range(partitions)],
        **_shared(conditions, link),
        "smallest_that_fits": None if priced.fits else smallest_that_fits(experiment.model, conditions, cuts),
        **_priced(priced),
    }  # fmt: skip


def plan_figures(experiment: Experiment, numbers: Sequence[int], rates: Rates, link: Link) -> dict[str, Any]:
    """Returns, for each number of partitions, the best cuts found and their price beside as many whole replicas.

    Raises:
        ConfigurationError: the network cannot be cut into one of them.
    """
    conditions = conditions_of(experiment, link)
    rows = [_choice(experiment, number, rates, conditions) for number in numbers]
    winner = _winner(rows)
    smallest = smallest_that_fits(experiment.model, conditions, experiment.partition) if winner is None else None
    return {
        "experiment": experiment.name,
        **_shared(conditions, link),
        "choices": rows,
        "winner": winner,
        "least_memory_bytes": min(
            row[kind]["largest_memory_bytes"] for row in rows for kind in ("replicas", "partitions") if row[kind]
        ),
        "smallest_that_fits": smallest,
        "rates": msgspec.to_builtins(rates),
    }


def measured_figures(run: MeasuredRun, rates: Rates, pushing: Pushing) -> tuple[Rates, dict[str, Any]]:
    """Returns rates scaled to what a run has measured, and what that was beside what they had predicted."""
    proposed = propose_cuts(run.plan, run.compute_s)
    return scaled(rates, run.plan, run.batch, pushing, run.compute_s), {
        "run_folder": str(run.folder.absolute()),
        "partitions": run.plan.partitions,
        "batch": run.batch,
        "examples": run.examples,
        "compute_s_per_example": list(run.compute_s),
        "times_predicted": list(slowness(run.plan, rates, run.batch, pushing, run.compute_s)),
        "proposed": {name: _cut(cut) for name, cut in proposed.items()},
    }


def _winner(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns what trains fastest and fits; of equals the fewest workers, and whole replicas."""
    found = [
        {"workers": row["workers"], "as": kind, "examples_per_s": row[kind]["examples_per_s"]}
        for row in rows
        for kind in ("replicas", "partitions")
        if row[kind] is not None and row[kind]["fits"]
    ]
    best = max((one["examples_per_s"] for one in found), default=0.0)
    equals = (one for one in found if one["examples_per_s"] >= best * (1 - WORTH))
    return min(equals, key=lambda one: (one["workers"], one["as"] == "partitions"), default=None)


def _choice(experiment: Experiment, number: int, rates: Rates, conditions: Conditions) -> dict[str, Any]:
    model, cuts = experiment.model, experiment.partition
    try:
        ruled = make_plan(model, number, cuts_for(cuts, number))
    except ConfigurationError as error:
        whole = _priced(price_replicas(model, number, rates, conditions))
        nothing: dict[str, Any] = {"partitions": None, "cuts": {}, "changed": []}
        return {"workers": number, "problem": str(error), "wins": "replicas", "replicas": whole, **nothing}
    choice = compare(model, number, rates, conditions, cuts)
    pairs = zip(choice.plan.stages, ruled.stages, strict=True)
    return {
        "workers": number,
        "problem": None,
        "wins": choice.wins,
        "partitions": _priced(choice.price),
        "replicas": _priced(choice.replicas),
        "cuts": {stage.name: _cut(stage.cut) for stage in choice.plan.stages},
        "changed": [found.name for found, rule in pairs if found.cut != rule.cut],
    }


def _stage(plan: PartitionPlan, index: int, rates: Rates) -> dict[str, Any]:
    stage = plan.stages[index]
    parts = []
    for p, part in enumerate(stage.parts):
        work = work_of(plan, index, p)
        up = sum(edge.elements for edge in plan.edges(index) if edge.producer == p)
        down = sum(edge.elements for edge in plan.backward_edges(index) if edge.consumer == p)
        if index == len(plan.stages) - 1 and p in stage.holders:
            up += plan.head_elements(p) * (len(stage.holders) - 1)
        parts.append(
            {
                "partition": p,
                "outputs": None if part.outputs is None else [list(along) for along in part.outputs],
                "inputs": None if part.inputs is None else [list(along) for along in part.inputs],
                "range": list(_range(plan, index, p)),
                "parameters": sum(map(region_size, part.parameters)),
                "up_bytes": up * ELEMENT_BYTES,
                "down_bytes": down * ELEMENT_BYTES,
                "working_set_bytes": 0 if work is None else work.working_set_bytes,
                "cache": None if work is None else rates.level(work.working_set_bytes),
            }
        )
    return {"name": stage.name, "layers": list(stage.layers), "cut": _cut(stage.cut), "parts": parts}


def _range(plan: PartitionPlan, index: int, partition: int) -> tuple[int, int]:
    stage = plan.stages[index]
    outputs = stage.parts[partition].outputs
    if outputs is None:
        return (0, 0)
    return outputs[-1] if stage.cut.axis == "maps" else outputs[0]


def _member(plan: PartitionPlan, priced: Price, partition: int, conditions: Conditions) -> dict[str, Any]:
    traffic = plan.traffic()
    memory = priced.memory[partition]
    pushed, fetched = parameter_traffic(plan, tensors_of(plan.model), partition, conditions.pushing)
    return {
        "partition": partition,
        "parameters": held_elements(plan, partition),
        "up_bytes": sum(pair.up_bytes for pair in traffic if pair.sender == partition),
        "down_bytes": sum(pair.down_bytes for pair in traffic if pair.sender == partition),
        "partial_gradient_bytes": sum(pair.flight_bytes for pair in traffic if pair.sender == partition),
        "push_bytes": pushed,
        "fetch_bytes": fetched,
        "compute_s": priced.compute_s[partition],
        "examples_per_s": conditions.batch * conditions.threads / priced.compute_s[partition],
        "link_bytes_per_flight": max(priced.sent_bytes[partition], priced.received_bytes[partition]),
        "memory_bytes": memory.total,
        "memory": memory._asdict(),
    }


def _shared(conditions: Conditions, link: Link) -> dict[str, Any]:
    return {
        "batch": conditions.batch,
        "threads": conditions.threads,
        "flights": conditions.flights,
        "servers": conditions.pushing.servers,
        "memory_per_worker_bytes": conditions.memory_bytes,
        "link_bytes_per_s": link.bytes_per_s,
        "latency_s": link.latency_s,
    }


def _priced(found: Price) -> dict[str, Any]:
    return {
        "examples_per_s": found.examples_per_s,
        "interval_s": found.interval_s,
        "flight_s": found.flight_s,
        "link_bytes_per_flight": found.link_bytes,
        "largest_memory_bytes": found.memory_bytes,
        "fits": found.fits,
        "bound_by": found.binds,
    }


def _cut(cut: Cut) -> dict[str, Any]:
    if cut.axis == "whole":
        return {"whole": cut.whole}
    return {"axis": cut.axis, "at": list(cut.at or ())}
