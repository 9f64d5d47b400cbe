"""Who is slow is told from who waits for whom; whatever a lead tells, there is a row."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.partition.rules import make_plan
from adamctl.roles.coordinator.core.group_book import Group, Member
from adamctl.roles.coordinator.core.replica_rows import replica_row, slow_partitions
from adamctl.wire.messages import GroupMember

GROUP = Group(
    5, tuple(Member(GroupMember(f"w{one}", 1, f"h{one % 2}/boot", ()), one, 0.0) for one in range(3)), 0.0, replica=2
)


def told(share: float, **waits_for: float) -> dict[str, Any]:
    return {"waiting_share": share, "waits_for": {name.removeprefix("p"): value for name, value in waits_for.items()}}


@pytest.mark.parametrize(
    ("waiting", "slow"),
    [
        ([told(0.6, p1=0.6), told(0.05, p0=0.05)], {1}),
        ([told(0.4, p1=0.4), told(0.3, p0=0.3)], set()),
        ([told(0.7, p1=0.7), told(0.6, p2=0.6), told(0.0)], {2}),
        ([told(0.7, p1=0.35, p2=0.35), told(0.0), told(0.0)], set()),
        ([told(0.9, servers=0.9), told(0.6, p0=0.6)], set()),
        ([told(0.9, servers=0.9), told(0.1, p0=0.1)], set()),
        ([told(0.9, p1=0.9)], set()),
        ([told(0.9, p0=0.9), told(0.1)], set()),
    ],
)
def test_whom_others_wait_for_most_of_the_time_is_slow_unless_it_waits_itself(
    waiting: list[dict[str, Any]], slow: set[int]
) -> None:
    assert slow_partitions(dict(enumerate(waiting))) == slow


def test_a_row_has_what_the_lead_has_told_of_each_member() -> None:
    status = {
        "cut": "rows conv2d1, units dense1",
        "members": [
            {"partition": 0, "flights": 3, **told(0.75, p1=0.1, p2=0.65)},
            {"partition": 2, "flights": 1, **told(0.02, p0=0.02)},
        ],
    }
    row = replica_row(GROUP, "training", status)
    assert (row.replica, row.group_epoch, row.state, row.cut) == (2, 5, "training", "rows conv2d1, units dense1")
    first, second, third = row.members
    assert (first.node, first.host, first.flights, first.waiting_share) == ("w0", "h0", 3, 0.75)
    assert (first.waits_for, first.waits_for_share, first.slow) == ("2", 0.65, False)
    assert (second.flights, second.waiting_share, second.waits_for, second.slow) == (None, None, "", False)
    assert (third.waits_for, third.slow) == ("0", True)


PLAN = make_plan(Model((900,), (Dense(300), Dense(300), Softmax(10))), 3)
SLOW = [{"partition": one, **told(0.7, p2=0.7)} for one in (0, 1)] + [{"partition": 2, **told(0.0)}]


def test_a_replica_with_a_slow_partition_is_proposed_cuts_that_give_it_less() -> None:
    status = {"members": SLOW, "computed": [(10.0, 5000), (10.0, 5000), (20.0, 5000)]}
    proposed = replica_row(GROUP, "training", status, PLAN).proposed
    assert proposed.startswith("dense1: units at 120, 240; dense2: units at 120, 240")
    nobody_slow = status | {"members": [{"partition": one, **told(0.1)} for one in range(3)]}
    too_early = status | {"computed": [(1.0, 500), (1.0, 500), (2.0, 500)]}
    even = status | {"computed": [(10.0, 5000)] * 3}
    others = [nobody_slow, too_early, even, status | {"computed": "x"}, status | {"computed": [(1.0, 5000)]}]
    assert [replica_row(GROUP, "training", one, PLAN).proposed for one in others] == [""] * 5
    assert replica_row(GROUP, "training", status).proposed == ""


@pytest.mark.parametrize(
    "status",
    [{}, {"members": None}, {"members": "x"}, {"members": [1, {}, {"partition": "0"}], "cut": 7},
     {"members": [{"partition": 0, "flights": "many", "waiting_share": None, "waits_for": [1]}]}],
)  # fmt: skip
def test_a_lead_of_another_version_has_a_row_too(status: dict[str, Any]) -> None:
    row = replica_row(GROUP, "starting", status)
    assert [one.node for one in row.members] == ["w0", "w1", "w2"] and not any(one.slow for one in row.members)
