"""The figures of `adamctl plan --machines`, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from adamctl.bench.serving_rates import measure_serving_rates
from adamctl.cli.model.partition_figures import RATES_BYTES_MAX, conditions_of
from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.kernels.threads import available_cores
from adamctl.model.partition.cost import Conditions, Link
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.choosing import Planned, check_partitions, choose
from adamctl.model.scaling.failures import FailureCost, FailureTimes, failure_costs
from adamctl.model.scaling.machines import Planner, Training
from adamctl.model.scaling.rates import ServingRates, check_serving_rates
from adamctl.roles.controller.core.service.config import LEASE_S, silence_allowed_s
from adamctl.roles.data.client.shared_reads import PATIENCE_S
from adamctl.wire.unreadable import UNREADABLE

DIED_S = 0.1
"""Until a process that has died is known to have (docs/copies.md, Leases)."""
TAKEOVER_S = 0.12
"""From then until another copy serves: a killed server costs 0.22 s in the median (`adamctl bench failover`)."""
RESTART_S = 2.4
"""From the start of a process to its first step, with compiled kernels (`benchmarks/time_to_first_step.py`)."""
Progress = Callable[[str], None]


def serving_rates_for(experiment: Experiment, file: str | None, progress: Progress) -> ServingRates:
    """Returns the rates of servers in a file or, where it has none, of this machine.

    Raises:
        ConfigurationError: the file cannot be read, or its rates are wrong.
    """
    if file is not None:
        try:
            with Path(file).open("rb") as stream:
                values = msgspec.json.decode(stream.read(RATES_BYTES_MAX))
            if isinstance(values, dict) and values.get("serving_rates") is not None:
                rates = msgspec.convert(values["serving_rates"], ServingRates)
                check_serving_rates(rates)
                return rates
        except OSError as error:
            raise ConfigurationError(f"--rates {file}: cannot be read: {error.strerror}") from error
        except (*UNREADABLE, ConfigurationError) as error:
            raise ConfigurationError(f"--rates {file}: {error}") from error
    return measure_serving_rates(experiment, progress)


def training_of(experiment: Experiment, link: Link) -> Training:
    """Returns how an experiment trains on machines that have as many cores as its workers have threads.

    Raises:
        ConfigurationError: it does not push gradients.
    """
    train, cluster = experiment.train, experiment.cluster
    if experiment.optimizer.is_batch:
        raise ConfigurationError(
            f"optimizer.type: found {experiment.optimizer.type}; plan --machines expects gradients that are pushed, as "
            "under sgd: bundles of a batch algorithm are not simulated"
        )
    conditions = conditions_of(experiment, link)
    cores = available_cores() if cluster.threads == "auto" else cluster.threads
    return Training(
        experiment.model,
        conditions,
        steps_per_fetch=None if train.in_step or train.n_fetch == "auto" else train.steps_per_fetch,
        may_wait=experiment.fetch_follows_push and experiment.first_pushes == float("inf"),
        keeps_to_steps=train.in_step,
        staleness_most=train.max_staleness,
        copies=cluster.replication,
        apply_threads=cores if cluster.apply_threads == "auto" else cluster.apply_threads,
        decode_threads=cores,
        server_cores=cores,
        range_batches=train.range_batches,
        pass_fraction=train.pass_fraction,
        cuts=experiment.partition,
    )


def failure_times(experiment: Experiment, serving: ServingRates, restart_s: float) -> FailureTimes:
    """Returns how long failures take to be known and made good, by the constants of the protocols."""
    examples = None if serving.data is None else serving.data.examples * experiment.train.checkpoint_every
    return FailureTimes(
        DIED_S, silence_allowed_s(LEASE_S), TAKEOVER_S, restart_s, PATIENCE_S,
        has_store=experiment.cluster.store == "disk", checkpoint_examples=examples or None,
        copies=experiment.cluster.replication,
    )  # fmt: skip


def scaling_figures(
    experiment: Experiment,
    machines: Sequence[int],
    partitions: Sequence[int],
    rates: Rates,
    serving: ServingRates,
    link: Link,
    *,
    servers: int | None = None,
    data_servers: int | None = None,
    spread: float = 0.0,
    jitter: float = 0.0,
    restart_s: float = RESTART_S,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Returns what each number of machines is found to do, and what failures cost there.

    Raises:
        ConfigurationError: the network cannot be cut into any of `partitions`.
    """
    planner = Planner(training_of(experiment, link), rates, serving)
    possible = check_partitions(planner, partitions)
    times, rows = failure_times(experiment, serving, restart_s), []
    for number in machines:
        progress(f"{number} machines")
        found = choose(
            planner, number, possible, servers=servers, data_servers=data_servers, spread=spread, jitter=jitter,
            seed=experiment.seed,
        )  # fmt: skip
        rows.append({"machines": number, **({} if found is None else _planned(found, times))})
    if not any("examples_per_s" in row for row in rows):
        raise ConfigurationError(
            f"--machines: found at most {max(machines)}; a replica of {min(possible)} workers, its servers and data "
            f"servers need {min(possible) + (servers or 1) + (data_servers or 0)}"
        )
    return {
        "experiment": experiment.name,
        **_conditions(planner.training.conditions, link),
        "servers_cores": planner.training.server_cores,
        "apply_threads": planner.training.apply_threads,
        "spread": spread,
        "jitter": jitter,
        "seed": experiment.seed,
        "consistency": experiment.train.consistency,
        "machines": rows,
        "rates": msgspec.to_builtins(rates),
        "serving_rates": msgspec.to_builtins(serving),
    }


def _conditions(conditions: Conditions, link: Link) -> dict[str, Any]:
    return {
        "batch": conditions.batch,
        "threads": conditions.threads,
        "flights": conditions.flights,
        "steps_per_push": conditions.steps_per_push,
        "link_bytes_per_s": link.bytes_per_s,
        "latency_s": link.latency_s,
    }


def _planned(found: Planned, times: FailureTimes) -> dict[str, Any]:
    outcome, size = found.outcome, found.size
    return {
        **size._asdict(),
        "workers": size.replicas * size.partitions,
        "together": found.together,
        "examples_per_s": outcome.examples_per_s,
        "bound_by": found.binds,
        "compute_share": outcome.compute_share,
        "waited_shares": outcome.waited_shares,
        "server_link_share": max(outcome.server_in_share, outcome.server_out_share),
        "server_loop_share": outcome.server_loop_share,
        "server_cores_share": outcome.server_cores_share,
        "data_server_share": max(outcome.data_decode_share, outcome.data_link_share),
        "fetch_age_s": outcome.fetch_age_s,
        "pushes_applied_together": outcome.batches_together,
        "events": outcome.events,
        "failures": [_failure(cost) for cost in failure_costs(found, times)],
    }


def _failure(cost: FailureCost) -> dict[str, Any]:
    return {
        name: getattr(cost, name) for name in ("what", "noticed_s", "whole_s", "lost_examples", "lost_s", "ends_run")
    }
