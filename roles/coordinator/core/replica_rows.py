"""Replicas of several partitions as rows for people and programs: who waits for whom, and who is slow (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import msgspec

from adamctl.model.partition.measured import propose_cuts
from adamctl.model.partition.plan import PartitionPlan
from adamctl.roles.coordinator.core.group_book import Group
from adamctl.roles.coordinator.core.progress import Computed, MemberRow, ReplicaRow
from adamctl.wire.unreadable import UNREADABLE

SLOW_FROM: Final = 0.5
"""A partition is slow if another one waits for it for this share of its time, and it does not itself wait so much."""

MEASURED_EXAMPLES_LEAST: Final = 1000
"""Fewer say little of how fast a partition is."""

Told = Mapping[str, Any]
"""What a lead tells of one member: `partition`, `flights` open, `waiting_share`, `waits_for`: partition -> share."""


def replica_row(group: Group, state: str, status: Mapping[str, Any], cuts: PartitionPlan | None = None) -> ReplicaRow:
    """Returns a group's row; `state` of its replica, `status` as its lead last told, `cuts` of the model if known."""
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
        replica=group.replica,
        group_epoch=group.epoch,
        state=state,
        members=members,
        cut=str(status.get("cut", "")),
        proposed=_proposed(cuts, status) if slow and cuts is not None else "",
    )


def computed_by(status: Mapping[str, Any], partitions: int) -> Computed:
    """Returns the compute seconds and examples of each partition, as a lead or a whole replica last told; () if not."""
    with suppress(*UNREADABLE):
        told = msgspec.convert(status.get("computed", ()), Computed)
        return told if len(told) == partitions else ()
    return ()


def _proposed(cuts: PartitionPlan, status: Mapping[str, Any]) -> str:
    """Returns the cuts of `[partition]` with which all partitions would take as long, in short."""
    told = computed_by(status, cuts.partitions)
    if not told or min(examples for _, examples in told) < MEASURED_EXAMPLES_LEAST:
        return ""
    taken_s = [seconds / examples for seconds, examples in told]
    shares = tuple(round(one / max(taken_s), 2) for one in taken_s) if max(taken_s) > 0 else ()
    return _even(cuts, shares) if shares else ""


@lru_cache(maxsize=64)
def _even(cuts: PartitionPlan, shares: tuple[float, ...]) -> str:
    return "; ".join(f"{name}: {cut}" for name, cut in propose_cuts(cuts, shares).items())


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
