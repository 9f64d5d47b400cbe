"""Checks whether a push's content fits its job and its shards (pure)."""

from __future__ import annotations

from math import isfinite

from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, not_known
from adamctl.roles.ps.core.instructions import Instruction, Refresh
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.push import Push, Source
from adamctl.roles.ps.core.shard import Shard
from adamctl.wire.constants import ErrorCode, UpdateKind
from adamctl.wire.messages import PushPart, PushSource


def checked_source(job: Job, push: Push, header: PushSource) -> Source:
    """Returns a push's source together with its problem, if any."""
    problem = source_problem(job, push, header)
    return Source(push, header, problem, 0 if problem else job.layout.tensors[header.tensor].row_size)


def source_problem(job: Job, push: Push, header: PushSource) -> tuple[int, str] | None:
    """Returns what is wrong with a source, or None."""
    if header.kind not in job.kinds:
        allowed = ", ".join(sorted(UpdateKind(kind).name for kind in job.kinds))
        return ErrorCode.WRONG_KIND, f"the job's rule takes {allowed}; found kind {header.kind}"
    element_bytes = WIRE_ELEMENT_BYTES.get(header.dtype)
    if element_bytes is None:
        return ErrorCode.WRONG_DTYPE, not_known(header.dtype)
    if not isfinite(push.learning_rate):
        return ErrorCode.NOT_FINITE, f"expected a finite learning rate; found {push.learning_rate}"
    if not 0 <= header.tensor < len(job.layout.tensors):
        return ErrorCode.WRONG_LENGTH, f"the job has {len(job.layout.tensors)} tensors; found number {header.tensor}"
    tensor = job.layout.tensors[header.tensor]
    rows = header.row_stop - header.row_start
    if not 0 <= header.row_start < header.row_stop <= tensor.shape[0]:
        where = f"rows {header.row_start} to {header.row_stop}"
        return ErrorCode.WRONG_LENGTH, f"{tensor.name} has {tensor.shape[0]} rows; found {where}"
    if header.kind == UpdateKind.FACTORS:
        ranges = [
            (header.offset, header.examples * rows),
            (header.activations_offset, header.examples * tensor.row_size),
        ]
    else:
        ranges = [(header.offset, rows * tensor.row_size)]
    for offset, size in ranges:
        if size < 0 or offset < 0 or offset % element_bytes or offset + size * element_bytes > push.body_bytes:
            what = f"{size} elements of {header.dtype} at byte {offset} of a body of {push.body_bytes}"
            return ErrorCode.WRONG_LENGTH, f"{tensor.name}, rows {header.row_start} to {header.row_stop}: {what}"
    return None


def part_problem(shard: Shard, part: PushPart, source: Source | None) -> tuple[int, str] | None:
    """Returns why a part of a push cannot be applied to its shard, or None."""
    if source is None:
        return ErrorCode.WRONG_LENGTH, f"the push has no source {part.source}"
    if source.problem is not None:
        return source.problem
    header = source.header
    if header.tensor != shard.tensor or not header.row_start <= shard.row_start < shard.row_stop <= header.row_stop:
        found = f"tensor {header.tensor}, rows {header.row_start} to {header.row_stop}"
        what = f"shard {shard.index} is tensor {shard.tensor}, rows {shard.row_start} to {shard.row_stop}"
        return ErrorCode.WRONG_LENGTH, f"{what}; its source has {found}"
    return None


def plain_problem(shard: Shard, part: PushPart, source: Source | None) -> tuple[int, str] | None:
    """Like `part_problem`, for a push that is not part of a step."""
    if source is not None and source.header.kind == UpdateKind.FACTORS and shard.steps is not None:
        what = f"shard {shard.index} is trained in step: expected gradients, found factors"
        return ErrorCode.WRONG_KIND, f'{what}; set train.protocol = "gradient"'
    return part_problem(shard, part, source)


def shard_refusal(job: Job, index: int, epochs: dict[int, int]) -> tuple[int, str]:
    """Returns why a shard cannot be used by a request with these epochs (code 0: it can)."""
    shard = job.shards.get(index)
    if shard is None and not 0 <= index < len(job.layout.shards):
        return ErrorCode.UNKNOWN_SHARD, f"job {job.name!r} has {len(job.layout.shards)} shards; found {index}"
    bucket = job.layout.bucket_of_shard[index]
    epoch, known = epochs.get(bucket, 0), job.epochs.get(bucket, 0)
    if epoch < known:
        return ErrorCode.STALE_EPOCH, f"bucket {bucket} is at epoch {known}; the request says {epoch}"
    if epoch > known:
        return ErrorCode.NEWER_EPOCH, f"bucket {bucket} is at epoch {known} here; the request says {epoch}"
    if shard is None:
        return ErrorCode.UNKNOWN_SHARD, f"bucket {bucket} of shard {index} is not held here"
    return 0, ""


def check_epochs(job: Job, epochs: dict[int, int], routing: dict[int, int], out: list[Instruction]) -> None:
    """Puts buckets whose epoch in a request is old into `routing`, and asks for a refresh where it is newer."""
    for bucket, epoch in epochs.items():
        known = job.epochs.get(bucket, 0)
        if epoch < known:
            routing[bucket] = known
        elif epoch > known:
            out.append(Refresh(job.name))
            return
