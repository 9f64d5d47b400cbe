"""Jobs seen through the configuration service's keys: whole or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, encode, job_key, layout_key
from adamctl.model.layout import Tensor
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.job_records import Fate, JobKeys, Unknown
from adamctl.wire.changes import Changes
from adamctl.wire.messages import ConfigEntry
from tests.roles.ps.ps_cluster import make_tensors

LAYOUT = LayoutRecord(make_tensors(), 1)


def entries(
    job: str = "a", revision: int = 5, state: str = "running", layout_hash: str | None = None
) -> list[ConfigEntry]:
    record = JobRecord(state, layout_hash or LAYOUT.layout().hash, RuleConfig("sgd"), 1)  # type: ignore[arg-type]
    values = {job_key(job): encode(record), layout_key(job): encode(LAYOUT)}
    values |= {bucket_key(job, b.index): encode(BucketRecord(1, "ps-0")) for b in LAYOUT.layout().buckets}
    return [ConfigEntry(key, value, revision) for key, value in sorted(values.items())]


def test_a_job_is_seen_when_all_its_keys_are_there() -> None:
    keys, everything = JobKeys(), entries()
    for count in range(len(everything)):
        keys.take(Changes(count, (everything[count],)))
        view = keys.view("a")
        assert (view is not None) is (count == len(everything) - 1)
    assert view is not None and view.layout.hash == LAYOUT.layout().hash and view.revision == 5


def test_changes_touch_their_jobs_only_and_a_reset_touches_all() -> None:
    keys = JobKeys()
    assert keys.take(Changes(1, (*entries("a"), *entries("b")))) == {"a", "b"}
    assert keys.take(Changes(2, (), (bucket_key("b", 0),))) == {"b"}
    assert keys.view("a") is not None and keys.view("b") is None
    assert keys.take(Changes(9, tuple(entries("c")), (), True)) == {"a", "b", "c"}
    assert keys.jobs == {"c"}


@pytest.mark.parametrize(
    ("shapes", "servers"),
    [
        (((1, 0),), 1),
        (((),), 1),
        (((10**12, 1),), 1),
        (((2**63, 2**63),), 1),
        (((-4, -4),), 1),
        ((), 1),
        (((4, 4),), -1),
        (((4, 4),), 10**9),
        (((1,) * 40,), 1),
    ],
)
def test_a_layout_that_none_can_be_is_a_problem_of_that_job_and_no_other(
    shapes: tuple[tuple[int, ...], ...], servers: int
) -> None:
    tensors = tuple(Tensor(f"t{n}", 0, shape, 0, "zeros", 0.0) for n, shape in enumerate(shapes))
    record = LayoutRecord(tensors, servers)
    bad = [
        ConfigEntry(entry.key, encode(record) if entry.key == layout_key("b") else entry.value, 5)
        for entry in entries("b")
    ]
    keys = JobKeys()
    keys.take(Changes(1, (*entries("a"), *bad)))
    assert keys.view("a") is not None and keys.view("b") is None
    assert "expected" in keys.problems["b"] and "a" not in keys.problems


def test_an_ended_job_is_gone() -> None:
    keys = JobKeys()
    keys.take(Changes(1, tuple(entries(state="ended"))))
    assert keys.view("a") is None and not keys.problems


def test_who_coordinates_a_job_is_what_its_record_says_at_present() -> None:
    keys = JobKeys()
    assert keys.coordinator("a") == ""
    for revision, (name, state) in enumerate([("c-0", "running"), ("c-1", "running"), ("c-1", "ended")], 1):
        record = JobRecord(state, "", RuleConfig("sgd"), 1, name)  # type: ignore[arg-type]
        keys.take(Changes(revision, (ConfigEntry(job_key("a"), encode(record), revision),)))
        for _ in range(2):
            assert keys.coordinator("a") == ("" if state == "ended" else name)
    keys.take(Changes(8, (ConfigEntry(job_key("a"), b"\xc1", 8),)))
    assert keys.coordinator("a") == ""
    keys.take(Changes(9, (), (job_key("a"),)))
    assert keys.coordinator("a") == "" and not keys._coordinators


def test_what_cannot_be_read_is_a_problem_of_that_job_and_no_other() -> None:
    keys = JobKeys()
    keys.take(Changes(1, (*entries("a"), *entries("b", layout_hash="wrong"))))
    broken = ConfigEntry(layout_key("c"), b"\xc1", 1)
    keys.take(Changes(2, (*(e for e in entries("c") if e.key != broken.key), broken)))
    assert keys.view("a") is not None and keys.view("b") is None and keys.view("c") is None
    assert "hash" in keys.problems["b"] and "'c'" in keys.problems["c"]
    keys.take_job("b", entries("b", revision=6), 6)
    assert keys.view("b") is not None and "b" not in keys.problems


def test_rereading_one_job_does_not_take_in_another_with_a_longer_name() -> None:
    keys = JobKeys()
    keys.take_job("a", [*entries("a"), *entries("ab")], 5)
    assert keys.jobs == {"a"}


def test_what_is_told_late_does_not_undo_what_is_known() -> None:
    keys = JobKeys()
    keys.take_job("a", entries(revision=9), 9)
    keys.take(Changes(5, tuple(entries(revision=5))))
    keys.take(Changes(6, (), (job_key("a"),)))
    view = keys.view("a")
    assert view is not None and set(view.bucket_revisions.values()) == {9}
    keys.take_job("a", entries(revision=7), 7)
    view = keys.view("a")
    assert view is not None and set(view.bucket_revisions.values()) == {9}


def test_a_read_that_is_older_than_the_watch_takes_no_job_away_and_brings_none_back() -> None:
    keys = JobKeys()
    keys.take(Changes(4, (), (), True))
    keys.take(Changes(9, tuple(entries(revision=9))))
    keys.take_job("a", [], 7)
    assert keys.view("a") is not None
    keys.take(Changes(12, (), tuple(entry.key for entry in entries())))
    keys.take_job("a", entries(revision=9), 11)
    assert keys.view("a") is None and not keys.jobs
    keys.take_job("a", entries(revision=13), 13)
    assert keys.view("a") is not None


def test_whether_a_job_still_runs_and_since_when() -> None:
    keys = JobKeys()
    keys.take(Changes(1, (*entries("a", revision=4), *entries("b", state="ended"))))
    fates = [keys.fate(name, born) for name, born in (("a", 4), ("b", 5), ("c", 4), ("a", 3), ("a", 7))]
    assert fates == [Fate.RUNNING, Fate.ENDED, Fate.UNKNOWN, Fate.ENDED, Fate.UNKNOWN]
    keys.take(Changes(2, (), (layout_key("b"),)))
    assert keys.fate("b", 5) is Fate.UNKNOWN, "without its layout nobody knows whose end that was"


def test_a_job_is_forgotten_when_it_has_been_unknown_for_the_whole_of_the_delay() -> None:
    unknown = Unknown(10.0)
    looks = [(0.0, Fate.UNKNOWN), (9.0, Fate.UNKNOWN), (9.5, Fate.RUNNING), (12.0, Fate.UNKNOWN), (21.0, Fate.UNKNOWN)]
    assert not any(unknown.look("a", 4, fate, now) for now, fate in looks)
    assert not unknown.look("a", 5, Fate.UNKNOWN, 22.0), "another job of that name"
    assert unknown.look("a", 4, Fate.UNKNOWN, 22.0)


def test_a_job_whose_record_is_not_text_is_known_to_nobody() -> None:
    keys = JobKeys()
    for entry in entries("a", layout_hash="name"):
        keys.take(Changes(1, (ConfigEntry(entry.key, entry.value.replace(b"name", b"\xffame"), 1),)))
    assert keys.fate("a", 1) is Fate.UNKNOWN
    assert keys.view("a") is None and "'a' cannot be read" in keys.problems["a"]


def test_who_was_never_about_to_serve_a_bucket_has_no_pushes_of_it() -> None:
    keys = JobKeys()
    keys.take(Changes(1, tuple(entries())))
    view = keys.view("a")
    assert view is not None and view.never_served("ps-0")
    served = replace(view, served=frozenset({"ps-1"}))
    assert served.never_served("ps-0") and not served.never_served("ps-1")
    assert not served.never_served("ps-0", "ps-2"), "another server may have filled them"
    copied = replace(served, record=structs.replace(view.record, replication=3))
    assert not copied.never_served("ps-0")
