"""Membership in etcd: a node's key lives under a lease that its process keeps alive.

The key `/nodes/{id}` disappears with its lease: when that expires because it was not renewed for `lost_after_s`, or at
once when it is revoked, by a process that leaves or for one that is known to have ended. An incarnation is the revision
at which its key was written: etcd never issues a revision twice, and no process has to wait for another to get one.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from adamctl.config.records import NodeRecord, decode, encode, node_key
from adamctl.errors import ConfigurationError, RemoteError, UnreachableError
from adamctl.net.address import is_loopback, parse_address
from adamctl.roles.controller.core.service.commands import record_of
from adamctl.roles.controller.core.service.config import BEACON_INTERVAL_S_MAX, BEACONS_PER_LEASE, GRANT_FACTOR
from adamctl.roles.controller.core.service.requests import host_name
from adamctl.roles.controller.core.service.state import KEY_BYTES_MAX
from adamctl.roles.controller.etcd.gateway import (
    NOT_FOUND,
    EtcdError,
    Gateway,
    decoded,
    encoded,
    number,
    revision_of,
)
from adamctl.roles.controller.etcd.session import compare_revision
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import NodeRegisterReply, NodeRegisterRequest
from adamctl.wire.unreadable import UNREADABLE

INCARNATIONS = "#incarnations"
CLUSTER = "#cluster"
"""The identity of the cluster: created by the first node that registers, and kept for ever."""
LATE_S = 2.0
"""etcd may remove a key up to this long after its lease has expired."""
_PROBE_S = 1.0
_LOOK_EVERY_S = 0.25


@dataclass(frozen=True)
class _Held:
    """A node's key as etcd has it. `record` is None if the value is not a node's record."""

    record: NodeRecord | None
    revision: int
    lease: str


class Nodes:
    """Registers nodes, renews their leases and ends them."""

    def __init__(self, gateway: Gateway, key: Callable[[str], str]) -> None:
        """`key` returns the name of a key in etcd."""
        self._gateway = gateway
        self._key = key
        self._leases: dict[tuple[str, int], str] = {}

    async def register(self, request: NodeRegisterRequest, deadline_s: float) -> NodeRegisterReply:
        """See `Membership`."""
        if not request.node or "/" in request.node or len(request.node.encode()) > KEY_BYTES_MAX // 2:
            raise ConfigurationError(f"{request.node!r} is not a valid node name; expected 1 to 256 bytes without '/'")
        loop = asyncio.get_running_loop()
        until_s = loop.time() + deadline_s
        while True:
            asked = {"TTL": self._gateway.url.lost_after_s}
            reply = await self._gateway.call("lease/grant", asked, until_s - loop.time())
            lease, lost_after_s = str(reply["ID"]), float(number(reply, "TTL"))
            try:
                record, its_lease = await self._join(request, lease, lost_after_s, until_s)
                break
            except BaseException as error:
                await self._revoke(lease, _PROBE_S)
                if not isinstance(error, EtcdError) or error.status != NOT_FOUND:
                    raise
                # it expired while this machine or etcd was stalled
        if its_lease != lease:
            await self._revoke(lease, _PROBE_S)
        self._leases[record.node, record.incarnation] = its_lease
        lease_s = lost_after_s / GRANT_FACTOR
        interval_s = min(BEACON_INTERVAL_S_MAX, lease_s / BEACONS_PER_LEASE)
        cluster = await self._cluster(until_s - loop.time())
        return NodeRegisterReply(record.incarnation, interval_s, lost_after_s, lease_s, cluster)

    async def beacon(self, node: str, incarnation: int, deadline_s: float) -> None:
        """Renews the lease, and checks that the key still belongs to this process."""
        lease = self._leases.get((node, incarnation))
        if lease is None:
            held = await self._held(node, deadline_s)
            self._check(node, incarnation, held)
            assert held is not None
            lease = self._leases[node, incarnation] = held.lease
        renewed = await self._renewed(lease, asyncio.get_running_loop().time() + deadline_s)
        held = await self._held(node, deadline_s)
        self._check(node, incarnation, held if renewed else None)

    async def leave(self, node: str, incarnation: int, deadline_s: float) -> None:
        """Removes a node's key, if it still belongs to that incarnation."""
        self._leases.pop((node, incarnation), None)
        held = await self._held(node, deadline_s)
        if held is not None and held.record is not None and held.record.incarnation == incarnation:
            await self._revoke(held.lease, deadline_s)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _join(
        self, request: NodeRegisterRequest, lease: str, lost_after_s: float, until_s: float
    ) -> tuple[NodeRecord, str]:
        """Returns the record and its lease: `lease`, or the one that the process had already."""
        loop = asyncio.get_running_loop()
        key = encoded(self._key(node_key(request.node)))
        waited_until_s = min(loop.time() + lost_after_s + LATE_S, until_s - _LOOK_EVERY_S)
        renewed_s = loop.time()
        while True:
            held = await self._held(request.node, until_s - loop.time())
            old = held.record if held is not None else None
            if held is not None and old is not None:
                if held.lease == lease:
                    return old, lease  # the answer to an earlier attempt was lost
                if request.process and old.process == request.process and await self._renewed(held.lease, until_s):
                    return old, held.lease  # the same process; a new incarnation would depose it
            if old is not None and not old.is_process(request.host, request.pid, request.process):
                lives = await _lives(old, request)
                waited = request.waits and loop.time() < until_s - _LOOK_EVERY_S
                if not waited and (lives or (lives is None and loop.time() > waited_until_s)):
                    raise ConfigurationError(
                        f"the name {request.node!r} belongs to a living {old.role} (process {old.pid} on "
                        f"{host_name(old)}); choose another --name, or end that process first"
                    )
                if lives or lives is None:  # until it ends, or its lease does
                    if loop.time() - renewed_s > lost_after_s / BEACONS_PER_LEASE:
                        renewed_s = loop.time()
                        await self._renewed(lease, until_s)
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
            record = await self._new_record(request, until_s - loop.time())
            put = {"request_put": {"key": key, "value": encoded(encode(record)), "lease": lease}}
            message = {"compare": [compare_revision(key, held.revision if held else 0)], "success": [put]}
            reply = await self._gateway.call("kv/txn", message, until_s - loop.time())
            if reply.get("succeeded"):
                return record, lease

    async def _cluster(self, deadline_s: float) -> str:
        """Returns the cluster's identity, 16 hexadecimal digits; creates it if there is none."""
        key, made = encoded(self._key(CLUSTER)), secrets.token_hex(8)
        message = {
            "compare": [compare_revision(key, 0)],
            "success": [{"request_put": {"key": key, "value": encoded(made)}}],
            "failure": [{"request_range": {"key": key}}],
        }
        reply = await self._gateway.call("kv/txn", message, deadline_s)
        if reply.get("succeeded"):
            return made
        (pair,) = reply["responses"][0]["response_range"]["kvs"]
        return decoded(pair.get("value", "")).decode("ascii", "replace")

    async def _renewed(self, lease: str, until_s: float) -> bool:
        """Renews a lease; returns False if it has expired."""
        remaining_s = until_s - asyncio.get_running_loop().time()
        reply = await self._gateway.call("lease/keepalive", {"ID": lease}, remaining_s, stream=True)
        return bool(number(reply, "TTL"))

    async def _new_record(self, request: NodeRegisterRequest, deadline_s: float) -> NodeRecord:
        reply = await self._gateway.call("kv/put", {"key": encoded(self._key(INCARNATIONS))}, deadline_s)
        return record_of(request, revision_of(reply))

    async def _held(self, node: str, deadline_s: float) -> _Held | None:
        reply = await self._gateway.call("kv/range", {"key": encoded(self._key(node_key(node)))}, deadline_s)
        pairs = reply.get("kvs", ())
        if not pairs:
            return None
        pair = pairs[0]
        try:
            record = decode(decoded(pair.get("value", "")), NodeRecord)
        except UNREADABLE:
            record = None
        return _Held(record, number(pair, "mod_revision"), str(pair.get("lease", "0")))

    async def _revoke(self, lease: str, deadline_s: float) -> None:
        try:
            await self._gateway.call("lease/revoke", {"ID": lease}, deadline_s)
        except EtcdError as error:
            if error.status != NOT_FOUND:
                raise
        except UnreachableError:
            pass  # it expires by itself

    def _check(self, node: str, incarnation: int, held: _Held | None) -> None:
        """Raises RemoteError with STALE_INCARNATION unless a node's key belongs to that incarnation."""
        record = held.record if held is not None else None
        if record is not None and record.incarnation == incarnation:
            return
        self._leases.pop((node, incarnation), None)
        if record is None:
            text = (
                f"{node} (incarnation {incarnation}) is no longer a member: it left, or was silent for longer than "
                "its lease; start it again"
            )
        else:
            text = (
                f"the name {node} was taken over by incarnation {record.incarnation} (process {record.pid} on "
                f"{host_name(record)}); this is incarnation {incarnation}"
            )
        raise RemoteError(ErrorCode.STALE_INCARNATION, text)


async def _lives(old: NodeRecord, request: NodeRegisterRequest) -> bool | None:
    """Returns whether a node still listens at its addresses; False: certainly not; None: unknown."""
    addresses = [parse_address(text) for text in old.addresses]
    places = [(address.host, address.port) for address in addresses if address.scheme == "tcp"]
    ours = {(address.host, address.port) for address in map(parse_address, request.addresses)}
    refused = 0
    for host, port in places:
        if old.host == request.host and (host, port) in ours:
            refused += 1  # this process has that address now
            continue
        if old.host != request.host and is_loopback(host):
            continue  # it belongs to another machine
        try:
            async with asyncio.timeout(_PROBE_S):
                _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            refused += 1
        except (OSError, TimeoutError):
            pass
        else:
            writer.close()
            return True
    return False if places and refused == len(places) else None
