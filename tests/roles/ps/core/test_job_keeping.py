"""What a server makes of its jobs: they are added, followed, kept or freed as their keys say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
)
from adamctl.errors import DamagedDataError, UnreachableError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.flush import FlushCore
from adamctl.roles.ps.core.instructions import (
    AddJob,
    FreeFull,
    FreeJob,
    FreeStored,
    GiveUp,
    KeepUnknown,
    Replicate,
    Unload,
)
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.job_keeping import JobKeeping, identity_of
from adamctl.roles.ps.core.job_records import JobKeys, JobView
from adamctl.roles.ps.core.server_core import ServerCore
from adamctl.wire.changes import Changes
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry
from tests.roles.ps.ps_cluster import make_tensors

NODE, OTHER = "ps-0", "ps-1"
LAYOUT = LayoutRecord(make_tensors(((4, 4), (4,), (4, 2), (2,))), 2)
BUCKETS = [bucket.index for bucket in LAYOUT.layout().buckets]
BORN, REGISTERED, LATER = 5, 10, 15
"""Revisions: the job began, this process was registered, something was placed on it."""
BEFORE, AFTER = dict.fromkeys(BUCKETS, BORN), dict.fromkeys(BUCKETS, LATER)
"""Where all buckets were placed on a former process of our name, or on this one."""
RESUME = "resume the run from its last checkpoint"


def record_of(acks: str = "applied", state: str = "running", seed: int = 1) -> JobRecord:
    return JobRecord(state, LAYOUT.layout().hash, RuleConfig("add"), seed, acks=acks)  # type: ignore[arg-type]


def view_of(
    revisions: Mapping[int, int],
    records: Mapping[int, BucketRecord] | None = None,
    served: Iterable[str] = (),
    record: JobRecord | None = None,
) -> JobView:
    """A job of which each bucket is ours alone, but for `records`."""
    buckets = {index: BucketRecord(1, NODE, (NODE,)) for index in BUCKETS} | dict(records or {})
    return JobView(record or record_of(), LAYOUT.layout(), buckets, BORN, dict(revisions), frozenset(served))


class Server:
    """The core of jobs with what it looks at."""

    def __init__(self, keeps_store: bool = True, flush: FlushCore | None = None) -> None:
        self.core, self.keys = ServerCore(1, flush=flush), JobKeys()
        self.keeping = JobKeeping(NODE, self.core, self.keys, keeps_store)
        self.keeping.registered_revision = REGISTERED

    def add(self, view: JobView) -> Job:
        """As the shell does on `AddJob`."""
        job = Job("a", view.layout, make_rule(view.record.rule), identity_of(view))
        job.durable = view.record.acks == "durable"
        self.core.add_job(job)
        return job

    def take(self, revision: int, *, record: JobRecord | None = None, born: int = BORN) -> None:
        """The keys of a job are told."""
        values = {job_key("a"): (encode(record or record_of()), born), layout_key("a"): (encode(LAYOUT), born)}
        values |= {bucket_key("a", index): (encode(BucketRecord(1, NODE)), born) for index in BUCKETS}
        self.keys.take(Changes(revision, tuple(ConfigEntry(key, *value) for key, value in values.items())))


# --- whole jobs -----------------------------------------------------------------------------------------------------


def test_what_is_neither_known_nor_held_is_no_matter() -> None:
    assert Server().keeping.changed("a") == []


def test_a_job_that_is_new_is_taken_up() -> None:
    server = Server()
    server.take(BORN)
    view = server.keys.view("a")
    assert view is not None
    assert server.keeping.changed("a") == [AddJob("a", view)]


def test_a_job_that_is_held_is_looked_at() -> None:
    server = Server()
    server.take(BORN)
    view = server.keys.view("a")
    assert view is not None
    job = server.add(view)
    assert server.keeping.changed("a") == server.keeping.added(job, view) != []


def test_a_job_that_has_ended_is_freed() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(LATER, record=record_of(state="ended"))
    assert server.keeping.changed("a") == [FreeJob("a")]


def test_a_later_job_of_the_same_name_takes_the_place_of_the_former() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(LATER, born=LATER)
    view = server.keys.view("a")
    assert view is not None
    assert server.keeping.changed("a") == [FreeJob("a"), AddJob("a", view)]


def test_a_job_that_was_changed_is_made_anew() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(LATER, record=record_of(seed=2))
    view = server.keys.view("a")
    assert view is not None
    assert server.keeping.changed("a") == [FreeJob("a"), AddJob("a", view)]


def test_a_job_that_nobody_knows_is_kept() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    assert server.keeping.changed("a") == [KeepUnknown("job 'a' is not known any more; it is kept")]


def test_a_job_whose_buckets_are_not_all_told_is_kept() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(BORN)
    server.keys.take(Changes(LATER, (), (bucket_key("a", BUCKETS[0]),)))
    assert server.keeping.changed("a") == [KeepUnknown("job 'a' is not known any more; it is kept")]


def test_a_job_that_cannot_be_read_is_kept_and_why_is_said() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(BORN)
    server.keys.take(Changes(LATER, (ConfigEntry(bucket_key("a", BUCKETS[0]), b"\xc1", LATER),)))
    (kept,) = server.keeping.changed("a")
    assert isinstance(kept, KeepUnknown) and "the records of job 'a' cannot be read" in kept.text


def test_a_job_of_an_older_controller_does_not_take_the_place_of_ours() -> None:
    server = Server()
    server.add(view_of(BEFORE))
    server.take(LATER, born=BORN - 1)
    (kept,) = server.keeping.changed("a")
    assert isinstance(kept, KeepUnknown)


def test_a_job_is_given_up_with_its_reason() -> None:
    server = Server()
    job = server.add(view_of(BEFORE))
    assert server.keeping.give_up(job, ErrorCode.INTERNAL, "why") == [GiveUp(job, "why")]
    assert job.failed == (ErrorCode.INTERNAL, "why")


# --- a job that needs a store ---------------------------------------------------------------------------------------


def test_a_durable_job_is_given_up_where_there_is_no_store() -> None:
    server, view = Server(keeps_store=False), view_of(AFTER, record=record_of("durable"))
    job = server.add(view)
    text = "job 'a' asks for acks = durable, but ps-0 keeps no store; start it with --store"
    assert server.keeping.added(job, view) == [GiveUp(job, text), Replicate("a", view)]
    assert job.failed == (ErrorCode.BAD_CONFIGURATION, text)
    assert server.keeping.added(job, view) == [Replicate("a", view)], "it is said once"


def test_with_a_store_it_is_made() -> None:
    server, view = Server(), view_of(AFTER, record=record_of("durable"))
    job = server.add(view)
    assert server.keeping.added(job, view) == [FreeFull("a", view), Replicate("a", view)]


def test_a_durable_job_that_others_serve_is_not_our_affair() -> None:
    theirs = dict.fromkeys(BUCKETS, BucketRecord(1, OTHER, (OTHER,)))
    server, view = Server(keeps_store=False), view_of(AFTER, theirs, record=record_of("durable"))
    job = server.add(view)
    assert server.keeping.added(job, view) == [Replicate("a", view)] and job.failed is None


# --- the records of its buckets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_store", [True, False])
def test_the_records_of_a_job_are_followed_by_the_replication_core(keeps_store: bool) -> None:
    server, view = Server(keeps_store), view_of(BEFORE, served=[NODE])
    job = server.add(view)
    spare = [FreeFull("a", view)] if keeps_store else []
    assert server.keeping.added(job, view) == [*spare, Replicate("a", view)]
    assert not job.building and job.failed is None


# --- making buckets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["freed", "failed", "made anew"])
def test_a_job_that_has_ended_or_failed_meanwhile_is_not_wanted(end: str) -> None:
    server, view = Server(), view_of(AFTER)
    job = server.add(view)
    assert server.keeping.wanted(job)
    if end == "failed":
        server.keeping.give_up(job, ErrorCode.INTERNAL, "why")
    else:
        server.core.remove_job("a")
    if end == "made anew":
        server.add(view)
    assert not server.keeping.wanted(job)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (DamagedDataError("a record is damaged"), ErrorCode.DAMAGED_DATA, "a record is damaged"),
        (UnreachableError("no answer"), ErrorCode.INTERNAL, "no answer"),
        (OSError("no such folder"), ErrorCode.INTERNAL, "no such folder"),
        (MemoryError(), ErrorCode.INTERNAL, "ps-0 could not make its buckets; there is not enough memory"),
        (ValueError("a fault of ours"), ErrorCode.INTERNAL, "ps-0 could not make its buckets; see its log"),
    ],
)
def test_a_job_whose_buckets_cannot_be_made_is_given_up(error: Exception, code: ErrorCode, text: str) -> None:
    server = Server()
    job = server.add(view_of(AFTER))
    assert server.keeping.not_made(job, error) == [GiveUp(job, text)]
    assert job.failed == (code, text)


# --- jobs in the store that are not served --------------------------------------------------------------------------


def test_what_the_store_has_of_a_running_job_stays_as_it_is() -> None:
    server = Server()
    server.take(BORN)
    assert server.keeping.stored([("a", BORN)]) == []


def test_what_the_store_has_of_an_ended_job_is_freed() -> None:
    server = Server()
    server.take(LATER, record=record_of(state="ended"))
    assert server.keeping.stored([("a", BORN)]) == [FreeStored("a", BORN, "it has ended")]


def test_what_the_store_has_of_an_unknown_job_stays_on_disk_alone() -> None:
    assert Server().keeping.stored([("a", BORN)]) == [Unload("a", BORN)]
