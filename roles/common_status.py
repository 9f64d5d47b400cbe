"""The part of STATUS that every role has: its versions, its process, its lease, and what its server does and holds."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from adamctl import __version__
from adamctl.net.server import StreamServer
from adamctl.net.transport import Server
from adamctl.roles.lease import Lease
from adamctl.wire.constants import VERSION_HIGHEST, VERSION_LOWEST, ErrorCode

_STATM = Path("/proc/self/statm")


def common_status(lease: Lease, server: Server | None) -> dict[str, Any]:
    """Returns what STATUS tells of any role's process, each part by its name."""
    return {
        "versions": version_status(),
        "process": process_status(),
        "lease": lease_status(lease),
        "network": network_status(server),
    }


def version_status() -> dict[str, Any]:
    """Returns the version of adamctl, and the lowest and highest version of the wire format that it speaks."""
    return {"adamctl": __version__, "wire": [VERSION_LOWEST, VERSION_HIGHEST]}


def process_status() -> dict[str, Any]:
    """Returns this process's processor time in seconds, its threads and, on Linux, its resident bytes."""
    found: dict[str, Any] = {"cpu_s": round(time.process_time(), 6), "threads": threading.active_count()}
    with suppress(OSError, ValueError, IndexError):
        found["resident_bytes"] = int(_STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return found


def lease_status(lease: Lease) -> dict[str, Any]:
    """Returns whether a lease holds and for how many seconds more, which is left out if it is endless."""
    left_s = lease.until_s - lease.clock()
    found: dict[str, Any] = {"valid": lease.valid()}
    if isfinite(lease.lease_s):
        found["left_s"] = round(max(left_s, 0.0), 3)
    return found


def network_status(server: Server | None) -> dict[str, Any]:
    """Returns what a server received, sent and refused, and what is used of its quotas; nothing of a test's server.

    `request_bytes` are of buffers that hold bodies of requests, `reply_bytes` of answers that peers have not taken yet,
    `region_bytes` of clients' memory that is mapped.
    """
    if not isinstance(server, StreamServer):
        return {}
    pool, limits = server.pool.statistics(), server.limits
    received_bytes, sent_bytes = server.traffic.bytes_with(server.connections)
    return {
        "received_bytes": received_bytes,
        "sent_bytes": sent_bytes,
        "refusals": {code_name(code): count for code, count in sorted(server.traffic.refusals.items())},
        "connections": server.connection_count,
        "connections_max": limits.connections_max,
        "request_bytes": pool.outstanding_bytes,
        "request_bytes_max": pool.quota_bytes,
        "reply_bytes": server.replies.used_bytes,
        "reply_bytes_max": limits.reply_memory_bytes_max,
        "region_bytes": server.region_quota.mapped_bytes,
        "region_bytes_max": limits.region_bytes_max,
    }


def code_name(code: int) -> str:
    """Returns the name of an error code; of one that this version does not know, its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
