"""Applies gradients and deltas to many shards in one call, without the interpreter's lock.

Batch by batch, a thread that shares the interpreter with the event loop and other apply threads would wait for the lock
several times per shard, and would find its caches cold. Batches that are not plain, or have updates that are not
finite, are left to the code that handles each update separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from adamctl.kernels.rules.rule import Rule, ShardGradients
from adamctl.roles.ps.apply.batch_buffers import Prepared, rule_for
from adamctl.roles.ps.apply.update_sources import address_of
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.constants import UpdateKind

_FACTORS = int(UpdateKind.FACTORS)


@dataclass
class PlainGroup:
    """Batches applied with one rule, and the addresses of each batch's gradients."""

    used: Rule
    batches: list[Batch] = field(default_factory=list)
    gradients: list[list[int]] = field(default_factory=list)


def plain_groups(rule: Rule, batches: list[Batch]) -> tuple[list[PlainGroup], list[Batch]]:
    """Returns the plain batches (only float32 gradients or deltas, none refused) grouped by rule, and the others."""
    if not rule.is_compiled:
        return [], batches
    groups: dict[Rule, PlainGroup] = {}
    left: list[Batch] = []
    for batch in batches:
        found = _plain(rule, batch)
        if found is None:
            left.append(batch)
            continue
        used, addresses = found
        group = groups.get(used)
        if group is None:
            group = groups[used] = PlainGroup(used)
        group.batches.append(batch)
        group.gradients.append(addresses)
    return list(groups.values()), left


def _plain(rule: Rule, batch: Batch) -> tuple[Rule, list[int]] | None:
    shard = batch.shard
    if shard.steps is not None:
        return None
    used: Rule | None = None
    offset = 4 * shard.row_start * shard.row_size
    addresses: list[int] = []
    for update in batch.updates:
        source = update.source
        if update.code or source is None:
            return None
        header = source.header
        its = rule_for(source, rule)
        if header.kind == _FACTORS or header.dtype != "float32" or (used is not None and its is not used):
            return None
        used = its
        addresses.append(address_of(source) + offset)
    return (used, addresses) if used is not None else None


class Together:
    """Applies groups of plain batches in one thread; its spare memory is kept and grows to the largest shard."""

    def __init__(self) -> None:
        self._spare = np.empty(0, np.float32)

    def prepare(self, rule: Rule, group: PlainGroup) -> Callable[[], list[Batch]]:
        """Returns a function that applies a group's batches; `rule` is the job's. Writes nothing itself.

        The function returns the batches with values that are not finite; those are left unchanged.
        """
        largest = max(batch.shard.size for batch in group.batches)
        if self._spare.size < largest:
            self._spare = np.empty(largest, np.float32)
        prepared = [Prepared(rule, batch) for batch in group.batches]
        shards: list[ShardGradients] = []
        for work, gradients in zip(prepared, group.gradients, strict=True):
            rates = [update.push.learning_rate for update in work.batch.updates]
            shards.append((work.current, work.target, work.state_for(group.used), gradients, rates))
        apply_all = group.used.prepare_shards(shards, self._spare)

        def apply() -> list[Batch]:
            for batch in group.batches:
                batch.begun = True
            left: list[Batch] = []
            for batch, bad in zip(group.batches, apply_all(), strict=True):
                if bad:
                    batch.begun, batch.new_state = False, None
                    left.append(batch)
                else:
                    batch.applied = len(batch.updates)
            return left

        return apply
