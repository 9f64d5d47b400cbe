"""A cluster's state as rows of text, for `status` and `top`."""

from __future__ import annotations

from typing import Any

from adamctl.live.units import count, duration

NODE_COLUMNS = ("role", "node", "address", "incarnation", "up", "last seen", "status")
JOB_COLUMNS = ("job", "state", "rule", "coordinator")
_STANDARD = frozenset({"role", "node", "incarnation", "uptime_s", "ready", "error"})
_DETAILS_MAX = 5


def node_rows(cluster: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns one row per node, servers of one role together."""
    rows: list[tuple[str, ...]] = []
    seen = last_seen(cluster)
    for node in sorted(cluster["nodes"], key=lambda node: (node["role"], node["node"])):
        status = node["status"]
        rows.append(
            (
                node["role"],
                node["node"],
                _shown_address(node["addresses"]),
                str(node["incarnation"]),
                duration(status.get("uptime_s")),
                duration(seen.get(node["node"])),
                _details(status),
            )
        )
    return rows


def job_rows(cluster: dict[str, Any]) -> list[tuple[str, ...]]:
    return [(job["job"], job["state"], job["rule"], job["coordinator"]) for job in cluster["jobs"]]


def last_seen(cluster: dict[str, Any]) -> dict[str, float]:
    """Returns node -> seconds since its last beacon, as far as the controller says."""
    described = cluster["controller"].get("last_seen_s", {})
    return described if isinstance(described, dict) else {}


def _shown_address(addresses: list[str]) -> str:
    reachable = [address.removeprefix("tcp://") for address in addresses if address.startswith("tcp://")]
    return reachable[0] if reachable else (addresses[0] if addresses else "-")


def _details(status: dict[str, Any]) -> str:
    if "error" in status:
        return f"does not answer: {status['error']}"
    parts = []
    for key, value in status.items():
        if key in _STANDARD or isinstance(value, (dict, list)) or value in ("", None):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        parts.append(f"{key} {count(value) if number and abs(value) >= 1000 else value}")
    return ", ".join(parts[:_DETAILS_MAX])
