"""What `adamctl status` shows of an etcd cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from adamctl.errors import AdamctlError
from adamctl.roles.controller.etcd.gateway import Gateway, Json, number, revision_of

MEMBER_DEADLINE_S = 1.0


async def status_of(gateway: Gateway, deadline_s: float) -> dict[str, Any]:
    """Returns the leader, the revision, and how many log entries each member is behind.

    A member that does not answer at its advertised address has a `lag` of None.

    Raises:
        UnreachableError: no member answers.
    """
    own = await gateway.call("maintenance/status", {}, deadline_s)
    listed = (await gateway.call("cluster/member/list", {}, deadline_s)).get("members", [])
    asked = await asyncio.gather(*(_member_status(gateway, member) for member in listed))
    answers = [answer for answer in (own, *asked) if answer is not None]
    index = max(number(answer, "raftIndex") for answer in answers)
    newest = max(answers, key=lambda answer: number(answer, "raftTerm"))
    leader: Json = next((member for member in listed if member["ID"] == newest.get("leader")), {})
    members = [
        {
            "name": member.get("name") or member["ID"],
            "address": _address(member),
            "lag": None if answer is None else index - number(answer, "raftIndex"),
        }
        for member, answer in zip(listed, asked, strict=True)
    ]
    return {
        "state": "etcd",
        "version": own.get("version", ""),
        "leader": leader.get("name") or leader.get("ID", ""),
        "leader_address": _address(leader),
        "revision": max(revision_of(answer) for answer in answers),
        "configuration_bytes": number(own, "dbSize"),
        "members": members,
    }


def _address(member: Json) -> str:
    urls = member.get("clientURLs", [])
    return str(urls[0]) if urls else ""


async def _member_status(gateway: Gateway, member: Json) -> Json | None:
    address = _address(member)
    if not address:
        return None
    try:
        return await gateway.ask(address, "maintenance/status", {}, MEMBER_DEADLINE_S)
    except AdamctlError:
        return None
