"""What a server holds of a job: buckets by epoch, shards shared out over apply threads, staleness counted."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import Tensor, cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.job import STALENESS_MAX, Job, ShardContent, quantile
from tests.roles.ps.core_harness import Harness
from tests.roles.ps.ps_cluster import make_layout


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_each_thread_owns_a_contiguous_stripe_of_about_the_same_bytes(threads: int) -> None:
    layout = make_layout(((600, 50), (600,), (300, 600), (300,)), servers=2)
    job = Harness(layout=layout, threads=threads).job
    owners = [job.shards[index].thread for index in sorted(job.shards)]
    assert owners == sorted(owners) and set(owners) == set(range(threads))
    sizes = [sum(s.size for s in job.shards.values() if s.thread == thread) for thread in range(threads)]
    assert max(sizes) - min(sizes) <= 2 * max(shard.size for shard in job.shards.values())


def test_a_bucket_that_begins_is_built_under_its_epoch_and_no_epoch_is_forgotten() -> None:
    job = Harness().job
    assert job.ready
    job.drop(1)
    job.begin(1, 5)
    assert job.building == {1: 5} and job.epochs[1] == 5 and not job.ready
    job.begin(1, 4)
    assert job.building == {1: 4} and job.epochs[1] == 5


@pytest.mark.parametrize("lacks", ["placed", "taking", "failed"])
def test_a_job_is_ready_when_all_that_it_is_to_serve_is_there(lacks: str) -> None:
    job = Harness().job
    if lacks == "placed":
        job.epochs.clear()
    elif lacks == "taking":
        job.taking.add(0)
    else:
        job.failed = (1, "gone")
    assert not job.ready


def test_quantiles_of_a_histogram() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([0, 0, 0], 0.5) == 0
    assert quantile([50, 40, 9, 1], 0.5) == 0
    assert quantile([49, 40, 10, 1], 0.5) == 1
    assert quantile([49, 40, 10, 1], 0.99) == 2
    assert quantile([0, 0, 1], 0.0) == 2


def test_the_last_column_counts_all_that_is_staler() -> None:
    job = Harness().job
    job.count_staleness(STALENESS_MAX - 1, STALENESS_MAX - 1)
    job.count_staleness(10**9, 10**9)
    for counts in (job.staleness, job.gradient_ages):
        assert counts[STALENESS_MAX - 1] == counts[STALENESS_MAX] == 1


def test_initial_values_of_a_bucket_that_is_taken_over_are_there_when_they_are_on_this_disk() -> None:
    """The primary before had them on its own disk, or had died before; and a record may be older than they are."""
    layout = cut_layout((Tensor("t", 0, (2, 2), 0, "given", 0.0),), 1)
    job = Job("j", layout, make_rule(RuleConfig("add")))
    for bucket in layout.buckets:
        job.begin(bucket.index, 3)
        contents = [ShardContent(shard.index, np.ones(shard.size, np.float32), [], 1, 1) for shard in
                    layout.shards_of(bucket)]  # fmt: skip
        job.install(bucket, contents, 1)
    shard = job.shards[0]
    assert not shard.initial_values_volatile, "there is no disk"
    shard.entry = Entry(shard, 4)
    assert shard.initial_values_volatile
    shard.entry.sequence, shard.entry.version = 7, (2, 0, 0)  # as this server learnt the bucket, before the first push
    assert shard.initial_values_volatile
    shard.entry.sequence, shard.entry.version = 9, (3, 1, 1)
    assert not shard.initial_values_volatile
