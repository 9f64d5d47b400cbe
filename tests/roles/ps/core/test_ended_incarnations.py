"""The end of incarnations where etcd keeps the configuration: who has been gone for long enough, and who writes it."""

from __future__ import annotations

from adamctl.config.records import NodeRecord, RetiredRecord
from adamctl.roles.ps.core.ended_incarnations import EndedIncarnations, is_first

HORIZON_S = 60.0
NOBODY = RetiredRecord()


def looked(*looks: tuple[float, int, set[int]]) -> EndedIncarnations:
    ended = EndedIncarnations(HORIZON_S)
    for now, revision, alive in looks:
        ended.note(now, revision, alive)
    return ended


def test_nobody_is_retired_before_a_horizon_has_been_seen() -> None:
    ended = looked((0.0, 100, {10, 20, 30}), (30.0, 110, {10, 30}), (59.0, 120, {10, 30}))
    assert ended.record(59.0, NOBODY) is None


def test_who_has_been_gone_for_the_horizon_is_retired_and_who_lives_is_not() -> None:
    ended = looked((0.0, 100, {10, 20, 30}), (30.0, 110, {10, 30, 105}), (61.0, 120, {10, 30, 105}))
    record = ended.record(61.0, NOBODY)
    assert record is not None and record.floor == 100
    assert [record.has(one) for one in (5, 10, 20, 30, 105)] == [True, False, False, False, False]
    ended.note(91.0, 130, {10, 30, 105})
    record = ended.record(91.0, record)
    assert record is not None
    assert [record.has(one) for one in (5, 10, 20, 30, 105)] == [True, False, True, False, False]
    ended.note(120.0, 140, {10, 30, 105})
    assert ended.record(120.0, record) is None, "nobody has ended since"


def test_who_has_just_gone_and_came_after_the_first_look_is_kept() -> None:
    ended = looked((0.0, 100, {10}), (50.0, 160, {10, 150}), (70.0, 170, {10}), (111.0, 180, {10}))
    record = ended.record(111.0, NOBODY)
    assert record is not None and not record.has(150) and not record.has(10)
    ended.note(131.0, 190, {10})
    record = ended.record(131.0, record)
    assert record is not None and record.has(150) and not record.has(10)


def test_who_is_retired_stays_so() -> None:
    ended = looked((0.0, 100, {10, 40}), (61.0, 120, {10}))
    record = ended.record(61.0, RetiredRecord(50, (10,)))
    assert record is not None and record.has(40) and record.has(45) and not record.has(10)


def test_one_server_writes() -> None:
    nodes = [NodeRecord(*one, (), "host", 1) for one in (("w-0", "worker", 1), ("ps-0", "ps", 5), ("ps-1", "ps", 3))]
    assert is_first("ps-1", nodes) and not is_first("ps-0", nodes) and not is_first("w-0", nodes)
    assert not is_first("ps-0", [])
