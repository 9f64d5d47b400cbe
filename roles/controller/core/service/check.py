"""What is wrong with the keys of a configuration, seen without a cluster: for the offline checker. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from adamctl.config.records import LayoutRecord, decode, job_key, layout_key
from adamctl.roles.controller.core.instructions import Instruction
from adamctl.roles.controller.core.paxos.acceptor import Acceptor
from adamctl.roles.controller.core.paxos.messages import Entry, PaxosSnapshot, Vote
from adamctl.roles.controller.core.service.commands import carry_out, decode_commands
from adamctl.roles.controller.core.service.record_kinds import kind_of, record_problem
from adamctl.roles.controller.core.service.state import Effect, KeyState, decode_state
from adamctl.wire.messages import ConfigEntry


@dataclass(frozen=True)
class Finding:
    """A key, and what is wrong with it."""

    key: str
    problem: str


class Replayed:
    """A controller's keys as its folder has them.

    What was accepted last counts too: it may be decided, and whoever asked for it was told so then. If it is not, then
    nobody was told anything.

    Attributes:
        acceptor: members and slot.
    """

    def __init__(self, vote: Vote, snapshot: PaxosSnapshot | None, entries: Iterable[Entry]) -> None:
        """Raises one of UNREADABLE: a value of the log, or the state that it begins from, is none."""
        self.state = KeyState()
        self.acceptor = Acceptor(self, self, vote)
        self.acceptor.recover(snapshot, entries)
        if self.acceptor.accepted is not None:
            self.acceptor.choose()

    def without(self, keys: Iterable[str]) -> PaxosSnapshot:
        """Deletes keys, and returns what a controller that is alone may go on from."""
        self.state.apply(Effect(self.state.revision + 1, deletes=tuple(keys)))
        return self.acceptor.snapshot()

    # --- Machine and Outbox -------------------------------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        for command in decode_commands(entry.value):
            carry_out(self.state, command)

    @property
    def state_bytes(self) -> int:
        return self.state.size_bytes

    def encode_state(self) -> bytes:
        return msgspec.msgpack.encode(self.state.snapshot())

    def restore_state(self, state: bytes) -> None:
        self.state.restore(decode_state(state))

    def value_problem(self, value: bytes) -> str:
        return ""

    def state_problem(self, state: bytes) -> str:
        return ""

    def put(self, instruction: Instruction) -> None:
        """Nothing is kept: this only looks."""


def findings(entries: Iterable[ConfigEntry]) -> list[Finding]:
    """Returns what is wrong with keys: records that cannot be read, and what belongs to no job that can be served."""
    there = {entry.key: entry.value for entry in entries}
    buckets = _buckets_of(there)
    found = []
    for key, value in sorted(there.items()):
        problem = record_problem(key, value).removeprefix(f"{key}: ") or _orphan(key, there, buckets)
        if problem:
            found.append(Finding(key, problem))
    return found


def _buckets_of(there: Mapping[str, bytes]) -> dict[str, int]:
    """Returns how many buckets each job has whose layout can be read."""
    found = {}
    for key, value in there.items():
        if kind_of(key) is LayoutRecord and not record_problem(key, value):
            found[_job(key)] = len(decode(value, LayoutRecord).layout().buckets)
    return found


def _orphan(key: str, there: Mapping[str, bytes], buckets: Mapping[str, int]) -> str:
    if kind_of(key) is None:
        return "no key that this version knows"
    if not key.startswith("/jobs/"):
        return ""
    job = _job(key)
    if job_key(job) not in there:
        return f"there is no {job_key(job)[:80]}"
    if key == job_key(job):
        return "" if layout_key(job) in there else "it has no layout, so no server can hold it"
    parts = key.split("/")
    if parts[3] == "buckets" and int(parts[4]) >= buckets.get(job, 1 << 62):
        return f"the layout has {buckets[job]} buckets"
    return ""


def _job(key: str) -> str:
    return key.split("/")[2]
