"""What a cluster reports: nodes, jobs and each role's own status, as plain values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from adamctl.cli.cluster.access import ClusterAccess
from adamctl.cli.cluster.copies import sharing
from adamctl.config.records import JobRecord, NodeRecord
from adamctl.errors import AdamctlError, UnreachableError
from adamctl.net.address import prefer
from adamctl.net.transport import Connection
from adamctl.roles.configuration import nodes, readable
from adamctl.roles.controller.client import ControllerClient
from adamctl.wire.messages import ConfigEntry, StatusReply, StatusRequest

NODE_DEADLINE_S = 2.0
CONTROLLER_DEADLINE_S = 3.0


class ClusterReader(ClusterAccess):
    """Reads a cluster's state repeatedly over connections that stay open."""

    def __init__(self, addresses: Sequence[str], token: str) -> None:
        super().__init__(addresses, token, deadline_s=CONTROLLER_DEADLINE_S)
        self._connections: dict[tuple[str, int], Connection] = {}

    async def __aexit__(self, *error: Any) -> None:
        for connection in self._connections.values():
            await connection.close()
        await super().__aexit__(*error)

    async def read(self) -> dict[str, Any]:
        """Returns `controller`, `nodes`, `jobs`, and in `sharing` what copies that share a failure domain are told of.

        Raises:
            UnreachableError: no controller answers; the message names their addresses.
            HandshakeError: the token is wrong.
        """
        where = ", ".join(self.addresses)
        members = await nodes(self.store)
        _, entries = await self.store.read("/jobs/")
        statuses = await asyncio.gather(self._controller_status(), *(self._status(node) for node in members))
        described = [_described(node, status) for node, status in zip(members, statuses[1:], strict=True)]
        jobs = [_job(entry) for entry in entries if entry.key.count("/") == 2]
        controller = {"address": where} | statuses[0]
        return {"controller": controller, "nodes": described, "jobs": jobs, "sharing": sharing(entries, members)}

    async def read_all(self) -> dict[str, Any]:
        """Returns what `read` does and, where there are several controllers, each one's status as `controllers`."""
        cluster = await self.read()
        if len(cluster["controller"].get("members", ())) > 1:
            cluster["controllers"] = await self.controllers()
        return cluster

    async def statuses(self, members: Sequence[NodeRecord]) -> list[dict[str, Any]]:
        """Returns the nodes' statuses, in order; for one that does not answer, the reason, as `error`."""
        return list(await asyncio.gather(*(self._status(node) for node in members)))

    async def _controller_status(self) -> dict[str, Any]:
        """Returns the leader's status, or, if it cannot be asked, that of the first controller that answers."""
        if not isinstance(self.store, ControllerClient):
            return await self.store.status()
        found: dict[str, Any] = {"error": "no controller answers"}
        for address in self.addresses:
            try:
                found = await self._ask(("", hash(address)), address)
                leader = found.get("leader_address", "")
                if found.get("state") != "follower" or not leader:
                    return found
                return await self._ask(("", hash(leader)), leader)
            except AdamctlError as error:
                if "error" in found:
                    found = {"error": str(error)}
        return found

    async def controllers(self) -> list[dict[str, Any]]:
        """Returns the status of each known controller, with its `name` (if known) and `address`.

        Asks every one, so that it also works when none leads; one that does not answer has an `error` instead. With
        etcd, the result is empty.
        """
        if not isinstance(self.store, ControllerClient):
            return []
        names: dict[str, str] = dict.fromkeys(self.addresses, "")
        found: dict[str, dict[str, Any]] = {}
        while missing := [address for address in names if address not in found]:
            asked = await asyncio.gather(*(self._asked(address) for address in missing))
            for address, status in zip(missing, asked, strict=True):
                found[address] = status
                names[address] = names[address] or str(status.get("node", ""))
                for member in status.get("members", ()):
                    names[member["address"] or address] = member["name"]
        return [status | {"name": names[address], "address": address} for address, status in found.items()]

    async def _asked(self, address: str) -> dict[str, Any]:
        try:
            return await self._ask(("", hash(address)), address)
        except UnreachableError as error:
            return {"error": str(error)}

    async def _status(self, node: NodeRecord) -> dict[str, Any]:
        if not node.addresses:  # a client of another framework serves no requests
            return {}
        try:
            address = prefer(node.addresses_for("administration"), node.host)
            return await self._ask((node.node, node.incarnation), address, (node.role, node.node))
        except AdamctlError as error:
            return {"error": str(error)}

    async def _ask(
        self, key: tuple[str, int], address: str, expects: tuple[str, str] = ("controller", "")
    ) -> dict[str, Any]:
        connection = self._connections.get(key)
        if connection is None or connection.closed:
            connection = await self.transport.connect(address, self.hello, deadline_s=NODE_DEADLINE_S, expects=expects)
            self._connections[key] = connection
        reply = await connection.request(StatusRequest(), deadline_s=NODE_DEADLINE_S)
        assert isinstance(reply.message, StatusReply)
        return reply.message.status


def _described(node: NodeRecord, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "node": node.node,
        "role": node.role,
        "incarnation": node.incarnation,
        "addresses": list(node.addresses),
        "administration_addresses": list(node.administration_addresses),
        "replication_addresses": list(node.replication_addresses),
        "host": node.host.partition("/")[0],
        "failure_domain": node.fails_with,
        "pid": node.pid,
        "answers": "error" not in status,
        "status": status,
    }


def _job(entry: ConfigEntry) -> dict[str, Any]:
    name = entry.key.rpartition("/")[2]
    record = readable(entry, JobRecord)
    if record is None:
        return {"job": name, "state": "cannot be read", "rule": "", "layout_hash": "", "coordinator": ""}
    return {
        "job": name,
        "state": record.state,
        "rule": record.rule.name,
        "layout_hash": record.layout_hash,
        "coordinator": record.coordinator,
    }
