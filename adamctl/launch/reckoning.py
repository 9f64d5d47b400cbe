"""Estimates what a run on this machine needs before anything starts, and compares it with what the machine has.

It counts only what a run certainly needs, so that it never refuses a run that would fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.kernels.rules.make import RULES
from adamctl.kernels.threads import available_cores
from adamctl.model.layout import ELEMENT_BYTES, build_layout
from adamctl.model.shapes import infer
from adamctl.optimizers.configured import check_copies, rule_of, settings_of

PROCESSES_PER_CORE_MAX = 16
PROCESSES_MIN = 32
"""Even a small machine may run this many processes: most of them wait."""
THREADS_PER_CORE_MAX = 16
PROCESS_BYTES = 50 << 20
"""Least memory of a role's interpreter and libraries."""
_ACCUMULATOR_BYTES = 8
"""Of the sum of gradients, a parameter: a 64-bit whole number."""
_OTHERS = 2
"""The coordinator and the controller."""
_VECTORS = 3
"""Vectors of a replica: its weights, fetched ones, and those of an evaluation."""
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True)
class Machine:
    """What a run may use: `memory_bytes` in total, and cores."""

    memory_bytes: int
    cores: int

    @classmethod
    def here(cls) -> Machine:
        import psutil

        memory_bytes = int(psutil.virtual_memory().total)
        return cls(min([memory_bytes, *_cgroup_bytes()]), available_cores())


@dataclass(frozen=True)
class Part:
    """The least memory of one part of a run, and the experiment's keys that determine it."""

    what: str
    size_bytes: int
    keys: str


def check_sizes(experiment: Experiment, machine: Machine) -> None:
    """Refuses a run that this machine cannot hold.

    Raises:
        ConfigurationError: it needs more processes, threads or memory than there are; the message says what it needs,
            what there is, and which key to change.
    """
    _check_processes(experiment, machine)
    parts = memory_of(experiment, _threads(experiment, machine))
    needed_bytes = sum(part.size_bytes for part in parts)
    if needed_bytes > machine.memory_bytes:
        largest = max(parts, key=lambda part: part.size_bytes)
        listed = ", ".join(f"{part.what} {_gigabytes(part.size_bytes)}" for part in parts)
        raise ConfigurationError(
            f"this run needs at least {_gigabytes(needed_bytes)} of memory ({listed}); this machine has "
            f"{_gigabytes(machine.memory_bytes)}. Lower {largest.keys}, or run it on several machines with --join"
        )


def _check_processes(experiment: Experiment, machine: Machine) -> None:
    cluster = experiment.cluster
    asked = {"workers": cluster.workers, "ps": cluster.ps, "data": cluster.data}
    allowed = max(PROCESSES_MIN, PROCESSES_PER_CORE_MAX * machine.cores)
    if sum(asked.values()) + _OTHERS > allowed:
        key = max(asked, key=lambda name: asked[name])
        raise ConfigurationError(
            f"cluster.{key} = {asked[key]}: the run would start {sum(asked.values()) + _OTHERS} processes; on this "
            f"machine's {machine.cores} cores it may start {allowed}. Lower cluster.{key}, or run it on several "
            "machines with --join"
        )
    if cluster.threads != "auto" and cluster.threads > THREADS_PER_CORE_MAX * machine.cores:
        raise ConfigurationError(
            f"cluster.threads = {cluster.threads}: a worker may have {THREADS_PER_CORE_MAX * machine.cores} threads on "
            f"this machine's {machine.cores} cores. Lower it, or leave it at auto"
        )


def memory_of(experiment: Experiment, threads: int) -> tuple[Part, ...]:
    """Returns the least memory of each part of a run, with `threads` threads in each worker.

    Raises:
        ConfigurationError: the layers do not fit together, the model is too large to be cut into shards, shards are
            too large to be copied, or a batch algorithm cannot be found or run.
    """
    cluster, batch = experiment.cluster, experiment.train.batch
    layout = build_layout(experiment.model, cluster.ps)
    check_copies(experiment, layout)
    model_bytes = ELEMENT_BYTES * layout.flat_size
    outputs = sum(prod(shape.output) for shape in infer(experiment.model))
    replicas = 1 if cluster.partitions == "auto" else cluster.workers // cluster.partitions
    processes = cluster.workers + cluster.ps + cluster.data + _OTHERS
    return (
        Part("processes", processes * PROCESS_BYTES, "cluster.workers"),
        servers_part(experiment, layout.flat_size),
        Part("workers", replicas * model_bytes * (_VECTORS + 2 * threads), "the sizes of model.layers"),
        Part("batches", replicas * threads * batch * outputs * ELEMENT_BYTES, "train.batch"),
    )


def servers_part(experiment: Experiment, parameters: int) -> Part:
    """Returns the least memory of the parameter servers: all copies of what they keep, and one of what they do not.

    Args:
        parameters: of the model.

    Raises:
        ConfigurationError: a batch algorithm cannot be found or run.
    """
    copies, keys = experiment.cluster.replication, "the sizes of model.layers"
    if not experiment.optimizer.is_batch:
        rule = RULES[experiment.optimizer.type]
        vectors = 1 + len(rule.state_names) - len(rule.shard_state)
        return Part("parameter servers", ELEMENT_BYTES * parameters * vectors * copies, keys)
    vectors_rule = rule_of(experiment)
    kept_bytes = ELEMENT_BYTES * (1 + len(vectors_rule.kept)) * copies
    scratch_bytes = ELEMENT_BYTES * len(vectors_rule.scratch) + _ACCUMULATOR_BYTES
    if hasattr(settings_of(experiment), "history"):
        keys = "optimizer.history"
    return Part("parameter servers", parameters * (kept_bytes + scratch_bytes), keys)


def _threads(experiment: Experiment, machine: Machine) -> int:
    cluster = experiment.cluster
    if experiment.train.in_step:
        return 1
    return max(machine.cores // max(cluster.workers, 1), 1) if cluster.threads == "auto" else cluster.threads


def _gigabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB"


def _cgroup_bytes() -> list[int]:
    """Returns the memory limits of this process's control group, if any."""
    found = []
    for name in _CGROUP_LIMITS:
        try:
            found.append(int(Path(name).read_text()))
        except (OSError, ValueError):  # no such group, or no limit ("max")
            continue
    return found
