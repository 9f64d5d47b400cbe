"""The arrays that a batch reads and writes, and the rule that applies each of its updates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from adamctl.kernels.array import FLOAT32
from adamctl.kernels.numeric.convert import Narrow
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.add import Add
from adamctl.kernels.rules.narrow import NarrowUpdate
from adamctl.kernels.rules.rule import Rule
from adamctl.model.rule import RuleConfig
from adamctl.roles.ps.core.push import Source
from adamctl.roles.ps.core.shard import Batch
from adamctl.wire.constants import UpdateKind

_DELTA = int(UpdateKind.DELTA)


class Prepared:
    """The arrays that one batch reads and writes."""

    __slots__ = ("batch", "current", "state", "target")

    def __init__(self, rule: Rule, batch: Batch) -> None:
        self.batch = batch
        shard = batch.shard
        self.current = self.target = shard.values.array
        if not batch.in_place:
            self.target = batch.target if batch.target is not None else np.empty_like(self.current)
            batch.target = self.target
        self.state = shard.state.arrays
        if batch.copy_state:
            self.state = batch.new_state = rule.copied_state(shard.state.arrays)

    def state_for(self, rule: Rule) -> list[Array]:
        """Returns the rule's state arrays; none for deltas, which do not change the state of the job's rule."""
        return self.state if rule.state_names else []

    def apply(
        self, rule: Rule, gradients: Sequence[Array | Narrow], learning_rates: Sequence[float], narrow: NarrowUpdate
    ) -> None:
        state = self.state_for(rule)
        self.batch.begun = True
        if _any_narrow(gradients):
            narrow.apply_many(rule, self.current, self.target, state, gradients, learning_rates)
        else:
            rule.apply_many(self.current, self.target, state, gradients, learning_rates)
        self.current = self.target
        self.batch.applied += len(gradients)

    def finish(self) -> None:
        if not self.batch.applied:
            self.batch.new_state = None


def rule_for(source: Source, rule: Rule) -> Rule:
    """Returns the rule for a source: a delta is added unchanged, whatever the job's rule."""
    return _adding() if source.header.kind == _DELTA and rule.name != Add.name else rule


@cache
def _adding() -> Rule:
    return Add(RuleConfig(Add.name))


def _any_narrow(gradients: Sequence[Array | Narrow]) -> bool:
    return any([gradient.dtype != FLOAT32 for gradient in gradients])  # noqa: C419  a generator costs more
