"""A controller and parameter servers as processes of this machine, for one benchmark, and jobs on them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import msgspec
import psutil

from adamctl.bench.failover.cluster import TOO_LONG_FOR_A_SOCKET, RoleInside
from adamctl.bench.namespaces import HUB, namespaces
from adamctl.bench.role_processes import CONTROLLER, RoleProcesses, connect_store, role_hello
from adamctl.config.records import JobRecord, LayoutRecord
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.configuration import nodes_of
from adamctl.roles.coordinator.job import job_changes
from adamctl.roles.role_process import RoleCommand
from adamctl.wire.messages import StatusReply, StatusRequest

CALL_S = 10.0
ADD = RuleConfig("add")


class PsCluster(RoleProcesses):
    """Starts everything at once; Unix sockets are in a separate folder.

    With links, servers have networks of their own, and all is TCP; only inside (`adamctl.bench.namespaces`).
    """

    def __init__(self, servers: int, apply_threads: int, link_bytes_per_s: float | None = None) -> None:
        """`link_bytes_per_s`: of each server's link, in each direction; None: all are on loopback."""
        super().__init__()
        self.servers = tuple(f"ps-{number}" for number in range(1, servers + 1))
        self._apply_threads, self._link_bytes_per_s = apply_threads, link_bytes_per_s

    def _start(self, stack: ExitStack) -> None:
        if self._link_bytes_per_s is not None:
            self._start_with_links(stack, self._link_bytes_per_s)
            return
        common = ("--socket-folder", str(self.folder), "--port", "0", "--log-level", "warning")
        member = (*common, "--controller", f"unix://{self.folder}/controller.s")
        self.roles.add(
            RoleCommand(CONTROLLER, CONTROLLER, ("--dir", str(self.folder / "store"), *common)),
            *(RoleCommand("ps", node, ("--apply-threads", str(self._apply_threads), *member)) for node in self.servers),
        )
        self.roles.start()
        self.wait_serving(CONTROLLER, *self.servers)

    def _start_with_links(self, stack: ExitStack, bytes_per_s: float) -> None:
        links = stack.enter_context(namespaces(self.servers))
        stack.callback(self.roles.kill)
        no_sockets = str(self.folder / TOO_LONG_FOR_A_SOCKET)
        common = ("--socket-folder", no_sockets, "--port", "0", "--log-level", "warning")
        store = ("--dir", str(self.folder / "store"), "--bind", HUB)
        self.roles.add(RoleCommand(CONTROLLER, CONTROLLER, (*store, *common)))
        self.roles.start_one(CONTROLLER)
        self.wait_serving(CONTROLLER)
        own = ("--apply-threads", str(self._apply_threads), *common, "--controller", self.controller)
        for node in self.servers:
            self.roles.add(RoleInside("ps", node, ("--bind", links.address(node), *own), links.prefix(node)))
            self.roles.start_one(node)
            links.limit(node, bytes_per_s)
        self.wait_serving(*self.servers)

    @property
    def controller(self) -> str:
        """The controller's address."""
        return self.addresses[CONTROLLER]

    def processes(self) -> list[psutil.Process]:
        """Returns the parameter servers."""
        pids = self.roles.pids()
        return [psutil.Process(pids[node]) for node in self.servers]

    def create_job(
        self, name: str, record: LayoutRecord, copies: int = 1, rule: RuleConfig = ADD, coordinator: str = ""
    ) -> ParameterLayout:
        """Creates a job on all servers, as its coordinator or a client; with several copies, two acknowledge a push."""
        return run(self._create_job(name, record, copies, rule, coordinator))

    async def _create_job(
        self, name: str, record: LayoutRecord, copies: int, rule: RuleConfig, coordinator: str
    ) -> ParameterLayout:
        store = connect_store(self.controller, *(("coordinator", coordinator) if coordinator else ("client", "bench")))
        try:
            layout = record.layout()
            _, entries = await store.read("/nodes/")
            job = JobRecord("running", layout.hash, rule, 1, coordinator)
            if copies > 1:
                job = msgspec.structs.replace(job, acks="replicated", replication=copies, min_in_sync=2)
            nodes = nodes_of(list(entries), "ps")
            await store.compare_and_set(job_changes(name, job, layout, record.servers_expected, nodes))
            return layout
        finally:
            await store.close()

    def status(self) -> list[dict[str, Any]]:
        """Returns each server's status."""
        return run(self._status())

    async def _status(self) -> list[dict[str, Any]]:
        store, transport = connect_store(self.controller), StreamTransport()
        found = []
        try:
            _, entries = await store.read("/nodes/")
            for node in nodes_of(list(entries), "ps"):
                address = next(a for a in node.addresses if a.startswith("tcp://"))
                connection = await transport.connect(address, role_hello("front", "bench"), deadline_s=CALL_S)
                reply = (await connection.request(StatusRequest(), deadline_s=CALL_S)).message
                assert isinstance(reply, StatusReply)
                found.append(dict(reply.status))
                await connection.close()
        finally:
            await store.close()
        return found
