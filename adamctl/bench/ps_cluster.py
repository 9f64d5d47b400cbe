"""A controller and parameter servers as processes of this machine, for one benchmark, and jobs on them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from adamctl.config.records import JobRecord, LayoutRecord
from adamctl.errors import RunFailedError
from adamctl.launch.process import RoleCommand
from adamctl.launch.roles import LocalRoles
from adamctl.model.layout import ParameterLayout
from adamctl.model.rule import RuleConfig
from adamctl.net.handshake import make_hello
from adamctl.net.loop import run
from adamctl.net.stream import StreamTransport
from adamctl.roles.controller.client import cluster_client, nodes_of
from adamctl.roles.coordinator.job import job_changes
from adamctl.wire.messages import StatusReply, StatusRequest

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd import EtcdClient

READY_S = 60.0
POLL_S = 0.02
CALL_S = 10.0
LOG_LINES = 10


class PsCluster:
    """A context manager: what it starts has ended when the block is left.

    Attributes:
        controller: its address.
        folder: private, for sockets.
    """

    def __init__(self, servers: int, apply_threads: int) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="adamctl-bench-")
        self.folder = Path(self._place.name)
        self.controller = ""
        self.servers = tuple(f"ps-{number}" for number in range(1, servers + 1))
        common = ("--socket-folder", str(self.folder), "--port", "0", "--log-level", "warning")
        self._controller_command = RoleCommand(
            "controller", "controller", ("--dir", str(self.folder / "controller"), *common)
        )
        member = (*common, "--controller", f"unix://{self.folder}/controller.s")
        commands = [RoleCommand("ps", node, ("--apply-threads", str(apply_threads), *member)) for node in self.servers]
        self._roles = LocalRoles((self._controller_command, *commands), self.folder, os.environ)

    def __enter__(self) -> PsCluster:
        try:
            self._roles.start()
            self._wait_ready()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _wait_ready(self) -> None:
        waiting, until_s = {"controller", *self.servers}, time.monotonic() + READY_S
        while waiting:
            for node, addresses in self._roles.newly_serving():
                waiting.discard(node)
                if node == "controller":
                    self.controller = next(a for a in addresses if a.startswith("tcp://"))
            ends = self._roles.failures()
            if ends or time.monotonic() > until_s:
                node = ends[0].node if ends else min(waiting)
                raise RunFailedError(f"{node} did not come up:\n{self.log_end(node)}")
            time.sleep(POLL_S)

    def log_end(self, node: str) -> str:
        """Returns the last lines that a process wrote."""
        lines = self._roles.log(node).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def processes(self) -> list[psutil.Process]:
        """Returns the parameter servers."""
        pids = self._roles.pids()
        return [psutil.Process(pids[node]) for node in self.servers]

    def create_job(self, name: str, record: LayoutRecord, copies: int = 1) -> ParameterLayout:
        """Makes a job of rule `add` on all servers; with several copies, two of them acknowledge a push."""
        return run(self._create_job(name, record, copies))

    async def _create_job(self, name: str, record: LayoutRecord, copies: int) -> ParameterLayout:
        store = connect_store(self.controller)
        try:
            layout = record.layout()
            _, entries = await store.read("/nodes/")
            job = JobRecord("running", layout.hash, RuleConfig("add"), 1)
            if copies > 1:
                job = msgspec.structs.replace(job, acks="replicated", replication=copies, min_in_sync=2)
            nodes = nodes_of(list(entries), "ps")
            await store.compare_and_set(job_changes(name, job, layout, record.servers_expected, nodes))
            return layout
        finally:
            await store.close()

    def status(self) -> list[dict[str, Any]]:
        """Returns what each server says of itself."""
        return run(self._status())

    async def _status(self) -> list[dict[str, Any]]:
        store, transport = connect_store(self.controller), StreamTransport()
        found = []
        try:
            _, entries = await store.read("/nodes/")
            for node in nodes_of(list(entries), "ps"):
                address = next(a for a in node.addresses if a.startswith("tcp://"))
                connection = await transport.connect(address, make_hello("bench", "bench"), deadline_s=CALL_S)
                reply = (await connection.request(StatusRequest(), deadline_s=CALL_S)).message
                assert isinstance(reply, StatusReply)
                found.append(dict(reply.status))
                await connection.close()
        finally:
            await store.close()
        return found

    def _close(self) -> None:
        try:
            run(self._roles.stop(grace_s=0.0))
        finally:
            self._place.cleanup()


def connect_store(keeper: str) -> ControllerClient | EtcdClient:
    """Returns a client of the configuration service, a controller or an etcd cluster, for the running loop."""
    return cluster_client(StreamTransport(), [keeper], lambda: make_hello("bench", "bench"))
