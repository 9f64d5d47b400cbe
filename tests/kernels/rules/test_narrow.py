"""Gradients of 16 bits lead to the same weights and state as the same numbers in float32, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.backend import installed
from adamctl.kernels.numeric import convert
from adamctl.kernels.rules.make import make_rule
from adamctl.kernels.rules.narrow import SCRATCH, TOGETHER, NarrowUpdate
from adamctl.model.rule import RULE_NAMES, RuleConfig

KINDS = ["bfloat16", "float16", "float32"]


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "float32":
        return values
    out = np.empty(values.size, convert.NARROW[kind])
    convert.narrowed(values, out)
    return out


def wide(values: np.ndarray) -> np.ndarray:
    if values.dtype == np.float32:
        return values
    out = np.empty(values.size, np.float32)
    convert.widened(values, out)
    return out


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("count", [1, 3, TOGETHER + 2])
@pytest.mark.parametrize("backend", installed())
@pytest.mark.parametrize("rule", RULE_NAMES)
def test_as_the_same_numbers_in_float32(rule: str, backend: str, count: int, in_place: bool) -> None:
    size = SCRATCH + 37 if count == 1 else 9001
    generator = np.random.default_rng(count)
    narrow, plain = (make_rule(RuleConfig(rule, weight_decay=0.01), backend) for _ in range(2))
    start = generator.standard_normal(size).astype(np.float32)
    gradients = [
        rounded(generator.standard_normal(size).astype(np.float32), KINDS[number % 3]) for number in range(count)
    ]
    lrs = [0.1 / (1 + number) for number in range(count)]
    results = []
    for used, given in ((narrow, gradients), (plain, [wide(gradient) for gradient in gradients])):
        weights, state = start.copy(), used.initial_state(size)
        out = weights if in_place else np.full(size, np.nan, np.float32)
        for _ in range(2):
            if used is narrow:
                NarrowUpdate().apply_many(used, weights, out, state, given, lrs)
            else:
                used.apply_many(weights, out, state, given, lrs)
        results.append((out, *state))
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)


def test_nothing_to_apply_changes_nothing() -> None:
    rule = make_rule(RuleConfig("adam"))
    state, weights = rule.initial_state(4), np.ones(4, np.float32)
    NarrowUpdate().apply_many(rule, weights, weights, state, [], [])
    empty = np.empty(0, np.float32)
    NarrowUpdate().apply_many(rule, empty, empty, rule.initial_state(0), [np.empty(0, np.uint16)], [0.1])
    np.testing.assert_array_equal(weights, 1)
    assert not any(array.any() for array in state)


@pytest.mark.parametrize(
    ("gradients", "lrs"),
    [([np.zeros(3, np.uint16)], [0.1]), ([np.zeros(4, np.uint16)], [0.1, 0.2]), ([np.zeros(4, np.int16)], [0.1])],
)
def test_what_does_not_fit_is_refused(gradients: list[np.ndarray], lrs: list[float]) -> None:
    weights = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="expected"):
        NarrowUpdate().apply_many(make_rule(RuleConfig("sgd")), weights, weights, [], gradients, lrs)
