"""A cluster's state as rows of text, for `status` and `top`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from adamctl.cli.cluster.versions import shown_version
from adamctl.config.names import printable
from adamctl.live.batch import batch_parts
from adamctl.live.replicas import waits_text
from adamctl.live.units import count, duration, measured, share, size
from adamctl.roles.coordinator.core.progress import BatchProgress, ReplicaRow
from adamctl.wire.unreadable import UNREADABLE

NODE_COLUMNS = ("role", "node", "address", "version", "up", "last seen", "status")
CONTROLLER_COLUMNS = ("controller", "address", "version", "state")
REPLICA_COLUMNS = ("job", "replica", "partition", "node", "host", "state", "flights", "waits", "cut")
JOB_COLUMNS = ("job", "state", "rule", "coordinator")
_STANDARD = frozenset({"role", "node", "incarnation", "uptime_s", "ready", "versions", "error", "certificate"})
_DETAILS_MAX = 5
_LEFT_OUT_FIRST = ("version", "address", "up", "role", "last seen")
"""Columns that are left out on a narrow terminal, in this order."""
_LEFT_OUT_OF_REPLICAS_FIRST = ("cut", "host", "job", "state")
STATUS_WIDTH_MIN = 32

COUNT_MAX = 1e15
SILENT_S = 3.0
"""Seconds without an answer to the leader after which a controller is shown as silent."""

NONSENSE = (KeyError, TypeError, AttributeError, ArithmeticError, IndexError, *UNREADABLE)
"""What reading a status raises that is not one: it must not keep the others from being shown."""
Values = Mapping[str, Any]


def node_rows(cluster: Values) -> list[tuple[str, ...]]:
    """Returns one row per node, grouped by role."""
    rows: list[tuple[str, ...]] = []
    seen = last_seen(cluster)
    for node in sorted(cluster["nodes"], key=lambda node: (node["role"], node["node"])):
        status = node["status"]
        rows.append(
            (
                node["role"],
                node["node"],
                _shown_address(node["addresses"]),
                shown_version(status),
                duration(_seconds(status.get("uptime_s"))),
                duration(_seconds(seen.get(node["node"]))),
                details(node["role"], status),
            )
        )
    return rows


def controller_rows(cluster: Values) -> list[tuple[str, ...]]:
    """Returns one row per controller: which one leads at which revision, and how far the others are behind."""
    status = cluster["controller"]
    versions = {str(one.get("name")): shown_version(one) for one in cluster.get("controllers", ())}
    versions.setdefault(str(status.get("node")), shown_version(status))
    rows: list[tuple[str, ...]] = []
    for member in status.get("members", []):
        lag = member.get("lag")
        if member["name"] == status.get("leader"):
            state = f"leads, revision {status['revision']}"
        elif "lag" not in member:
            state = "" if status.get("leader") else "no leader is known"
        else:
            state = "not heard from yet" if lag is None else "up to date" if lag <= 1 else f"{lag} decisions behind"
            silent_s = member.get("silent_s") or 0.0
            if silent_s > SILENT_S:
                state = f"silent for {duration(silent_s)}" + (f", {state}" if lag and lag > 1 else "")
        version = versions.get(member["name"], "-")
        rows.append((member["name"], member["address"].removeprefix("tcp://"), version, state))
    differing = status.get("differing", {})
    rows = [(*row[:3], "has other limits") if f"tcp://{row[1]}" in differing else row for row in rows]
    strangers = status.get("strangers", [])
    rows += [(one["name"], one["address"].removeprefix("tcp://"), "-", "waits to replace one") for one in strangers]
    return rows


def standing_rows(controllers: Sequence[Values]) -> list[tuple[str, ...]]:
    """Returns one row per controller, from each one's own status: for when none of them leads."""
    rows: list[tuple[str, ...]] = []
    for status in controllers:
        known = status.get("slot", 0)
        slot = f", knows {known} decision{'s' * (known != 1)}"
        match status.get("state"):
            case None:
                state = f"does not answer: {status.get('error', 'it is no controller')}"
            case "leader":
                state = f"leads, or led{slot}"
            case "follower" if status.get("leader"):
                state = f"follows {status['leader']}{slot}"
            case "forming":
                state = "belongs to no cluster yet"
            case _:
                state = f"knows no leader{slot}"
        address, version = status["address"].removeprefix("tcp://"), shown_version(status)
        rows.append((status["name"] or "?", address, version, state))
    return rows


def why_none_leads(controllers: Sequence[Values]) -> str:
    """Returns why the controllers could not be read, and what to do."""
    members = max(len(status.get("members", ())) for status in controllers) or len(controllers)
    answering = sum("error" not in status for status in controllers)
    needed = members // 2 + 1
    granted = "until then nothing joins, changes or is granted; jobs continue as long as they need no controller"
    if all(status.get("state", "forming") == "forming" for status in controllers):
        return (
            "the controllers have not formed a cluster yet; start every one that --peers names, each with the same "
            f"--peers, and check that they can reach each other: {granted}"
        )
    if answering < needed:
        return f"{answering} of {members} controllers answer, {needed} are needed; start the others again: {granted}"
    return (
        f"{answering} of {members} controllers answer, and none is confirmed as leader by {needed}; check that "
        f"they can reach each other, or wait a moment if an election is under way: {granted}"
    )


def job_rows(cluster: Values) -> list[tuple[str, ...]]:
    return [(job["job"], job["state"], job["rule"], job["coordinator"]) for job in cluster["jobs"]]


def replica_rows(cluster: Values) -> list[tuple[str, ...]]:
    """Returns one row per partition of each replica of several, by job; job, replica and cut in the first one alone."""
    rows: list[tuple[str, ...]] = []
    for job, replicas in _replicas(cluster):
        for place, replica in enumerate(replicas):
            rows += [
                (
                    job if not place and not member.partition else "",
                    "" if member.partition else str(replica.replica),
                    str(member.partition),
                    member.node,
                    member.host,
                    member.state,
                    "-" if member.flights is None else str(member.flights),
                    waits_text(member),
                    replica.cut if not place and not member.partition else "",
                )
                for member in replica.members
            ]
    return rows


def proposals(cluster: Values) -> list[str]:
    """Returns, for each job with a slow partition, cuts with which all partitions of its replica would take as long."""
    return [
        f"{job}: with these cuts in [partition], replica {replica.replica} would have no slow partition: "
        f"{printable(replica.proposed)}"
        for job, replicas in _replicas(cluster)
        for replica in [one for one in replicas if one.proposed][:1]
    ]


def certificates(cluster: Values) -> list[str]:
    """Returns a line for each certificate whose end is near, those that end first at the top."""
    found = []
    for status in (cluster["controller"], *(node["status"] for node in cluster["nodes"])):
        told = status.get("certificate")
        if isinstance(told, dict) and told.get("warning"):
            line = f"{told.get('identity')}: the certificate {told['warning']}; adamctl tls renew"
            found.append((str(told.get("not_after_s")), printable(line)))
    return [line for _, line in sorted(found)]


def _replicas(cluster: Values) -> Iterator[tuple[str, list[ReplicaRow]]]:
    """Yields the replicas of several partitions of each job."""
    for node in sorted(cluster["nodes"], key=lambda node: node["node"]):
        found = node["status"].get("replicas") if node["role"] == "coordinator" else None
        with suppress(*UNREADABLE):  # another version of the role
            yield str(node["status"].get("job", "")), msgspec.convert(found or [], list[ReplicaRow])


def last_seen(cluster: Values) -> dict[str, float]:
    """Returns node -> seconds since its last beacon, for the nodes that the controller reports."""
    described = cluster["controller"].get("last_seen_s", {})
    return described if isinstance(described, dict) else {}


def fitting_columns(rows: list[tuple[str, ...]], width: int, gap: int) -> tuple[int, ...]:
    """Returns the indices of NODE_COLUMNS that fit into `width` characters beside a readable status."""
    return _fitting(NODE_COLUMNS, _LEFT_OUT_FIRST, rows, width, gap)


def fitting_replica_columns(rows: list[tuple[str, ...]], width: int, gap: int) -> tuple[int, ...]:
    """Likewise, of REPLICA_COLUMNS."""
    return _fitting(REPLICA_COLUMNS, _LEFT_OUT_OF_REPLICAS_FIRST, rows, width, gap)


def _fitting(
    names: Sequence[str], left_out_first: Sequence[str], rows: list[tuple[str, ...]], width: int, gap: int
) -> tuple[int, ...]:
    widths = {column[0]: max(map(len, column)) + gap for column in zip(names, *rows, strict=True)}
    if "status" in widths:
        widths["status"] = min(widths["status"], STATUS_WIDTH_MIN)
    for name in left_out_first:
        if sum(widths.values()) <= width:
            break
        del widths[name]
    return tuple(map(names.index, widths))


def details(role: str, status: Values) -> str:
    """Returns a node's status in one line; for an unknown role, its first few plain values."""
    if "error" in status:
        return f"does not answer: {status['error']}"
    try:
        return _DETAILS[role](status) if role in _DETAILS else _any(status)
    except NONSENSE:  # another version of the role, or one that lies
        return _any(status)


def _coordinator(status: Values) -> str:
    batch = msgspec.convert(status.get("batch"), BatchProgress | None)
    parts = [f"{status['job']}: {status['state']}"]
    parts += [f"{status['progress'] * 100:.0f}%"] if batch is None else batch_parts(batch, status["passes_total"])
    if status["top1"] is not None:
        parts.append(f"top-1 {share(status['top1'])}")
    elif status.get("metric_value") is not None:
        parts.append(f"{status['metric']} {measured(status['metric'], status['metric_value'])}")
    parts.append(f"{count(status['images_per_s'])} images/s")
    if status["eta_seconds"] is not None:
        parts.append(f"{'at most ' if batch is not None else ''}{duration(status['eta_seconds'])} left")
    if status.get("partitions", 1) > 1:
        replicas = len(status["replicas"])
        parts.append(f"{replicas} replica{'s' * (replicas != 1)} of {status['partitions']} partitions")
        parts += [f"{len(status['lobby'])} in the lobby"] if status["lobby"] else []
    return ", ".join(parts)


def _ps(status: Values) -> str:
    jobs = len(status["jobs"])
    trouble, unsaved = _store(status.get("store") or {})
    if not jobs:
        return f"{trouble}no job; room for {size(status['bytes_max'])}"
    held_bytes = status.get("held_bytes", status["bytes"])  # a server of an earlier version says less
    held = f"{jobs} job{'s' * (jobs > 1)}, {status['buckets']} buckets{_copies(status)}, {size(held_bytes)}"
    rates = f"{count(status['updates_per_s'])} updates/s, {count(status['updates'])} in all"
    return f"{trouble}{held}, {rates}{unsaved}"


def _store(store: Values) -> tuple[str, str]:
    """Returns why a server's store cannot be written, for the front of its line, and what is not in it yet."""
    if not store:
        return "", ""
    text = "all on disk"
    if store["loss_window_s"]:
        text = f"{duration(store['loss_window_s'])} not on disk yet, of {duration(store['loss_window_s_max'])} allowed"
    kept = sum(store.get("copies_kept", {}).values())
    if kept:
        text += f", {kept} former cop{'ies' if kept > 1 else 'y'} kept there"
    if store["degraded"]:
        return f"degraded: {store['degraded']}; {text}; ", ""
    return "", f", {text}"


def _copies(status: Values) -> str:
    """Returns how many copies of other servers' buckets a server also holds, if any, and how many it is receiving."""
    jobs = status.get("replication", {}).get("jobs", {}).values()
    copies, learning = (sum(job[part] for job in jobs) for part in ("secondary", "learner"))
    text = f" and {copies} copies" if copies else ""
    return text + (f", {learning} more on their way" if learning else "")


def _data(status: Values) -> str:
    if not status["datasets"]:
        return "no data set open"
    names = ", ".join(dict.fromkeys(dataset["source"].rpartition("/")[2] for dataset in status["datasets"]))
    ready = f", {share(status['reads_ready'] / status['reads'])} ready when asked for" if status["reads"] else ""
    return f"{names}: {size(status['cache_bytes'])} held, {count(status['reads'])} reads{ready}"


def _worker(status: Values) -> str:
    threads = f"{status['threads']} thread{'s' * (status['threads'] > 1)}"
    if "job" not in status:
        return f"{status['state']}, {threads}"
    done = f"{count(status['batches'])} batches, {count(status['pushes'])} pushes"
    waited = f", waited {duration(status['step_wait_s'])} for others" if status.get("step_waits") else ""
    kinds = [_TRANSPORTS.get(kind, kind) for kind in status.get("transport", "").split(", ") if kind]
    by = f" by {' and '.join(kinds)}" if kinds else ""
    blocks = f", blocks by {status['blocks_by'].replace(', ', ' and ')}" if status.get("blocks_by") else ""
    return f"{status['job']}: {status['state']}, {threads}, {done}{by}{blocks}{waited}"


_TRANSPORTS = {"shared": "shared memory", "unix": "Unix socket", "tcp": "TCP"}


_DETAILS: dict[str, Callable[[Values], str]] = {
    "coordinator": _coordinator,
    "ps": _ps,
    "data": _data,
    "worker": _worker,
}


def _seconds(value: object) -> float | None:
    """Returns a time that a status has; None if it is none."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < COUNT_MAX
    return float(value) if number else None  # type: ignore[arg-type]


def _any(status: Values) -> str:
    parts = []
    for key, value in status.items():
        if key in _STANDARD or isinstance(value, (dict, list)) or value in ("", None):
            continue
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < COUNT_MAX
        parts.append(f"{key} {count(value) if number and abs(value) >= 1000 else value}")
    return ", ".join(parts[:_DETAILS_MAX])


def _shown_address(addresses: list[str]) -> str:
    reachable = [address.removeprefix("tcp://") for address in addresses if address.startswith("tcp://")]
    return reachable[0] if reachable else (addresses[0] if addresses else "-")
