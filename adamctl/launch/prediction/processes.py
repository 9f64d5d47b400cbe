"""How a model predicts: in this process, or in how many, with how many threads, examples and flights."""

from __future__ import annotations

from typing import NamedTuple

from adamctl.config.partitioning import parse_size
from adamctl.errors import ConfigurationError
from adamctl.kernels.threads import available_cores
from adamctl.launch.prediction.forward import Forward, WholeNetwork
from adamctl.launch.reckoning import Machine
from adamctl.launch.trained import Trained
from adamctl.model.partition.prediction import flight_examples, open_flights, prediction_memory, prediction_plan
from adamctl.roles.worker.partition.threads import SPINS


class Processes(NamedTuple):
    """How a model is to predict.

    Attributes:
        partitions: processes that hold a part of it each; 1 holds all.
        threads: of each process; None: one of this process, or, in partitions, their share of the cores.
        memory: what each process may use, such as `2GB`; None: no limit but the machine's.
    """

    partitions: int = 1
    threads: int | None = None
    memory: str | None = None


def open_forward(trained: Trained, processes: Processes) -> Forward:
    """Returns what computes a model's outputs. Several processes, or threads, start with the first prediction.

    Raises:
        ConfigurationError: the model cannot be cut so, or does not fit; the message names the partitions that do.
        DamagedDataError: a file of the checkpoint is missing or damaged.
    """
    model, cuts = trained.experiment.model, trained.experiment.partition
    partitions, threads = processes.partitions, processes.threads
    if threads is not None and threads < 1:
        raise ConfigurationError(f"threads: expected at least 1; found {threads}")
    plan = prediction_plan(model, partitions, cuts)
    limit_bytes = _limit_bytes(processes.memory)
    if partitions == 1 and threads in (None, 1):
        return WholeNetwork(model, trained.checkpoint, flight_examples(plan, 1, cuts, limit_bytes))
    cores = available_cores()
    threads = threads or max(cores // partitions, 1)
    flights = open_flights(partitions, threads)
    batch = flight_examples(plan, flights, cuts, limit_bytes)
    needed_bytes = sum(prediction_memory(plan, one, batch, flights).total for one in range(partitions))
    there_bytes = Machine.here().memory_bytes
    if needed_bytes > there_bytes:
        raise ConfigurationError(
            f"memory: {partitions} processes need {needed_bytes / 1e9:,.2f} GB together; this machine has "
            f"{there_bytes / 1e9:,.2f} GB: take fewer threads, or a larger machine"
        )
    from adamctl.launch.prediction.group import PartitionGroup, Setting

    spins = SPINS if partitions * threads < cores else 0
    return PartitionGroup(Setting(trained.checkpoint, plan, batch, flights, threads, spins))


def _limit_bytes(memory: str | None) -> int | None:
    if memory is None:
        return None
    try:
        return parse_size(memory)
    except ValueError as error:
        raise ConfigurationError(f"memory: {error}") from error
