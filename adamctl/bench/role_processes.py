"""Roles as processes of this machine, for one benchmark or one test."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from adamctl.errors import RunFailedError
from adamctl.launch.roles import LocalRoles
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.token_file import environment_token
from adamctl.roles.controller.client import cluster_client

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.roles.controller.etcd.client import EtcdClient
    from adamctl.wire.messages import Hello

READY_S = 60.0
POLL_S = 0.02
LOG_LINES = 15
CONTROLLER = "controller"


class RoleProcesses:
    """A context manager: all that it starts has ended when the block is left.

    Attributes:
        folder: private folder for sockets and logs.
        roles: the processes.
        addresses: node -> its TCP address, for nodes that `wait_serving` has waited for.
    """

    folder: Path
    roles: LocalRoles

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adamctl-bench-")))
            self.roles = LocalRoles((), self.folder, os.environ)
            stack.callback(self.roles.kill)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> None:
        """Starts the processes; `stack` takes cleanup that runs at the end, before the processes are killed."""
        raise NotImplementedError

    def wait_serving(self, *names: str) -> None:
        """Returns when processes serve. Raises RunFailedError with the end of the log of one that does not."""
        waiting, until_s = set(names) - self.addresses.keys(), time.monotonic() + READY_S
        while waiting:
            for node, addresses in self.roles.newly_serving():
                self.addresses[node] = next(address for address in addresses if address.startswith("tcp://"))
                waiting.discard(node)
            self.roles.newly_ended()
            ended = [end.node for end in self.roles.failures() if end.node in waiting]
            if ended or (waiting and time.monotonic() > until_s):
                node = ended[0] if ended else min(waiting)
                raise RunFailedError(f"{node} did not come up:\n{self.log_end(node)}")
            time.sleep(POLL_S)

    def log_end(self, node: str) -> str:
        """Returns the last lines that a process wrote."""
        lines = self.roles.log(node).read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])


def role_hello(role: str, node: str, incarnation: int = 0, token: str = "") -> Hello:
    """Returns the identity of a client of these processes, with their token or else the one of our environment."""
    return make_hello(role, node, incarnation, token or environment_token(os.environ))


def connect_store(
    keeper: str, role: str = "operator", node: str = "bench", token: str = ""
) -> ControllerClient | EtcdClient:
    """Returns a client of the configuration service, a controller or an etcd cluster, for the running loop."""
    return cluster_client(StreamTransport(), [keeper], lambda: role_hello(role, node, token=token))
