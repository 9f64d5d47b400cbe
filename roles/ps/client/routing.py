"""Which server holds which shards of a job, as the configuration service says."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from adamctl.config.records import (
    BucketRecord,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    bucket_key,
    decode,
    job_key,
    layout_key,
    node_key,
)
from adamctl.errors import DamagedDataError, RemoteError, UnreachableError
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout, Shard
from adamctl.roles.configuration import decode_entry
from adamctl.roles.ps.client.route_table import Route, RouteTable
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry
from adamctl.wire.unreadable import UNREADABLE

RUN_BYTES_MAX = 8 << 20
RUN_SHARDS_MAX = 256


class ReadableStore(Protocol):
    """The part of the configuration service that clients of parameter servers need."""

    async def read(self, prefix: str) -> tuple[int, Sequence[ConfigEntry]]: ...


@dataclass(frozen=True)
class Run:
    """Adjacent shards of one tensor on one server: rows [row_start, row_stop), `offset` and `size` in the flat vector.

    At most RUN_BYTES_MAX (unless one shard alone is larger) and RUN_SHARDS_MAX, so that a run fits into one envelope.
    """

    tensor: int
    row_start: int
    row_stop: int
    offset: int
    size: int
    shards: tuple[int, ...]


@dataclass(frozen=True)
class JobRouting:
    """A job's routing as read from its keys at one revision.

    Attributes:
        servers: node -> the shards whose primary it is, in order.
        epochs: bucket -> epoch.
        routes: per bucket, its server and the connection to use.
        runs: route -> tensor -> its runs.
    """

    job: str
    record: JobRecord
    layout: ParameterLayout
    servers: Mapping[str, tuple[int, ...]]
    primary: tuple[str, ...]
    epochs: tuple[int, ...]
    routes: tuple[Route, ...]
    runs: Mapping[Route, Mapping[int, tuple[Run, ...]]]

    def epochs_of(self, shards: Iterable[int]) -> dict[int, int]:
        """Returns the epochs of the buckets that shards are in, as requests carry them."""
        bucket_of = self.layout.bucket_of_shard
        return {bucket: self.epochs[bucket] for bucket in {bucket_of[shard] for shard in shards}}

    def shards_of(self, tensors: Container[int]) -> list[int]:
        """Returns the shards of some tensors, route by route."""
        return [
            shard
            for by_tensor in self.runs.values()
            for tensor, runs in by_tensor.items()
            if tensor in tensors
            for run in runs
            for shard in run.shards
        ]

    def cut(self, shards: Iterable[int], bytes_max: int, shards_max: int) -> list[tuple[Route, list[int]]]:
        """Returns requests for shards: each for one connection, of at most so many bytes of float32 and shards."""
        by_route: dict[Route, list[int]] = {}
        for shard in shards:
            by_route.setdefault(self.route_of(shard), []).append(shard)
        requests: list[tuple[Route, list[int]]] = []
        for route, mine in by_route.items():
            part: list[int] = []
            filled_bytes = 0
            for shard in mine:
                size_bytes = self.layout.shards[shard].size * ELEMENT_BYTES
                if part and (filled_bytes + size_bytes > bytes_max or len(part) == shards_max):
                    requests.append((route, part))
                    part, filled_bytes = [], 0
                part.append(shard)
                filled_bytes += size_bytes
            requests.append((route, part))
        return requests

    def route_of(self, shard: int) -> Route:
        return self.routes[self.layout.bucket_of_shard[shard]]


def runs_of(layout: ParameterLayout, shards: Iterable[int]) -> tuple[Run, ...]:
    """Joins shards (ascending) into runs of adjacent rows of one tensor."""
    runs: list[Run] = []
    pending: list[Shard] = []

    def close() -> None:
        if pending:
            first, last = pending[0], pending[-1]
            size = sum(shard.size for shard in pending)
            indices = tuple(shard.index for shard in pending)
            runs.append(Run(first.tensor, first.row_start, last.row_stop, first.offset, size, indices))
            pending.clear()

    filled_bytes = 0
    for index in shards:
        shard = layout.shards[index]
        size_bytes = shard.size * ELEMENT_BYTES
        adjacent = bool(pending) and pending[-1].tensor == shard.tensor and pending[-1].row_stop == shard.row_start
        if not adjacent or filled_bytes + size_bytes > RUN_BYTES_MAX or len(pending) == RUN_SHARDS_MAX:
            close()
            filled_bytes = 0
        pending.append(shard)
        filled_bytes += size_bytes
    close()
    return tuple(runs)


def make_routing(
    job: str,
    record: JobRecord,
    layout: ParameterLayout,
    buckets: Mapping[int, BucketRecord],
    table: RouteTable | None = None,
) -> JobRouting:
    """Builds the routing from the records of all buckets; by default with one connection to each server."""
    routes = (table or RouteTable()).assign(
        layout.buckets, [buckets[bucket.index].primary for bucket in layout.buckets]
    )
    servers: dict[str, list[int]] = {}
    by_route: dict[Route, list[int]] = {}
    for bucket, route in zip(layout.buckets, routes, strict=True):
        shards_of_bucket = range(bucket.shard_start, bucket.shard_stop)
        servers.setdefault(route.server, []).extend(shards_of_bucket)
        by_route.setdefault(route, []).extend(shards_of_bucket)
    runs: dict[Route, dict[int, tuple[Run, ...]]] = {}
    for route, shards in by_route.items():
        by_tensor: dict[int, list[Run]] = {}
        for run in runs_of(layout, shards):
            by_tensor.setdefault(run.tensor, []).append(run)
        runs[route] = {tensor: tuple(found) for tensor, found in by_tensor.items()}
    ordered = [buckets[bucket.index] for bucket in layout.buckets]
    return JobRouting(
        job,
        record,
        layout,
        {node: tuple(shards) for node, shards in servers.items()},
        tuple(bucket.primary for bucket in ordered),
        tuple(bucket.epoch for bucket in ordered),
        routes,
        runs,
    )


async def read_routing(
    store: ReadableStore, job: str, layout: ParameterLayout | None = None, table: RouteTable | None = None
) -> JobRouting:
    """Reads a job's keys, all at one revision. `layout` is reused if its hash still matches.

    Raises:
        RemoteError: UNKNOWN_JOB if the job does not exist, RUN_ENDED if it has ended, NOT_READY if keys are missing.
        DamagedDataError: its records cannot be read.
    """
    _, entries = await store.read(job_key(job))
    try:
        return _routing_in({entry.key: entry.value for entry in entries}, job, layout, table)
    except UNREADABLE as error:
        text = f"the records of job {job!r} cannot be read: {error}; end it and start it again"
        raise DamagedDataError(text) from error


def _routing_in(
    values: Mapping[str, bytes], job: str, layout: ParameterLayout | None, table: RouteTable | None
) -> JobRouting:
    if job_key(job) not in values:
        raise RemoteError(ErrorCode.UNKNOWN_JOB, f"there is no job {job!r} in this cluster")
    record = decode(values[job_key(job)], JobRecord)
    if record.state == "ended":
        raise RemoteError(ErrorCode.RUN_ENDED, f"job {job!r} has ended")
    if layout_key(job) not in values:
        raise RemoteError(ErrorCode.NOT_READY, f"job {job!r} has no parameter layout yet")
    if layout is None or layout.hash != record.layout_hash:
        layout = decode(values[layout_key(job)], LayoutRecord).layout()
    missing = [bucket.index for bucket in layout.buckets if bucket_key(job, bucket.index) not in values]
    if missing:
        raise RemoteError(ErrorCode.NOT_READY, f"job {job!r}: {len(missing)} of its buckets are not placed yet")
    buckets = {bucket.index: decode(values[bucket_key(job, bucket.index)], BucketRecord) for bucket in layout.buckets}
    return make_routing(job, record, layout, buckets, table)


async def read_node(store: ReadableStore, node: str) -> NodeRecord:
    """Raises UnreachableError if no such node is registered."""
    _, entries = await store.read(node_key(node))
    for entry in entries:
        if entry.key == node_key(node):
            return decode_entry(entry, NodeRecord)
    raise UnreachableError(f"parameter server {node} is not registered with the controller: it left or was lost")
