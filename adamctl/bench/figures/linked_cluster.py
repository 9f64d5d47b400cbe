"""A cluster whose workers and parameter servers are emulated machines: each a share of a core, and a link of its own.

Controller and data server are beside them. `adamctl train --join` trains on it; what it should do is planned from rates
of this machine as it is. Only inside a namespace (`adamctl.bench.namespaces`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

from adamctl.bench import namespaces
from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.failover.cluster import TOO_LONG_FOR_A_SOCKET, RoleInside
from adamctl.bench.namespaces import HUB, TCP_SHARE, Namespaces
from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import TCP, Slowed, on_shares
from adamctl.bench.role_processes import CONTROLLER, RoleProcesses
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.choosing import binding, run
from adamctl.model.scaling.machines import Planner, Size
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates
from adamctl.roles.role_process import RoleCommand

DATA_PER_S = 1e6
"""Examples that the data server decodes each second: it has them in memory, and is not what is measured."""
EXAMPLES = 60_000
"""Of a pass, where nothing else is said."""


class LinkedCluster(RoleProcesses):
    """Roles of a size: workers and parameter servers on machines of their own.

    Attributes:
        servers, workers: their names.
        links: the machines' links, which have no limit at first.
    """

    def __init__(self, size: Size, data: Sequence[str], groups: ControlGroups, quota_cores: float) -> None:
        """
        Args:
            data: folders in which the data server looks data up.
            quota_cores: of each worker and parameter server.
        """
        super().__init__()
        self._data, self._groups, self._quota_cores = data, groups, quota_cores
        self.servers = tuple(f"ps-{number}" for number in range(1, size.servers + 1))
        self.workers = tuple(f"worker-{number}" for number in range(1, size.partitions * size.replicas + 1))
        self.links: Namespaces

    def _start(self, stack: ExitStack) -> None:
        self.links = stack.enter_context(namespaces.namespaces((*self.servers, *self.workers)))
        stack.callback(self.roles.kill)
        self.roles.add(self._beside(CONTROLLER, CONTROLLER, "--dir", str(self.folder / CONTROLLER)))
        self.roles.start_one(CONTROLLER)
        self.wait_serving(CONTROLLER)
        member = ("--controller", self.addresses[CONTROLLER])
        roots = tuple(part for folder in self._data for part in ("--data", folder))
        self.roles.add(
            self._beside("data", "data-1", *member, *roots),
            *(self._inside("ps", node, *member, "--apply-threads", "1") for node in self.servers),
            *(self._inside("worker", node, *member, "--threads", "1") for node in self.workers),
        )
        for node in ("data-1", *self.servers, *self.workers):
            self.roles.start_one(node)
        self.wait_serving("data-1", *self.servers, *self.workers)
        pids = self.roles.pids()
        for node in (*self.servers, *self.workers):
            self._groups.share_cores(f"{os.getpid()}-{time.monotonic_ns()}-{node}", pids[node], self._quota_cores)

    def _common(self, node: str) -> tuple[str, ...]:
        sockets = self.folder / TOO_LONG_FOR_A_SOCKET / node
        return "--socket-folder", str(sockets), "--log-level", "warning", "--port", "0"

    def _beside(self, role: str, node: str, *arguments: str) -> RoleCommand:
        return RoleCommand(role, node, ("--bind", HUB, *self._common(node), *arguments))

    def _inside(self, role: str, node: str, *arguments: str) -> RoleCommand:
        bound = ("--bind", self.links.address(node), *self._common(node), *arguments)
        return RoleInside(role, node, bound, self.links.prefix(node))

    def beside(self) -> list[int]:
        """Returns the processes that are on no machine of their own."""
        machines = {*self.servers, *self.workers}
        return [pid for node, pid in self.roles.pids().items() if node not in machines]

    def limit(self, bytes_per_s: float | None) -> None:
        """Gives every machine's link a rate; None: no limit."""
        for node in (*self.servers, *self.workers):
            self.links.limit(node, bytes_per_s)

    def arguments(self, experiment: str, size: Size, settings: Sequence[str]) -> tuple[str, ...]:
        """Returns what follows `adamctl train` for a run on it; `settings`: as for `--set`."""
        return (
            experiment, "--join", self.addresses[CONTROLLER].removeprefix("tcp://"),
            "--workers", str(len(self.workers)), "--ps", str(size.servers),
            *(part for folder in self._data for part in ("--data", folder)),
            *(part for one in (*settings, f"cluster.partitions={size.partitions}") for part in ("--set", one)),
        )  # fmt: skip


def predicted(
    experiment: Experiment, size: Size, rates: Rates, serving: ServerRates, quota_cores: float,
    link_bytes_per_s: float | None, examples: int = EXAMPLES,
) -> tuple[float, str]:  # fmt: skip
    """Returns the examples per second of a size on machines with a share of a core each, and what binds.

    Args:
        rates, serving: of this machine, as it is.
        link_bytes_per_s: None: no limit.
        examples: of a pass.
    """
    machines = Machines(quota_cores=quota_cores)
    link = TCP if link_bytes_per_s is None else replace(TCP, bytes_per_s=link_bytes_per_s * TCP_SHARE)
    training = training_of(experiment, link)
    slowed = Slowed(rates, quota_cores)
    conditions = on_shares(training.conditions, plan_of(experiment, size.partitions), slowed, machines)
    training = replace(
        training, conditions=conditions, apply_threads=1, decode_threads=1, server_cores=quota_cores,
        core_share=quota_cores,
    )  # fmt: skip
    example_bytes = prod(experiment.model.input) + ELEMENT_BYTES  # pixels as bytes, and a label
    served = ServingRates(serving, DataRates(DATA_PER_S, example_bytes, examples))
    cluster = Planner(training, slowed, served).cluster(size)
    cluster = replace(cluster, latency_s=TCP.latency_s + machines.idle_s())  # of pushes, of which a flight has one
    outcome = run(cluster, experiment.seed)
    return outcome.examples_per_s, binding(cluster, outcome)
