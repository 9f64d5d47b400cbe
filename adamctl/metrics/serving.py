"""`/metrics` of one cluster, over HTTP: for `adamctl metrics serve`, and for `train --metrics-port`."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from adamctl.errors import AdamctlError, ConfigurationError
from adamctl.metrics.exposition import Exposition
from adamctl.metrics.follower import NODE_DEADLINE_S, ClusterFollower
from adamctl.net.address import is_loopback
from adamctl.net.handshake import make_hello
from adamctl.net.http_server import HttpAnswer, HttpLimits, HttpRequest, HttpServer
from adamctl.net.sockets import bind_reason
from adamctl.net.stream import StreamTransport
from adamctl.net.transport import Transport
from adamctl.wire.messages import Hello
from adamctl.wire.permissions import METRICS

LOOPBACK: Final = "127.0.0.1"
PATH: Final = "/metrics"
LIMITS: Final = HttpLimits(connections_max=16)


def check_host(host: str, open_to_others: bool, flag: str) -> None:
    """Raises ConfigurationError: other machines reach the host, and no flag says that they may."""
    if not open_to_others and not is_loopback(host):
        raise ConfigurationError(
            f"expected a loopback address for metrics; found {host}. Whoever reaches it can read them, since HTTP asks "
            f"for no token: let Prometheus run on this machine, or say with {flag} that others may"
        )


def metrics_hello(token: str) -> Callable[[], Hello]:
    """Returns who a metrics server is to the cluster: it may ask and read, and change nothing."""
    return lambda: make_hello(METRICS, f"metrics-{os.getpid()}", 0, token)


@asynccontextmanager
async def serving_metrics(
    controllers: Sequence[str],
    hello: Callable[[], Hello],
    host: str,
    port: int,
    *,
    node_deadline_s: float = NODE_DEADLINE_S,
    transport: Transport | None = None,
    log: logging.Logger | None = None,
) -> AsyncIterator[str]:
    """Serves the metrics of a cluster while the block lasts; yields the URL.

    Raises:
        ConfigurationError: the address is taken, or prometheus-client is not installed.
    """
    exposition = Exposition()
    to = transport or StreamTransport()
    more = {} if log is None else {"log": log}
    async with ClusterFollower(to, controllers, hello, node_deadline_s=node_deadline_s, **more) as follower:

        async def page(request: HttpRequest) -> HttpAnswer:
            reading = await follower.read()
            body, content_type = await asyncio.to_thread(exposition.render, reading, request.accept)
            return HttpAnswer(200, body, content_type)

        server = await HttpServer.listen(host, port, {PATH: page}, LIMITS)
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{server.port}{PATH}"
        finally:
            await server.close()


def check_port(port: int) -> None:
    """Checks what `metrics_of_run` needs, before anything is started.

    Raises:
        ConfigurationError: another program listens there, or prometheus-client is not installed.
    """
    Exposition()
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise ConfigurationError(f"--metrics-port {port}: {bind_reason(LOOPBACK, port, error)}") from error


@asynccontextmanager
async def metrics_once_known(
    port: int | None,
    controllers: Awaitable[Sequence[str]],
    token: str,
    transport: Transport,
    note: Callable[[str], None],
) -> AsyncIterator[None]:
    """Does as `metrics_of_run` from when it is known where the controllers are: hosts have to come first."""

    async def serve() -> None:
        try:
            async with metrics_of_run(port, await controllers, token, transport, note):
                await asyncio.Event().wait()
        except AdamctlError as error:  # the run goes on without
            note(f"no metrics: {error}")

    serving = asyncio.ensure_future(serve())
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def metrics_of_run(
    port: int | None,
    controllers: Sequence[str],
    token: str,
    transport: Transport,
    note: Callable[[str], None],
) -> AsyncIterator[None]:
    """Serves the metrics of a run's cluster on loopback while the block lasts; nothing without a port.

    The cluster may still be starting, and end before the block does: that is no news to who watches the run.
    `transport`: how to reach it.
    """
    if port is None:
        yield
        return
    quiet = logging.Logger("adamctl.metrics of a run")
    quiet.addHandler(logging.NullHandler())

    def hello() -> Hello:
        return make_hello("front", f"front-metrics-{os.getpid()}", 0, token)

    async with serving_metrics(controllers, hello, LOOPBACK, port, log=quiet, transport=transport) as url:
        note(f"metrics at {url}")
        yield
