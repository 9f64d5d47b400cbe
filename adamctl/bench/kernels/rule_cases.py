"""The servers' work as cases: rules from memory, queued updates of one shard, factors turned into updates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from adamctl.bench.kernels.cases import Case
from adamctl.bench.kernels.measuring import Call
from adamctl.kernels.backend import Backend
from adamctl.kernels.rules import RULES, make_rule
from adamctl.model.rule import RuleConfig

ELEMENT_BYTES = 4
SHARD_ELEMENTS = 1 << 18
SHARDS = 32  # with eight updates each, 288 MiB: from memory, not from a cache
QUEUED = (1, 8)


def rule_cases(elements: int) -> Iterator[Case]:
    """Yields every rule over `elements` elements from memory, then the queued updates."""
    for name in RULES:
        rule = make_rule(RuleConfig(name), "numpy")
        state = [kept for kept in rule.state_names if kept not in rule.shard_state]
        yield Case(
            name=f"{name}, {elements >> 20} Mi elements",
            group="rule",
            work=float(ELEMENT_BYTES * elements * (3 + 2 * len(state))),
            bound="memory",
            make=partial(_rule, name, elements),
            peer={"rule": name, "elements": elements},
        )
    for queued in QUEUED:
        yield Case(
            name=f"add, {queued} queued per shard of 1 MiB",
            group="rule",
            work=float(ELEMENT_BYTES * SHARD_ELEMENTS * SHARDS * (2 + queued)),
            bound="memory",
            reads=(1 + queued) / (2 + queued) if queued > 1 else None,
            make=partial(_queued, queued),
        )


def _rule(name: str, elements: int, backend: Backend) -> Call:
    rule = make_rule(RuleConfig(name), backend)
    weights, gradient = _numbers(elements), _numbers(elements)
    state = rule.initial_state(elements)
    return lambda: rule.apply(weights, weights, state, gradient, 1e-9)


def _queued(queued: int, backend: Backend) -> Call:
    rule = make_rule(RuleConfig("add"), backend)
    weights = [_numbers(SHARD_ELEMENTS) for _ in range(SHARDS)]
    deltas = [[_numbers(SHARD_ELEMENTS) for _ in range(queued)] for _ in range(SHARDS)]
    rates = [1.0] * queued

    def apply() -> None:
        for shard, waiting in zip(weights, deltas, strict=True):
            rule.apply_many(shard, shard, [], waiting, rates)

    return apply


def _numbers(elements: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(1).standard_normal(elements, np.float32) * np.float32(1e-3)
