"""Ends of logs that lie on other hosts, fetched through the front of a live run, and kept as if they lay here.

Fetched again, a log grows by what its end has that was not there before. What was written faster than it was fetched is
missing, and a line says so.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from adamctl.config.names import is_name
from adamctl.errors import ProtocolError
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Transport
from adamctl.wire.messages import HostLog, HostTailRequest
from adamctl.wire.unreadable import UNREADABLE

LINES = 200
DEADLINE_S = 10.0
MISSING = "... lines are missing here; they are on the host"
_LOGS = msgspec.msgpack.Decoder(list[HostLog])


class Tails:
    """Logs of one run. `problems` names what could not be fetched last, by its node."""

    def __init__(self, folder: Path, here: Collection[str]) -> None:
        """`folder` receives the files; nodes in `here` have their logs on this machine and are left out."""
        self._folder, self._here = folder, frozenset(here)
        self._last: dict[str, tuple[str, ...]] = {}
        self.problems: dict[str, str] = {}

    async def fetch(self, transport: Transport, front: str, token: str) -> None:
        """Asks the front for the ends of all logs and keeps them.

        Raises:
            UnreachableError: the front does not answer.
            HandshakeError: it refuses us.
        """
        hello = make_hello("front", "logs", 0, token)
        connection = await transport.connect(front, hello, deadline_s=DEADLINE_S)
        try:
            reply = await connection.request(HostTailRequest("", LINES), deadline_s=DEADLINE_S)
            try:
                logs: list[HostLog] = _LOGS.decode(reply.body)
            except UNREADABLE as error:
                raise ProtocolError(f"{front} sent logs that cannot be read: {error}") from error
            finally:
                reply.release()
        finally:
            await connection.close()
        self.keep(logs)

    def keep(self, logs: Collection[HostLog]) -> None:
        """Adds what is new to the files."""
        self.problems = {log.node: f"{log.host}: {log.problem}" for log in logs if log.problem}
        for log in logs:
            if is_name(log.node) and log.node not in self._here and log.lines:
                added = new_lines(self._last.get(log.node, ()), log.lines)
                self._last[log.node] = log.lines
                with (self._folder / f"{log.node}.log").open("a", encoding="utf-8") as stream:
                    stream.writelines(f"{line}\n" for line in added)


def new_lines(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the lines of the end of a log that were not in an earlier end of it."""
    if not before:
        return now
    for start in range(len(now) - 1, -1, -1):
        known = now[: start + 1]
        if before[-len(known) :] == known:
            return now[start + 1 :]
    return (MISSING, *now)
