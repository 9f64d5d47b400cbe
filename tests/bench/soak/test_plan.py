"""The pure part of a soak: which fault comes, what the values must be, and what memory may do."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest

from adamctl.bench.soak.plan import (
    KINDS,
    NEVER_ENDED,
    WARM_UP_S,
    Account,
    Sample,
    fault_of,
    growth,
    problem_of,
)

ROUNDS = 20
FAULTS = [fault_of(1, number, 4.0) for number in range(ROUNDS * len(KINDS))]


def test_all_kinds_come_equally_often_in_an_order_that_changes() -> None:
    assert set(Counter(fault.kind for fault in FAULTS).values()) == {ROUNDS}
    turns = {tuple(fault.kind for fault in FAULTS[at : at + len(KINDS)]) for at in range(0, len(FAULTS), len(KINDS))}
    assert len(turns) > ROUNDS / 2
    assert [fault_of(1, number, 4.0) for number in range(len(FAULTS))] == FAULTS, "whoever goes on gets the same"
    assert [fault_of(2, number, 4.0) for number in range(len(FAULTS))] != FAULTS


def test_two_processes_are_never_ended() -> None:
    """What starts over loses its memory, and with it what has grown there."""
    ended = {fault.node for fault in FAULTS if fault.kind in ("kill", "controller killed")}
    silenced = {fault.node for fault in FAULTS if fault.seconds > 5.0 and fault.kind in ("stop", "cut")}
    assert not (ended | silenced) & set(NEVER_ENDED) and len(ended) == 4 and len(silenced) == 2
    assert {fault.node for fault in FAULTS if fault.kind == "blink"} == {"ps-1", "ps-2", "ps-3"}


BASE = np.array([[5.0, 5.0], [5.0, 4.0]], np.float32)


@pytest.mark.parametrize(
    ("added", "account", "problem"),
    [
        ([[3, 3], [3, 3]], Account(3, 3), ""),
        ([[3, 4], [3, 3]], Account(4, 3), ""),  # nobody learned what became of the fourth
        ([[3, 3], [2, 3]], Account(3, 3), "acknowledged pushes are lost: 3 pushes were acknowledged, 3 sent"),
        ([[3, 3], [4, 3]], Account(3, 3), "pushes were applied twice, or in part: .* hold 3 to 4"),
        ([[3, 3.5], [3, 3]], Account(4, 3), "pushes were applied twice, or in part"),
    ],
)
def test_each_value_is_the_number_of_pushes(added: list[list[float]], account: Account, problem: str) -> None:
    found = problem_of(BASE + np.array(added, np.float32), BASE, account)
    assert bool(found) is bool(problem)
    if problem:
        with pytest.raises(ValueError, match=problem):
            raise ValueError(found)


def samples(mib_per_hour: float, hours: float, restart_every_s: float = 0.0) -> list[Sample]:
    chance = Random(7)
    found = []
    for at_s in range(0, int(hours * 3600), 10):
        grown = mib_per_hour * at_s / 3600
        young = restart_every_s and at_s % restart_every_s < 30
        noise = chance.uniform(-1, 1) + (40.0 if chance.random() < 0.02 else 0.0)
        found.append(Sample(at_s, at_s, {"ps-1": 100.0 + grown + noise - (60.0 if young else 0.0)}))
    return found


@pytest.mark.parametrize("rate", [0.0, 3.0, 6.0, 60.0])
@pytest.mark.parametrize("restart_every_s", [0.0, 300.0])
def test_growth_is_found_through_bursts_and_restarts(rate: float, restart_every_s: float) -> None:
    assert growth(samples(rate, 2.0, restart_every_s))["ps-1"] == pytest.approx(rate, abs=0.8)


def test_the_warm_up_does_not_count_and_a_short_soak_is_not_judged() -> None:
    steep = [Sample(at_s, at_s, {"ps-1": 100.0 + min(at_s, WARM_UP_S - 10)}) for at_s in range(0, 7200, 10)]
    assert growth(steep)["ps-1"] == pytest.approx(0.0)
    assert growth(samples(60.0, 0.8)) == {}
    again = [Sample(one.at_s, one.at_s % 1000, one.resident_mib) for one in samples(60.0, 2.0)]
    assert growth(again) == {}, "each start warms up anew"
