"""Who may change which key, and which keys a trainer sees: the part of the table that depends on the state. Pure.

    /nodes/{id}                  nobody: by registering, beacons and leaving alone
    /jobs/{id}/buckets/{n}       parameter servers; operators, if there is such a bucket (`adamctl recover`)
    /jobs/{id}/served/{node}     that parameter server
    /jobs/{id}, and all under it its coordinator; whoever creates it (coordinator, client)
    /jobs/{id}, to end it        operators (`adamctl run stop`); any client where no coordinator keeps it: the client
                                 that made it may have died
    /drains/{node}               operators; that parameter server
    /retired                     nobody: the controllers do it themselves

Nobody may change any other key. Whoever changes a bucket raises its epoch: with an older one, what a server has already
seen and will refuse would stand in the configuration for good.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec.structs import replace

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    NodeRecord,
    decode,
    drain_key,
    job_key,
    layout_key,
    node_key,
    served_key,
)
from adamctl.roles.controller.core.instructions import Refuse
from adamctl.roles.controller.core.service.events import CompareAndSet, Read, Watch
from adamctl.roles.controller.core.service.state import KeyState
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigChanges
from adamctl.wire.permissions import JOB_OWNERS, OPERATORS, TRAINERS
from adamctl.wire.unreadable import UNREADABLE

_BUCKET: Final = re.compile(r"/jobs/[^/]+/buckets/[^/]+")
_JOB: Final = re.compile(r"/jobs/[^/]+")
_OF_JOB: Final = re.compile(r"/jobs/([^/]+)(/.+)?")
_DRAIN: Final = re.compile(r"/drains/[^/]+")
_JOBS: Final = "/jobs/"


def change_refusal(state: KeyState, role: str, node: str, changes: ConfigChanges) -> str:
    """Returns why a node of a role may not make these changes; empty: it may."""
    for key in (*changes.puts, *changes.deletes):
        if not _may_change(state, role, node, key, changes):
            return f"{role} {node} may not change {key[:200]!a}"
    return next(filter(None, (_epoch_problem(state, key, changes) for key in changes.puts)), "")


def sees(role: str, prefix: str, key: str) -> bool:
    """Returns whether a key is part of the answer to a role that reads or watches a prefix of it.

    A trainer that reads `/jobs/NAME` sees that job and its successors `NAME~2`, `NAME~3`, ...; not `/jobs/NAMESAKE`.
    One that looks for a run, at `/jobs/`, sees the record of each job and nothing below.
    """
    if role not in TRAINERS or not prefix.startswith(_JOBS):
        return True
    wanted = job_of(prefix)
    return job_of(key) == wanted if wanted else key.count("/") == 2


def job_of(key: str) -> str:
    """Returns the name of the job that a key or prefix is of, without the number of a successor; empty: of all jobs."""
    return key.removeprefix(_JOBS).partition("/")[0].partition("~")[0]


def refused(state: KeyState, asked: object) -> Refuse | None:
    """Returns the refusal of a request that its sender may not make; None if it may."""
    if not isinstance(asked, CompareAndSet) or not asked.role:
        return None
    text = change_refusal(state, asked.role, asked.node, asked.changes)
    return Refuse(asked.token, ErrorCode.NOT_ALLOWED, text) if text else None


class JobsOfClients:
    """Which job each client's connection is for: the one that it reads of first. A client pushes to one job.

    A worker goes from run to run over one connection, and nobody tells the controllers which one has taken it: its job
    cannot be known here.
    """

    def __init__(self) -> None:
        self._job_of: dict[int, str] = {}

    def refusal(self, event: Read | Watch) -> Refuse | None:
        """Returns the refusal of a client that reads of a second job; None: it reads of its own, or is no client."""
        job = job_of(event.prefix) if event.role == "client" and event.prefix.startswith(_JOBS) else ""
        own = self._job_of.setdefault(event.connection, job) if job else ""
        if job == own:
            return None
        text = f"this connection is for job {own[:80]!a}; a client reads of no other; found {job[:80]!a}"
        return Refuse(event.token, ErrorCode.NOT_ALLOWED, text)

    def disconnected(self, connection: int) -> None:
        self._job_of.pop(connection, None)


def _epoch_problem(state: KeyState, key: str, changes: ConfigChanges) -> str:
    """Says that a bucket's epoch does not grow. A change that comes too late for that is a conflict instead.

    A job whose layout is written with its buckets begins anew, and so do its epochs.
    """
    entry, of_job = state.get(key), _OF_JOB.fullmatch(key)
    if entry is None or of_job is None or not _BUCKET.fullmatch(key) or layout_key(of_job[1]) in changes.puts:
        return ""
    if changes.conditions.get(key, entry.revision) != entry.revision:
        return ""
    try:
        before, after = decode(entry.value, BucketRecord).epoch, decode(changes.puts[key], BucketRecord).epoch
    except UNREADABLE:
        return ""  # what cannot be read may be replaced; what replaces it has been checked
    return "" if after > before else f"{key}: expected an epoch above {before}; found {after}"


def _may_change(state: KeyState, role: str, node: str, key: str, changes: ConfigChanges) -> bool:
    of_job = _OF_JOB.fullmatch(key)
    if role in OPERATORS:
        return _DRAIN.fullmatch(key) is not None or (of_job is not None and _mends(state, key, changes))
    if of_job is None:
        return role == "ps" and key == drain_key(node)
    job = of_job[1]
    if role == "ps":
        return _BUCKET.fullmatch(key) is not None or key == served_key(job, node)
    return role in JOB_OWNERS and _owns(state, role, node, job, changes)


def _owns(state: KeyState, role: str, node: str, job: str, changes: ConfigChanges) -> bool:
    """Says whether a job is, and remains, a coordinator's, or is created by these changes."""
    key = job_key(job)
    if role == "client" and _ends_shared(state, key, changes):
        return True
    if key in changes.puts and not _names(changes.puts[key], role, node):
        return False
    if key in changes.puts and changes.conditions.get(key) == 0:
        return True  # if there is such a job, nothing changes and the sender is told of the conflict
    entry = state.get(key)
    return entry is not None and _names(entry.value, "coordinator", node)


def _mends(state: KeyState, key: str, changes: ConfigChanges) -> bool:
    """Says whether this change of a job's key is one that operators' commands make."""
    if key not in changes.puts or state.get(key) is None:
        return False
    return _BUCKET.fullmatch(key) is not None or _ended(state, key, changes.puts[key]) is not None


def _ends_shared(state: KeyState, key: str, changes: ConfigChanges) -> bool:
    """Says whether these changes only end a job that clients share: the client that made it may have died."""
    if set(changes.puts) != {key} or changes.deletes:
        return False
    job = _ended(state, key, changes.puts[key])
    if job is None:
        return False
    maker = state.get(node_key(job.coordinator)) if job.coordinator else None
    try:
        return maker is None or decode(maker.value, NodeRecord).role == "client"
    except UNREADABLE:
        return False


def _ended(state: KeyState, key: str, value: bytes) -> JobRecord | None:
    """Returns the job whose key this is, if a value says of it only that it has ended."""
    entry = state.get(key) if _JOB.fullmatch(key) is not None else None
    try:
        job = decode(entry.value, JobRecord) if entry is not None else None
        return job if job is not None and decode(value, JobRecord) == replace(job, state="ended") else None
    except UNREADABLE:
        return None


def _names(value: bytes, role: str, node: str) -> bool:
    """Says whether a job's record names this node as its coordinator, or names nobody because a client made it."""
    try:
        coordinator = decode(value, JobRecord).coordinator
    except UNREADABLE:
        return False
    return coordinator == node or (role == "client" and not coordinator)
