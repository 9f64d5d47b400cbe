"""What a cluster of emulated machines should train: planned from rates of this machine, as it is (pure).

Each worker and each server has a share of a core and one thread. The data server has its examples in memory, and is not
what is planned.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from adamctl.bench.namespaces import TCP_SHARE
from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import TCP, Slowed, on_shares
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE
from adamctl.model.partition.rates import Rates
from adamctl.model.partition.work import parameter_traffic
from adamctl.model.scaling.choosing import binding, run
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates

DATA_PER_S = 1e6
"""Examples that the data server sends each second, at most."""
EXAMPLES = 60_000
"""Of a pass, where nothing else is said."""


def predicted(
    experiment: Experiment, size: Size, rates: Rates, serving: ServerRates, quota_cores: float,
    link_bytes_per_s: float | None, examples: int = EXAMPLES, *, server_cores: float | None = None,
    input_bytes: int = 1, processor_s_per_byte: float = TCP_PROCESSOR_S_PER_BYTE,
) -> tuple[float, str]:  # fmt: skip
    """Returns the examples per second of a size on machines with a share of a core each, and what binds.

    Args:
        rates, serving: of this machine, as it is.
        quota_cores: of each worker.
        link_bytes_per_s: None: no limit.
        examples: of a pass.
        server_cores: of each server; None: as many as of a worker.
        input_bytes: of each number of an example, as the data server sends it: pixels are single bytes.
        processor_s_per_byte: what pushes and fetches take of a whole core, at each end.

    Raises:
        ConfigurationError: the experiment does not push gradients, or cannot be cut like that.
    """
    machines = Machines(quota_cores=quota_cores)
    link = replace(TCP, processor_s_per_byte=processor_s_per_byte)
    if link_bytes_per_s is not None:
        link = replace(link, bytes_per_s=link_bytes_per_s * TCP_SHARE)
    training = training_of(experiment, link)
    slowed = Slowed(rates, quota_cores)
    conditions = on_shares(training.conditions, plan_of(experiment, size.partitions), slowed, machines)
    training = replace(
        training, conditions=conditions, apply_threads=1, decode_threads=1, core_share=quota_cores,
        server_cores=quota_cores if server_cores is None else server_cores,
    )  # fmt: skip
    example_bytes = input_bytes * prod(experiment.model.input) + ELEMENT_BYTES  # and a label
    served = ServingRates(serving, DataRates(DATA_PER_S, example_bytes, examples))
    cluster = Planner(training, slowed, served).cluster(size)
    cluster = replace(cluster, latency_s=TCP.latency_s + machines.idle_s())  # of pushes, of which a flight has one
    outcome = run(cluster, experiment.seed)
    return outcome.examples_per_s, binding(cluster, outcome)


def bytes_of_a_batch(experiment: Experiment) -> float:
    """Returns what a worker that has a replica of its own pushes and fetches for each batch.

    Raises:
        ConfigurationError: the experiment does not push gradients.
    """
    training, plan = training_of(experiment, TCP), plan_of(experiment, 1)
    conditions = training.conditions
    pushing = conditions.pushing._replace(servers=1, fetch_per_push=1.0)
    pushed, fetched = parameter_traffic(plan, tensors_of(training.model), 0, pushing)
    return pushed / conditions.steps_per_push + fetched / (training.steps_per_fetch or conditions.steps_per_push)
