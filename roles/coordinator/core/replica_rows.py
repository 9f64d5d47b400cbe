"""Replicas of several partitions as rows for people and programs: who waits for whom, and who is slow (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from adamctl.roles.coordinator.core.group_book import Group
from adamctl.roles.coordinator.core.progress import MemberRow, ReplicaRow

SLOW_FROM: Final = 0.5
"""A partition is slow if another one waits for it for this share of its time, and it does not itself wait so much."""

Told = Mapping[str, Any]
"""What a lead tells of one member: `partition`, `flights` open, `waiting_share`, `waits_for`: partition -> share."""


def replica_row(group: Group, state: str, status: Mapping[str, Any]) -> ReplicaRow:
    """Returns a group's row; `state` of its replica, `status` as its lead last told."""
    listed = status.get("members", ())
    told: dict[int, Told] = {}
    for one in listed if isinstance(listed, (list, tuple)) else ():
        if isinstance(one, Mapping) and isinstance(one.get("partition"), int):
            told[one["partition"]] = one
    slow = slow_partitions(told)
    members = tuple(
        _member(group, place, state, told.get(place, {}), place in slow) for place in range(len(group.members))
    )
    return ReplicaRow(
        replica=group.replica, group_epoch=group.epoch, state=state, members=members, cut=str(status.get("cut", ""))
    )


def slow_partitions(told: Mapping[int, Told]) -> frozenset[int]:
    """Returns the partitions that hold the others up most of the time.

    One that waits itself is not slow: whom it waits for is.
    """
    waited_for = {
        one
        for waiting, values in told.items()
        for name, share in _waits(values).items()
        if share >= SLOW_FROM and name.isdecimal() and (one := int(name)) != waiting
    }
    return frozenset(one for one in waited_for if one in told and _share(told[one]) < SLOW_FROM)


def _member(group: Group, place: int, state: str, told: Told, slow: bool) -> MemberRow:
    member, waits, flights = group.members[place], _waits(told), told.get("flights")
    most = max(waits, key=lambda name: waits[name], default="")
    return MemberRow(
        partition=member.partition,
        node=member.told.node,
        host=member.told.host.partition("/")[0],
        state=member.state or state,
        flights=flights if isinstance(flights, int) else None,
        waiting_share=_share(told) if "waiting_share" in told else None,
        waits_for=most,
        waits_for_share=waits.get(most, 0.0),
        slow=slow,
    )


def _share(told: Told) -> float:
    return _number(told.get("waiting_share"))


def _waits(told: Told) -> dict[str, float]:
    found = told.get("waits_for")
    return {str(name): _number(share) for name, share in found.items()} if isinstance(found, Mapping) else {}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
