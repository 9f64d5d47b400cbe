"""Builds the shards of buckets from the job's seed, or from a checkpoint with any sharding. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from adamctl.errors import DamagedDataError
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule
from adamctl.model.initial import initial_rows
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout
from adamctl.roles.ps.checkpoint_files import Checkpoint, CheckpointPlace, read_checkpoint
from adamctl.roles.ps.core.exactly_once import ClientMemory
from adamctl.roles.ps.core.job import ShardContent
from adamctl.roles.ps.memory_budget import side_by_side


def bytes_needed(layout: ParameterLayout, buckets: Sequence[int], rule: Rule) -> int:
    """Returns the memory that buckets take: values, rule state and scratch, without spare buffers for readers.

    A copy needs no scratch until it takes over, which it may have to at any time.
    """
    elements = sum(layout.buckets[bucket].size_bytes // ELEMENT_BYTES for bucket in buckets)
    return elements * rule.served_bytes


def build_buckets(
    layout: ParameterLayout,
    buckets: Sequence[int],
    rule: Rule,
    seed: int,
    restore: str | CheckpointPlace,
    parameters_only: bool = False,
    stored: Callable[[int], Mapping[int, ShardContent]] = lambda bucket: {},
) -> dict[int, list[ShardContent]]:
    """Returns the contents of buckets by index; shards that `stored` returns for a bucket are taken from there.

    `stored` is called for one bucket at a time, so that at most one bucket is in memory twice. If it returns all
    shards, the checkpoint `restore` need not exist any more. `parameters_only`: of the checkpoint's arrays.

    Raises:
        DamagedDataError: the checkpoint `restore` is damaged, or belongs to another model.
    """
    checkpoint: Checkpoint | None = None
    contents: dict[int, list[ShardContent]] = {}
    for bucket in buckets:
        found, made = stored(bucket), []
        for shard in _shards(layout, bucket):
            if shard in found:
                made.append(found[shard])
            elif restore:
                checkpoint = checkpoint or _open(restore, layout, rule)
                made.append(_restored(layout, shard, rule, checkpoint, parameters_only))
            else:
                made.append(_initial(layout, shard, rule, seed))
        contents[bucket] = _together(made, rule)
    return contents


def build_shards(
    layout: ParameterLayout,
    shards: Sequence[int],
    rule: Rule,
    seed: int,
    restore: str | CheckpointPlace,
    parameters_only: bool = False,
) -> Iterator[ShardContent]:
    """Yields the contents of some shards, in their order, one at a time.

    Raises:
        DamagedDataError: as `build_buckets`.
    """
    checkpoint = _open(restore, layout, rule) if restore else None
    for shard in shards:
        if checkpoint is None:
            yield _initial(layout, shard, rule, seed)
        else:
            yield _restored(layout, shard, rule, checkpoint, parameters_only)


def _shards(layout: ParameterLayout, bucket: int) -> range:
    return range(layout.buckets[bucket].shard_start, layout.buckets[bucket].shard_stop)


def _together(contents: list[ShardContent], rule: Rule) -> list[ShardContent]:
    """Moves a bucket's arrays into one block of memory, except state with one number per shard."""
    moved = iter(side_by_side([array for content in contents for array in _per_element(content, rule)]))
    return [
        replace(
            content,
            values=next(moved),
            state=[
                array if name in rule.shard_state else next(moved)
                for name, array in zip(rule.state_names, content.state, strict=True)
            ],
        )
        for content in contents
    ]


def _per_element(content: ShardContent, rule: Rule) -> list[Array]:
    return [content.values, *rule.per_element(content.state)]


def _initial(layout: ParameterLayout, index: int, rule: Rule, seed: int) -> ShardContent:
    shard = layout.shards[index]
    values = initial_rows(layout.tensors[shard.tensor], shard.tensor, shard.row_start, shard.row_stop, seed)
    return ShardContent(index, np.ascontiguousarray(values.reshape(-1)), rule.initial_state(shard.size))


def _open(place: str | CheckpointPlace, layout: ParameterLayout, rule: Rule) -> Checkpoint:
    checkpoint = read_checkpoint(place)
    ours = [(tensor.name, tensor.shape) for tensor in layout.tensors]
    theirs = [(tensor.name, tensor.shape) for tensor in checkpoint.tensors]
    if ours != theirs:
        different = next((pair for pair in zip(ours, theirs, strict=False) if pair[0] != pair[1]), (ours, theirs))
        raise DamagedDataError(
            f"checkpoint {checkpoint.folder} belongs to another model: expected {different[0]}, found {different[1]}; "
            "resume with the experiment that wrote it"
        )
    return checkpoint


def _restored(
    layout: ParameterLayout, index: int, rule: Rule, checkpoint: Checkpoint, parameters_only: bool
) -> ShardContent:
    """Returns a shard from a checkpoint; with unchanged sharding it also gets its version and client memory back.

    With another sharding it has neither: the layout's hash differs then, so earlier clients cannot attach. State is
    kept if the rule is the same, and more than the parameters is wanted.
    """
    shard = layout.shards[index]
    (values, *state), record = checkpoint.rows(shard.tensor, shard.row_start, shard.row_stop)
    same_rule = checkpoint.descriptor.rule == rule.name and checkpoint.descriptor.state_names == rule.state_names
    if parameters_only or not same_rule:
        state = rule.initial_state(shard.size)
    else:
        state = rule.restored_state(state)
    if record is None or checkpoint.descriptor.layout_hash != layout.hash:
        return ShardContent(index, values, state)
    memory = ClientMemory.restored(record.memory)
    memory.restart()
    return ShardContent(index, values, state, record.counter, record.pushes, memory)
