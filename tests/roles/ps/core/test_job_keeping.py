"""What a server makes of its jobs: what was placed on it is made, what was lost is resumed or given up, never both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    bucket_key,
    decode,
    encode,
    job_key,
    layout_key,
    node_key,
    served_key,
)
from adamctl.errors import DamagedDataError, UnreachableError
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.flush import Entry, FlushConfig, FlushCore
from adamctl.roles.ps.core.instructions import Instruction, Refresh
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.job_keeping import (
    AddJob,
    BuildBuckets,
    ForgetFound,
    FreeFull,
    FreeJob,
    GiveUp,
    JobKeeping,
    KeepUnknown,
    LookAt,
    Make,
    RaiseEpochs,
    Replicate,
    Serve,
    Stock,
    TakeUp,
    TellServed,
    WriteHolding,
    identity_of,
)
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

    def serve(self, job: Job, *buckets: int) -> None:
        """Buckets are there, without going through it all."""
        for index in buckets:
            described = job.layout.buckets[index]
            job.building[index] = 1
            shards = job.layout.shards_of(described)
            job.install(described, [ShardContent(s.index, np.zeros(s.size, np.float32), []) for s in shards], 1)


def without_store(instructions: list[Instruction]) -> list[Instruction]:
    """What is said besides what becomes of spare buckets in the store."""
    return [one for one in instructions if not isinstance(one, FreeFull)]


def epochs_of(raising: Instruction) -> dict[int, int]:
    assert isinstance(raising, RaiseEpochs)
    return {
        index: decode(raising.changes.puts[bucket_key("a", index)], BucketRecord).epoch
        for index in BUCKETS
        if bucket_key("a", index) in raising.changes.puts
    }


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
    assert server.keeping.changed("a") == [LookAt(job, view)]


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
    assert server.keeping.looked(job, view, Stock()) == [GiveUp(job, text)]
    assert job.failed == (ErrorCode.BAD_CONFIGURATION, text)
    assert server.keeping.looked(job, view, Stock()) == [], "it is said once"


def test_with_a_store_it_is_made() -> None:
    server, view = Server(), view_of(AFTER, record=record_of("durable"))
    job = server.add(view)
    assert server.keeping.looked(job, view, Stock()) == [FreeFull("a", view), Make(job, view, BUCKETS)]


def test_a_durable_job_that_others_serve_is_not_our_affair() -> None:
    theirs = dict.fromkeys(BUCKETS, BucketRecord(1, OTHER, (OTHER,)))
    server, view = Server(keeps_store=False), view_of(AFTER, theirs, record=record_of("durable"))
    job = server.add(view)
    assert server.keeping.looked(job, view, Stock()) == [] and job.failed is None


# --- a job with copies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_store", [True, False])
def test_a_job_with_copies_is_kept_by_the_replication_core(keeps_store: bool) -> None:
    server, view = Server(keeps_store), view_of(BEFORE, served=[NODE])
    job = server.add(view)
    spare = [FreeFull("a", view)] if keeps_store else []
    assert server.keeping.looked(job, view, Stock(copied=True)) == [*spare, Replicate("a", view)]
    assert not job.building and not job.resuming and job.failed is None


# --- single copies that were placed on this process -----------------------------------------------------------------


def test_what_was_placed_on_this_process_is_made() -> None:
    server, view = Server(keeps_store=False), view_of(AFTER)
    job = server.add(view)
    assert server.keeping.looked(job, view, Stock()) == [Make(job, view, BUCKETS)]
    assert job.building == dict.fromkeys(BUCKETS, 1)
    assert server.keeping.looked(job, view, Stock()) == [], "it is under way"


def test_what_others_serve_is_not_made() -> None:
    server, view = Server(), view_of(AFTER, {BUCKETS[0]: BucketRecord(1, OTHER, (OTHER,))})
    job = server.add(view)
    assert without_store(server.keeping.looked(job, view, Stock())) == [Make(job, view, BUCKETS[1:])]


def test_what_another_has_in_sync_is_not_made() -> None:
    """It is not ours alone: the other one may have more of it."""
    server, view = Server(), view_of(AFTER, {BUCKETS[0]: BucketRecord(1, NODE, (NODE, OTHER))})
    job = server.add(view)
    assert without_store(server.keeping.looked(job, view, Stock())) == [Make(job, view, BUCKETS[1:])]


def test_what_is_served_goes_on_when_another_one_has_it_too() -> None:
    server = Server()
    view = view_of(AFTER, {BUCKETS[0]: BucketRecord(2, NODE, (NODE, OTHER))})
    job = server.add(view)
    server.serve(job, *BUCKETS)
    assert without_store(server.keeping.looked(job, view, Stock())) == []
    assert job.buckets[BUCKETS[0]].epoch == 2


def test_what_has_moved_is_let_go_and_who_waits_for_its_records_is_told() -> None:
    flush = FlushCore(FlushConfig())
    server, view = Server(flush=flush), view_of(AFTER, {BUCKETS[0]: BucketRecord(2, OTHER, (OTHER,))})
    job = server.add(view)
    server.serve(job, *BUCKETS)
    for shard in job.shards.values():
        shard.entry = Entry(shard, 4, None)
    assert without_store(server.keeping.looked(job, view, Stock())) == []
    assert set(job.buckets) == set(BUCKETS[1:])
    assert not job.left, "what is left of it has been freed"


def test_nothing_is_made_of_a_job_that_has_failed() -> None:
    server, view = Server(), view_of(AFTER)
    job = server.add(view)
    server.keeping.give_up(job, ErrorCode.INTERNAL, "why")
    assert without_store(server.keeping.looked(job, view, Stock())) == []


# --- single copies that a former process had ------------------------------------------------------------------------


def test_what_the_store_has_is_taken_up_again_under_new_epochs() -> None:
    server, view = Server(), view_of(BEFORE, served=[NODE])
    job = server.add(view)
    spare, take_up, raising = server.keeping.looked(job, view, Stock(dict.fromkeys(BUCKETS, 1)))
    assert (spare, take_up) == (FreeFull("a", view), TakeUp("a", view))
    assert isinstance(raising, RaiseEpochs) and raising.job == "a"
    assert raising.text == f"job a: taking {len(BUCKETS)} buckets up again from the store"
    assert epochs_of(raising) == dict.fromkeys(BUCKETS, 2)
    assert raising.changes.conditions == {
        **{bucket_key("a", index): BORN for index in BUCKETS},
        node_key(NODE): REGISTERED,
    }
    assert job.resuming and not job.building, "nobody may attach before"


def test_a_new_epoch_is_above_that_of_the_store_too() -> None:
    """The controllers may have lost their memory."""
    server, view = Server(), view_of(BEFORE, {BUCKETS[0]: BucketRecord(9, NODE, (NODE,))}, served=[NODE])
    job = server.add(view)
    *_, raising = server.keeping.looked(job, view, Stock(dict.fromkeys(BUCKETS, 7)))
    assert epochs_of(raising) == {**dict.fromkeys(BUCKETS, 8), BUCKETS[0]: 10}


def test_a_record_is_changed_in_its_epoch_alone() -> None:
    before = BucketRecord(3, NODE, (NODE,), (OTHER,))
    server, view = Server(), view_of(BEFORE, {BUCKETS[0]: before}, served=[NODE])
    *_, raising = server.keeping.looked(server.add(view), view, Stock(dict.fromkeys(BUCKETS, 1)))
    assert isinstance(raising, RaiseEpochs)
    put = decode(raising.changes.puts[bucket_key("a", BUCKETS[0])], BucketRecord)
    assert put == BucketRecord(4, NODE, (NODE,), (OTHER,))


@pytest.mark.parametrize("keeps_store", [True, False])
@pytest.mark.parametrize("stored", [None, {BUCKETS[0]: 4}], ids=["nothing", "in part"])
def test_what_nobody_has_served_is_made_anew_under_new_epochs(keeps_store: bool, stored: dict[int, int] | None) -> None:
    server, view = Server(keeps_store), view_of(BEFORE, served=[OTHER])
    job = server.add(view)
    (raising,) = without_store(server.keeping.looked(job, view, Stock(stored)))
    assert isinstance(raising, RaiseEpochs)
    assert raising.text == f"job a: making {len(BUCKETS)} buckets anew"
    assert epochs_of(raising) == dict.fromkeys(BUCKETS, 2)
    assert raising.changes.conditions[served_key("a", NODE)] == 0, "and has not begun to meanwhile"
    assert job.resuming


@pytest.mark.parametrize("stored", [None, {}, dict.fromkeys(BUCKETS[1:], 1)], ids=["nothing", "none", "in part"])
def test_what_was_served_and_is_not_all_in_the_store_is_lost(stored: dict[int, int] | None) -> None:
    server, view = Server(), view_of(BEFORE, served=[NODE])
    job = server.add(view)
    text = f"ps-0 was restarted and no longer has {len(BUCKETS)} buckets of job 'a'; {RESUME}"
    assert without_store(server.keeping.looked(job, view, Stock(stored))) == [GiveUp(job, text)]
    assert job.failed == (ErrorCode.INTERNAL, text) and not job.resuming
    assert without_store(server.keeping.looked(job, view, Stock(stored))) == [], "it is said once"


def test_what_the_store_has_more_than_was_lost_does_no_harm() -> None:
    server = Server()
    view = view_of({**AFTER, BUCKETS[0]: BORN}, served=[NODE])
    job = server.add(view)
    *_, raising = server.keeping.looked(job, view, Stock(dict.fromkeys(BUCKETS, 1)))
    assert set(epochs_of(raising)) == {BUCKETS[0]}


def test_what_another_has_in_sync_is_not_lost() -> None:
    server, view = Server(), view_of(BEFORE, dict.fromkeys(BUCKETS, BucketRecord(1, NODE, (NODE, OTHER))), [NODE])
    job = server.add(view)
    assert without_store(server.keeping.looked(job, view, Stock())) == []
    assert job.failed is None and not job.building


def test_what_is_served_or_made_already_is_not_lost() -> None:
    server, view = Server(), view_of(BEFORE, served=[NODE])
    job = server.add(view)
    server.serve(job, BUCKETS[0])
    for bucket in BUCKETS[1:]:
        job.building[bucket] = 1
    assert without_store(server.keeping.looked(job, view, Stock())) == []
    assert job.failed is None


def test_new_epochs_are_asked_for_once_at_a_time() -> None:
    server, view, stock = Server(), view_of(BEFORE, served=[NODE]), Stock(dict.fromkeys(BUCKETS, 1))
    job = server.add(view)
    server.keeping.looked(job, view, stock)
    assert without_store(server.keeping.looked(job, view, stock)) == [TakeUp("a", view)] and job.resuming
    assert server.keeping.raised("a") == [Refresh("a")], "the keys tell what has come of it"
    assert any(isinstance(one, RaiseEpochs) for one in server.keeping.looked(job, view, stock))


def test_when_the_new_epochs_are_there_the_buckets_are_made() -> None:
    server, before = Server(), view_of(BEFORE, served=[NODE])
    job, stock = server.add(before), Stock(dict.fromkeys(BUCKETS, 1))
    server.keeping.looked(job, before, stock)
    server.keeping.raised("a")
    now = view_of(AFTER, dict.fromkeys(BUCKETS, BucketRecord(2, NODE, (NODE,))), [NODE])
    assert without_store(server.keeping.looked(job, now, stock)) == [Make(job, now, BUCKETS)]
    assert not job.resuming and job.building == dict.fromkeys(BUCKETS, 2)


# --- making buckets -------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_not_made() -> None:
    server, view = Server(), view_of(AFTER)
    job = server.add(view)
    assert server.keeping.measured(job, view, BUCKETS, "no room") == [GiveUp(job, "no room")]
    assert job.failed == (ErrorCode.OVER_QUOTA, "no room")


def test_a_job_that_begins_forgets_what_the_store_has_of_one_that_looks_like_it() -> None:
    server, view = Server(), view_of(AFTER)
    job = server.add(view)
    built = BuildBuckets(job, view, BUCKETS, stored=False)
    assert server.keeping.measured(job, view, BUCKETS, None) == [ForgetFound("a", view), built]


def test_without_a_store_there_is_nothing_to_forget() -> None:
    server, view = Server(keeps_store=False), view_of(AFTER)
    job = server.add(view)
    assert server.keeping.measured(job, view, BUCKETS, None) == [BuildBuckets(job, view, BUCKETS, stored=False)]


def resumed(server: Server) -> tuple[Job, JobView]:
    view = view_of(BEFORE, served=[NODE])
    job = server.add(view)
    server.keeping.looked(job, view, Stock(dict.fromkeys(BUCKETS, 1)))
    return job, view


def test_what_was_taken_up_is_read_back() -> None:
    server = Server()
    job, view = resumed(server)
    assert server.keeping.measured(job, view, BUCKETS, None) == [BuildBuckets(job, view, BUCKETS, stored=True)]


def test_a_job_that_takes_the_name_of_one_that_was_taken_up_begins_anew() -> None:
    server = Server()
    _, view = resumed(server)
    server.core.remove_job("a")
    again = server.add(view)
    assert ForgetFound("a", view) in server.keeping.measured(again, view, BUCKETS, None)


def test_what_was_freed_is_not_taken_up_any_more() -> None:
    server = Server()
    job, view = resumed(server)
    server.keeping.freed("a")
    server.keeping.freed("a")
    assert ForgetFound("a", view) in server.keeping.measured(job, view, BUCKETS, None)


def made(server: Server) -> tuple[Job, JobView]:
    view = view_of(AFTER)
    job = server.add(view)
    server.keeping.looked(job, view, Stock())
    return job, view


def test_that_buckets_are_held_is_written_before_others_are_told() -> None:
    server = Server()
    job, view = made(server)
    job.building[BUCKETS[0]] = 3
    holding = WriteHolding(job, {**dict.fromkeys(BUCKETS, 1), BUCKETS[0]: 3})
    assert server.keeping.built(job, view, BUCKETS) == [holding, TellServed(job, view)]


def test_what_has_moved_while_it_was_made_is_written_without_an_epoch() -> None:
    server = Server()
    job, view = made(server)
    job.drop(BUCKETS[0])
    holding, _ = server.keeping.built(job, view, BUCKETS)
    assert holding == WriteHolding(job, {**dict.fromkeys(BUCKETS, 1), BUCKETS[0]: 0})


def test_without_a_store_others_are_told_and_nothing_is_written() -> None:
    server = Server(keeps_store=False)
    job, view = made(server)
    assert server.keeping.built(job, view, BUCKETS) == [TellServed(job, view)]


def test_nothing_is_written_of_a_job_that_is_wanted_no_more() -> None:
    server = Server()
    job, view = made(server)
    server.keeping.give_up(job, ErrorCode.INTERNAL, "why")
    assert server.keeping.built(job, view, BUCKETS) == [TellServed(job, view)]


def test_others_are_told_once_and_not_of_a_job_that_is_over() -> None:
    server = Server()
    job, view = made(server)
    assert server.keeping.untold(job, view)
    assert not server.keeping.untold(job, view_of(AFTER, served=[NODE]))
    server.core.remove_job("a")
    assert not server.keeping.untold(job, view)


def test_what_is_made_and_told_of_is_served() -> None:
    server = Server()
    job, view = made(server)
    assert server.keeping.told(job, view, BUCKETS) == [Serve(job, view, BUCKETS)]


def test_what_has_moved_meanwhile_is_not_served() -> None:
    server = Server()
    job, view = made(server)
    job.drop(BUCKETS[0])
    assert server.keeping.told(job, view, BUCKETS) == [Serve(job, view, BUCKETS[1:])]


@pytest.mark.parametrize("end", ["freed", "failed", "made anew"])
def test_nothing_is_served_of_a_job_that_has_ended_or_failed_meanwhile(end: str) -> None:
    server = Server()
    job, view = made(server)
    if end == "failed":
        server.keeping.give_up(job, ErrorCode.INTERNAL, "why")
    else:
        server.core.remove_job("a")
    if end == "made anew":
        server.add(view)
    assert server.keeping.told(job, view, BUCKETS) == []


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
    job, _ = made(server)
    assert server.keeping.not_built(job, error) == [GiveUp(job, text)]
    assert job.failed == (code, text)


def test_it_is_said_what_could_not_be_made() -> None:
    server = Server()
    job, _ = made(server)
    (given_up,) = server.keeping.not_built(job, ValueError(), "copies")
    assert given_up == GiveUp(job, "ps-0 could not make its copies; see its log")
