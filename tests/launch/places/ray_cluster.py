"""A whole Ray cluster on this machine: `ray.cluster_utils.Cluster`, whose nodes are processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import pytest

CORES = 2


class RayCluster:
    """The head has no cores, so that a front can stay connected to it while nodes come and go."""

    def __init__(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
        )  # fmt: skip
        self.environment = {**os.environ, "RAY_ADDRESS": self._cluster.address}
        self.address: str = self._cluster.address
        self.nodes: list[Any] = []

    def add_node(self) -> Any:
        node = self._cluster.add_node(num_cpus=CORES)
        self.nodes.append(node)
        return node

    def remove_node(self, node: Any, *, at_once: bool = True) -> None:
        """As if a node lost its power; otherwise Ray learns of it."""
        self.signal_node(node, signal.SIGCONT)
        self.nodes.remove(node)
        self._cluster.remove_node(node, allow_graceful=not at_once)

    def processes(self, node: Any) -> list[psutil.Process]:
        """Returns all processes of a node: Ray's, and what its actors started."""
        found: dict[int, psutil.Process] = {}
        for kind in node.all_processes.values():
            for info in kind:
                with suppress(psutil.Error):
                    parent = psutil.Process(info.process.pid)
                    found |= {one.pid: one for one in (parent, *parent.children(recursive=True))}
        return list(found.values())

    def signal_node(self, node: Any, number: signal.Signals) -> None:
        for process in self.processes(node):
            with suppress(psutil.Error):
                process.send_signal(number)

    def node_of(self, pid: int) -> Any:
        """Returns the node on which a process runs."""
        return next(node for node in self.nodes if pid in [process.pid for process in self.processes(node)])

    def given(self) -> int:
        """Returns how many actors and groups of bundles there are that have not ended."""
        import ray

        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        try:
            groups = [one for one in ray.util.placement_group_table().values() if one["state"] != "REMOVED"]
            actors = [one for one in ray._private.state.actors().values() if one["State"] != "DEAD"]
            return len(groups) + len(actors)
        finally:
            ray.shutdown()

    def clear(self) -> None:
        """Removes all nodes but the head."""
        for node in list(self.nodes):
            self.remove_node(node, at_once=False)

    def close(self) -> None:
        self.clear()
        self._cluster.shutdown()


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'adamctl[ray]' (240 MB)")
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.close()
