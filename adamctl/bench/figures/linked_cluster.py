"""A cluster whose workers and parameter servers are emulated machines: each a share of a core, and a link of its own.

Controller and data server are beside them. `adamctl train --join` trains on it; what it should do is planned by
`adamctl.bench.figures.cluster_prediction`. Only inside a namespace (`adamctl.bench.namespaces`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack

from adamctl.bench import namespaces
from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.failover.cluster import TOO_LONG_FOR_A_SOCKET, RoleInside
from adamctl.bench.namespaces import HUB, Namespaces
from adamctl.bench.role_processes import CONTROLLER, RoleProcesses
from adamctl.model.scaling.machines import Size
from adamctl.roles.role_process import RoleCommand


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
