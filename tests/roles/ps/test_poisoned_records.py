"""Records of a job that make no sense harm that job: servers go on, and so do their other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest

from adamctl.config.records import (
    BucketRecord,
    DrainRecord,
    JobRecord,
    LayoutRecord,
    RetiredRecord,
    ServedRecord,
    bucket_key,
    encode,
    job_key,
    layout_key,
    served_key,
)
from adamctl.errors import RemoteError
from adamctl.model.rule import RuleConfig
from adamctl.roles.configuration import ConfigurationStore
from adamctl.roles.ps import server
from adamctl.wire.changes import Changes
from adamctl.wire.messages import AttachRequest, ConfigChanges, ConfigCompareAndSetReply, ConfigEntry
from tests.cluster import memory_cluster
from tests.roles.ps.ps_cluster import add_job, constant, make_client, make_tensors, pulled, push_of
from tests.wire.any_message import EDGES, any_value, mutated

QUICK, SLOW = 1_500, 100_000
LAYOUT = LayoutRecord(make_tensors(((4, 4), (4,))), 1)
JOBS = [f"bad-{number}" for number in range(6)]


def records_of(job: str, server_name: str) -> dict[str, msgspec.Struct]:
    """Returns the records of a job that could be served."""
    described = JobRecord("running", LAYOUT.layout().hash, RuleConfig("adagrad"), 1, "c-0", "", "replicated", 2, 1)
    found: dict[str, msgspec.Struct] = {job_key(job): described, layout_key(job): LAYOUT}
    for bucket in LAYOUT.layout().buckets:
        found[bucket_key(job, bucket.index)] = BucketRecord(1, server_name, (server_name, "ps-9"), ("ps-8",))
    found[served_key(job, server_name)] = ServedRecord(3)
    return found


def poison(random: Random, revision: int) -> ConfigEntry:
    """Returns an entry that no controller lets through, or one that it would; seldom one that fits the others."""
    job = random.choice(JOBS)
    keys = records_of(job, "ps-0")
    key = random.choice(list(keys))
    kind = random.random()
    if kind < 0.3:
        value = encode(keys[key])  # type: ignore[arg-type]
    elif kind < 0.6:
        value = mutated(encode(keys[key]), random)  # type: ignore[arg-type]
    elif kind < 0.8:
        fields: list[Any] = list(msgspec.to_builtins(keys[key]))
        fields[random.randrange(len(fields))] = random.choice((any_value(random), random.choice(EDGES)))
        value = packed(fields)
    else:
        value = random.choice((b"", b"\xc1", packed(any_value(random)), encode(DrainRecord(1, 1.0))))
    if random.random() < 0.1:
        key = random.choice(
            ("/jobs/", "/jobs//", f"/jobs/{job}/buckets/x", "/jobs/\x1b[2J", f"/jobs/{job}//", "/drains/x")
        )
    return ConfigEntry(key, value, random.choice((revision, revision, 1, *EDGES)))


def packed(value: Any) -> bytes:
    try:
        return msgspec.msgpack.encode(value)
    except OverflowError:
        return b"\xc1"


class Poisoned:
    """A configuration service that also tells of jobs that no controller has. Everything else is the real one's."""

    def __init__(self, store: ConfigurationStore, random: Random) -> None:
        self._store, self._random, self.left = store, random, 0
        self._there: dict[str, ConfigEntry] = {}

    async def read(self, prefix: str) -> tuple[int, list[ConfigEntry]]:
        revision, entries = await self._store.read(prefix)
        return revision, [*entries, *(one for key, one in self._there.items() if key.startswith(prefix))]

    async def compare_and_set(self, changes: ConfigChanges) -> ConfigCompareAndSetReply:
        if any("bad-" in key for key in (*changes.puts, *changes.conditions)):
            return ConfigCompareAndSetReply(1, self._random.choice(((), tuple(changes.puts))))
        return await self._store.compare_and_set(changes)

    async def watch(self, prefix: str, after_revision: int, wait_s: float) -> Changes:
        if self.left <= 0 or not prefix.startswith(("/jobs", "/drains", "/retired")):
            return await self._store.watch(prefix, after_revision, wait_s)
        await asyncio.sleep(0)
        found = tuple(self._some(prefix, after_revision))
        gone = tuple(self._random.sample(sorted(self._there), k=min(1, len(self._there))))
        for key in gone:
            del self._there[key]
        return Changes(after_revision, found, gone if self._random.random() < 0.3 else (), False)

    def _some(self, prefix: str, revision: int) -> Iterator[ConfigEntry]:
        for _ in range(self._random.choice((1, 1, 4))):
            self.left -= 1
            entry = poison(self._random, revision)
            if prefix.startswith("/retired"):
                kept = self._random.choice(([1, 9], [3, 2], [-1], "x", None))  # none of these is one
                entry = ConfigEntry("/retired", packed([self._random.choice((5, -2)), kept]), revision)
            self._there[entry.key] = entry
            yield entry


async def poisoned(seed: int, rounds: int) -> None:
    random = Random(seed)
    async with memory_cluster(seed) as cluster:
        context = await cluster.context("ps", "ps-0", {"apply_threads": "1", "memory": "64MB"})
        context.controller = store = Poisoned(context.controller, random)  # type: ignore[arg-type,assignment]
        layout = await add_job(cluster, "good", ["ps-0"], RuleConfig("add"))
        running = asyncio.create_task(server.run(context))
        cluster.tasks["ps-0"] = running
        client = await make_client(cluster, "good", "w-0")
        (zero, *_) = await pulled(client)
        first, pushes = float(zero.ravel()[0]), 0
        store.left = rounds
        ended = encode(JobRecord("ended", "h", RuleConfig("add"), 1))
        await cluster.client.compare_and_set(ConfigChanges({}, {job_key("other"): ended}))  # so that it looks again
        while store.left > 0 or pushes < 5:
            assert not running.done(), running.exception()
            outcome = await client.push(push_of(layout, constant(layout, 1.0), kind="delta"), deadline_s=60)
            assert not outcome.refused, outcome
            pushes += 1
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        (after, *_) = await pulled(client)
        assert float(after.ravel()[0]) == pytest.approx(first + pushes, rel=1e-5)
        assert not running.done() and not context.stopping.is_set()
        status = context.status()
        assert "good" in str(status)
        connection = await (await cluster.context("worker", "w-1")).connect("ps-0", 10)
        for job in JOBS:
            try:
                await connection.request(AttachRequest(job, LAYOUT.layout().hash), deadline_s=10)
            except RemoteError as error:
                assert len(str(error)) < 10_000
        await connection.close()
        await client.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_job_with_bad_records_harms_no_other(seed: int) -> None:
    await poisoned(seed, QUICK)


@pytest.mark.slow
async def test_a_hundred_thousand_bad_records_harm_no_other_job() -> None:
    await poisoned(3, SLOW)


def test_retired_numbers_that_make_no_sense_are_no_record() -> None:
    for record in ((-2, ()), (5, (3, 2)), (5, (9,))):
        with pytest.raises(ValueError, match="expected"):
            RetiredRecord(*record)
