"""What an experiment says about partitions: whether it can be, and the plan, flights and memory that follow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from adamctl.config.experiment import Experiment
from adamctl.config.lines import KeyPath
from adamctl.errors import ConfigurationError
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rules import make_plan

_UNITS = ("B", "KB", "MB", "GB", "TB")
SIZE_UNITS: Mapping[str, int] = {
    **{unit: 1000**power for power, unit in enumerate(_UNITS)},
    **{unit.replace("B", "iB"): 1024**power for power, unit in enumerate(_UNITS) if power},
}
"""Units of sizes: decimal ones, and binary ones with an i."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)")
_KEY = re.compile(r"(partition|cluster)\.([^:]+): ")


def parse_size(text: str) -> int:
    """Returns the bytes of a size such as `2GB` or `1.5 GiB`.

    Raises:
        ValueError: it is none, or not above 0.
    """
    found = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): size for unit, size in SIZE_UNITS.items()}
    if found is None or found[2].lower() not in units or not (size := round(float(found[1]) * units[found[2].lower()])):
        raise ValueError(f'expected a size above 0, for example "2GB" or "1500MiB"; found {text[:40]!a}')
    return size


def memory_of_worker(experiment: Experiment) -> int | None:
    """Returns the bytes that a worker may use, None where that is not set."""
    text = experiment.cluster.memory_per_worker
    return None if text is None else parse_size(text)


def flights_of(experiment: Experiment, threads: int) -> int:
    """Returns how many batches of a replica may be on their way, for workers of so many threads."""
    flights = experiment.cluster.flights
    return max(threads + 1, 2) if flights == "auto" else flights


def flight_size(experiment: Experiment, threads: int) -> int:
    """Returns the examples of a flight: a batch, or, with replicas in step, an equal part of one for each open flight.

    Where a batch does not divide by the flights, it has as many parts as it divides by.
    """
    batch = experiment.train.batch
    if not experiment.train.in_step:
        return batch
    return batch // max(parts for parts in range(1, flights_of(experiment, threads) + 1) if batch % parts == 0)


def plan_of(experiment: Experiment, partitions: int | None = None) -> PartitionPlan:
    """Returns the plan with the user's cuts; `partitions` None: as many as the experiment says, one for `auto`.

    Raises:
        ConfigurationError: as `make_plan`.
    """
    if partitions is None:
        partitions = 1 if experiment.cluster.partitions == "auto" else experiment.cluster.partitions
    return make_plan(experiment.model, partitions, experiment.partition)


def partition_problems(experiment: Experiment) -> Iterator[tuple[KeyPath, str]]:
    """Yields the key and what is wrong with it."""
    cluster = experiment.cluster
    if cluster.memory_per_worker is not None:
        try:
            parse_size(cluster.memory_per_worker)
        except ValueError as error:
            yield ("cluster", "memory_per_worker"), str(error)
    if cluster.partitions != "auto" and cluster.workers % cluster.partitions:
        least = -(-cluster.workers // cluster.partitions) * cluster.partitions
        found = f"found {cluster.partitions} with workers = {cluster.workers}"
        why = f"a replica is {cluster.partitions} workers; set cluster.workers to a multiple, such as {least}"
        yield ("cluster", "partitions"), f"{found}; {why}"
    if cluster.partitions == 1 and not experiment.partition:
        return
    try:
        plan_of(experiment)
    except ConfigurationError as error:  # what is wrong with the layers themselves is found with the model
        message = str(error)
        key = _KEY.match(message)
        if key:
            yield (key[1], key[2]), message[key.end() :]
