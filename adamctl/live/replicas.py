"""Replicas of several partitions as rows of texts: who waits how much, and for whom. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adamctl.config.names import printable
from adamctl.live.reading import ProcessReading, cpu_text, memory_text, total
from adamctl.roles.coordinator.core.progress import MemberRow, ReplicaRow


@dataclass(frozen=True)
class MemberLine:
    """One partition of a replica, or a whole replica, as a row of texts. `slow`: others wait for it."""

    replica: str
    part: str
    node: str
    host: str
    state: str
    cpu: str
    memory: str
    flights: str
    waits: str
    slow: bool = False


def member_lines(
    replicas: Sequence[ReplicaRow], readings: Mapping[str, ProcessReading], rows_max: int
) -> list[MemberLine]:
    """Returns a line for each partition of each replica; where that is too many, one for each replica, or one for all.

    A replica's number stands in its first line alone.
    """
    if sum(len(replica.members) for replica in replicas) <= rows_max:
        return [_member(replica, member, readings) for replica in replicas for member in replica.members]
    if len(replicas) <= rows_max:
        return [_together(str(one.replica), one.members, readings) for one in replicas]
    members = [member for replica in replicas for member in replica.members]
    return [_together(f"{len(replicas)} replicas", members, readings)]


def waits_text(member: MemberRow) -> str:
    """Returns how much a partition waits, and for whom: `41%, most for 0`; or that others wait for it: `2%, slow`."""
    if member.waiting_share is None:
        return "-"
    text = percent(member.waiting_share)
    if member.slow:
        return f"{text}, slow"
    if member.waits_for_share < NOTED_FROM:
        return text
    most = "" if member.waits_for_share > MOST_IS_ALL * member.waiting_share else "most "
    return f"{text}, {most}for {member.waits_for}"


NOTED_FROM = 0.05
"""Shares of waiting below this need no name of whom is waited for."""
MOST_IS_ALL = 0.95


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def _member(replica: ReplicaRow, member: MemberRow, readings: Mapping[str, ProcessReading]) -> MemberLine:
    reading = readings.get(member.node)
    return MemberLine(
        "" if member.partition else str(replica.replica),
        str(member.partition),
        printable(member.node),
        printable(member.host),
        printable("degraded" if reading is not None and reading.problem else member.state),
        cpu_text(reading),
        memory_text(reading),
        "-" if member.flights is None else str(member.flights),
        printable(waits_text(member)),
        member.slow,
    )


def _together(replica: str, members: Sequence[MemberRow], readings: Mapping[str, ProcessReading]) -> MemberLine:
    states = Counter(member.state for member in members)
    hosts = list(dict.fromkeys(member.host for member in members))
    waiting = [member for member in members if member.waiting_share is not None]
    least = min(waiting, key=lambda one: one.waiting_share or 0.0, default=None)
    most = max(waiting, key=lambda one: one.waiting_share or 0.0, default=None)
    waits = "-"
    if least is not None and most is not None:
        waits = f"{percent(least.waiting_share or 0.0)}-{percent(most.waiting_share or 0.0)}"
    slow = [member for member in members if member.slow]
    if slow:
        waits += f", slow: {slow[0].partition}" if replica.isdecimal() else f", {len(slow)} slow"
    found = total([readings[member.node] for member in members if member.node in readings])
    flights = [member.flights for member in members if member.flights is not None]
    return MemberLine(
        replica,
        f"0-{len(members) - 1}" if replica.isdecimal() else "",
        f"{len(members)} workers",
        printable(hosts[0]) if len(hosts) == 1 else f"{len(hosts)} hosts",
        printable(next(iter(states))) if len(states) == 1 else "mixed",
        cpu_text(found),
        memory_text(found),
        str(max(flights)) if flights else "-",
        waits,
        bool(slow),
    )
