"""Authorities and certificates for tests: made in milliseconds, in a folder of the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from adamctl.config.names import is_name
from adamctl.net.connection import StreamConnection
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.authority import Pair, issue, new_authority
from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE, KEY, Credentials
from adamctl.net.tls.identity import Identity
from adamctl.wire.messages import Hello

CLUSTER = "nord"


class Authority:
    """An authority whose certificates go into `folder`, one folder for each node."""

    def __init__(self, folder: Path, cluster: str = CLUSTER) -> None:
        self.folder = folder
        self.cluster = cluster
        self.pair: Pair = new_authority(cluster)

    def write(
        self,
        role: str,
        node: str,
        *,
        begin_s: float | None = None,
        lifetime_s: float = 86400.0,
        cluster: str = "",
        trusts: bytes = b"",
        name: str = "",
    ) -> Path:
        """Writes a certificate for a node and returns its folder, `name`.

        Args:
            begin_s: seconds from now at which it begins to be valid; default: some minutes ago.
            cluster: in the certificate, in place of the authority's.
            trusts: authorities in ca.crt, in place of this one.
        """
        folder = self.folder / (name or f"{role}-{node}")
        folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        if begin_s is not None:
            now += timedelta(seconds=begin_s + 300)
            lifetime_s -= 300
        authority = new_authority(cluster) if cluster else self.pair
        made = issue(authority, Identity(cluster or self.cluster, role, node), now=now,
                     lifetime=timedelta(seconds=lifetime_s))  # fmt: skip
        (folder / AUTHORITY).write_bytes(trusts or authority.certificate)
        place(folder / KEY, made.key)
        place(folder / CERTIFICATE, made.certificate)
        return folder

    def credentials(self, role: str, node: str) -> Credentials:
        return Credentials(self.write(role, node))

    def credentials_of(self, hello: Hello) -> Credentials:
        """Returns a certificate for whoever says this; if nobody can be called so, for somebody else."""
        if is_name(hello.role) and is_name(hello.node):
            return self.credentials(hello.role, hello.node.partition(".")[0])
        return self.credentials("worker", "nobody")


def lasting(authority: Authority, lifetime_s: float) -> Callable[[Hello], Credentials]:
    """Returns what gives certificates that OpenSSL takes for valid; when they end, the loop's clock decides.

    Args:
        lifetime_s: from a thousand seconds ago.
    """
    real_s = time.time()

    def of(hello: Hello) -> Credentials:
        loop = asyncio.get_running_loop()
        folder = authority.write(hello.role, hello.node.partition(".")[0], begin_s=-1000.0, lifetime_s=lifetime_s)
        return Credentials(folder, lambda: real_s + loop.time())

    return of


def place(path: Path, content: bytes) -> None:
    """Replaces a private file at once."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.rename(path)


class ManyCertificates:
    """A `StreamTransport` for each role and node that connects or serves, with a certificate of its own."""

    def __init__(self, authority: Authority, **arguments: Any) -> None:
        self._authority = authority
        self._arguments = arguments
        self._transports: dict[tuple[str, str], StreamTransport] = {}
        self.pool = StreamTransport(tls=None, **arguments).pool

    def of(self, hello: Hello) -> StreamTransport:
        found = self._transports.get((hello.role, hello.node))
        if found is None:
            found = StreamTransport(tls=self._authority.credentials_of(hello), **self._arguments)
            found.pool = self.pool
            self._transports[hello.role, hello.node] = found
        return found

    async def connect(self, address: str, hello: Hello, **arguments: Any) -> StreamConnection:
        return await self.of(hello).connect(address, hello, **arguments)

    async def serve(self, addresses: Sequence[str], identity: Hello, *others: Any, **arguments: Any) -> StreamServer:
        return await self.of(identity).serve(addresses, identity, *others, **arguments)
