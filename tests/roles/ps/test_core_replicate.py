"""What a primary ships, and when it answers for it."""

from __future__ import annotations

from adamctl.roles.ps.core_instructions import AnswerPull, Refuse
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ReplicaPrepareReply, ReplicaPrepareRequest
from tests.roles.ps.replica_cluster import Cluster


def is_data(message: object) -> bool:
    return isinstance(message, ReplicaPrepareRequest)


def test_a_push_is_in_all_copies_when_it_is_acknowledged() -> None:
    cluster = Cluster()
    a = cluster["a"]
    a.push("p", [(0, 1, 2.0)])
    cluster.run()
    assert a.code("p") == ErrorCode.OK
    assert [cluster[node].value(0) for node in "abc"] == [2.0] * 3
    cluster.check()


def test_it_is_not_acknowledged_before_every_copy_has_prepared_it() -> None:
    cluster = Cluster()
    cluster.hold_all(("c", "a"))
    cluster["a"].push("p", [(0, 1, 2.0)])
    cluster.run()
    assert cluster["a"].code("p") is None
    assert cluster["c"].value(0) == 2.0
    cluster.deliver_held()
    assert cluster["a"].code("p") == ErrorCode.OK
