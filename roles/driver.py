"""Runs one role in this process: options, network, registration, beacons, log, orderly end.

The interface below is what every role is written against.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adamctl.net.transport import Handler, Server, Transport
from adamctl.wire.messages import Hello

if TYPE_CHECKING:
    from adamctl.roles.controller.client import ConfigurationStore


@dataclass
class RoleContext:
    """What the driver gives a role's `run(context)`.

    Attributes:
        role: name of the role.
        node: this process's name in the cluster, unique among living nodes.
        options: the role's own flags by name (dashes as underscores).
        transport: how to reach others; `hello()` is the identity to connect with.
        controller: the configuration service; None for the controller itself.
        incarnation: issued by the controllers at `serve`; 0 before and for the controller.
        stopping: set when this role should end (signal, SHUTDOWN request, lost parent); `run` then returns.
        log: writes to stderr and the role's log file.
        status: called for STATUS requests; a role replaces it to add its own plain values.
    """

    role: str
    node: str
    options: Mapping[str, Any]
    transport: Transport
    controller: ConfigurationStore | None
    stopping: asyncio.Event
    log: logging.Logger
    incarnation: int = 0
    token: str = ""
    status: Callable[[], dict[str, Any]] = dict

    def hello(self) -> Hello:
        raise NotImplementedError

    async def serve(
        self, handler: Handler, *, addresses: Sequence[str] = (), on_disconnect: Callable[[int], None] | None = None
    ) -> Server:
        """Listens (default addresses: from the role's `--bind` and `--port` flags, and a Unix socket for this host), registers with the
        controller, starts beacons, answers STATUS and SHUTDOWN itself, and reports ready. `handler` gets the rest."""
        raise NotImplementedError
