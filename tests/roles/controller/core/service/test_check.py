"""What the offline checker finds among keys, and what is left when it has removed some."""

from __future__ import annotations

import pytest

from adamctl.config.records import (
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    ServedRecord,
    bucket_key,
    drain_key,
    encode,
    job_key,
    layout_key,
    served_key,
)
from adamctl.model.rule import RuleConfig
from adamctl.roles.controller.core.service.check import Finding, Replayed, findings
from adamctl.wire.messages import ConfigChanges, ConfigEntry
from adamctl.wire.unreadable import UNREADABLE
from tests.roles.controller.core.paxos.test_paxos_core import Three
from tests.roles.controller.driven_core import Driven
from tests.roles.ps.ps_cluster import make_tensors

LAYOUT = LayoutRecord(make_tensors(((4, 4),)), 1)
GOOD = {
    job_key("j"): encode(JobRecord("running", LAYOUT.layout().hash, RuleConfig("sgd"), 1, "c-0")),
    layout_key("j"): encode(LAYOUT),
    bucket_key("j", 0): encode(BucketRecord(7, "ps-0")),
    served_key("j", "ps-0"): encode(ServedRecord(1)),
    drain_key("ps-0"): encode(DrainRecord(1, 1.0)),
}


def found(more: dict[str, bytes]) -> list[Finding]:
    return findings(ConfigEntry(key, value, 1) for key, value in (GOOD | more).items())


def test_nothing_is_wrong_with_what_a_cluster_writes() -> None:
    assert found({}) == []


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (job_key("j"), b"\xc1", "expected a JobRecord: "),
        (layout_key("j"), encode(LAYOUT)[:-1], "expected a LayoutRecord: "),
        (bucket_key("j", 0), encode(BucketRecord(7, "ps-0")) + b"x", "expected a BucketRecord: "),
        (bucket_key("j", 99), GOOD[bucket_key("j", 0)], "the layout has 4 buckets"),
        (bucket_key("k", 0), GOOD[bucket_key("j", 0)], "there is no /jobs/k"),
        (job_key("k"), GOOD[job_key("j")], "it has no layout, so no server can hold it"),
        ("/else", b"", "no key that this version knows"),
        ("/jobs/j/more", b"", "no key that this version knows"),
    ],
)
def test_what_is_wrong_with_one_key_is_said_of_that_key(key: str, value: bytes, problem: str) -> None:
    (one,) = found({key: value})
    assert one.key == key and one.problem.startswith(problem)


def test_a_folder_is_replayed_as_its_controller_has_it() -> None:
    driven = Driven()
    driven.change("s", 1, ConfigChanges({}, GOOD))
    driven.change("s", 2, ConfigChanges({}, {}, (drain_key("ps-0"),)))
    vote = driven.core.paxos.acceptor.vote
    replayed = Replayed(vote, None, [one.entry for one in driven.persisted])
    assert replayed.state.snapshot() == driven.core.state.snapshot()
    snapshot = replayed.without([bucket_key("j", 0)])
    again = Replayed(vote, snapshot, [])
    assert [entry.key for entry in again.state.read("")] == sorted(set(GOOD) - {drain_key("ps-0"), bucket_key("j", 0)})
    assert again.state.revision == driven.core.state.revision + 1
    started = Driven()
    started.core.recover(vote, snapshot, [], 0.0)
    assert started.core.state.get(bucket_key("j", 0)) is None


def test_what_one_of_several_has_accepted_last_counts_as_decided() -> None:
    three = Three()
    core = three.cores["b"]
    three.lost |= {("b", "a"), ("c", "a")}
    three.put("a", "/k")
    acceptor = core.paxos.acceptor
    assert acceptor.accepted is not None
    replayed = Replayed(acceptor.vote, acceptor.snapshot(), [acceptor.accepted])
    assert core.state.get("/k") is None and replayed.state.get("/k") is not None


def test_a_log_that_holds_no_commands_is_no_log() -> None:
    driven = Driven()
    driven.put(x=b"1")
    entries = [one.entry for one in driven.persisted]
    broken = type(entries[0])(entries[0].slot, entries[0].ballot, b"\xc1", entries[0].members)
    with pytest.raises(UNREADABLE):
        Replayed(driven.core.paxos.acceptor.vote, None, [broken, *entries[1:]])
