"""`--health HOST:PORT` of every role: `/livez` and `/readyz` over HTTP, for whoever restarts and uses processes.

`/livez` is answered by the role's event loop, so no answer in time means that the loop is stuck: start the process
again. `/readyz` says whether others can count on the role now; while it starts, moves buckets or ends, they cannot, and
it must not be restarted for that. Neither says anything else.
"""

from __future__ import annotations

from typing import Protocol

from adamctl.net.http_server import HttpAnswer, HttpLimits, HttpRequest, HttpServer, host_and_port, text
from adamctl.roles.lease import Lease

FLAG = "--health"
LIMITS = HttpLimits(connections_max=16, request_bytes_max=4096, request_timeout_s=2.0, answer_timeout_s=2.0)


class Checked(Protocol):
    """The part of a role's context that its health is read from."""

    lease: Lease

    @property
    def ready(self) -> bool: ...

    @property
    def ending(self) -> bool:
        """Whether it was told to end."""
        ...

    def unready(self) -> str:
        """Returns why others cannot count on the role itself now; "" if they can."""
        ...


def why_not_ready(role: Checked) -> str:
    """Returns why a role is not ready; "" if it is: a member, under a lease that holds, with its work at hand."""
    if role.ending:
        return "it is ending"
    if not role.ready:
        return "it has not joined its cluster"
    if not role.lease.valid():
        return "its lease does not hold"
    return role.unready()


async def serve_health(given: str, role: Checked) -> HttpServer:
    """Serves the health of a role at HOST:PORT, or at a PORT of loopback; to be closed by the caller.

    Raises:
        ConfigurationError: it is no such address, or it is taken.
    """
    host, port = host_and_port(FLAG, given)

    async def live(request: HttpRequest) -> HttpAnswer:
        return text(200, "ok")

    async def ready(request: HttpRequest) -> HttpAnswer:
        problem = why_not_ready(role)
        return text(503, f"not ready: {problem}") if problem else text(200, "ok")

    return await HttpServer.listen(host, port, {"/livez": live, "/readyz": ready}, LIMITS)
