"""The parts of a step become one gradient, added up in the order of their places."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adamctl.kernels.numeric.convert import narrowed
from adamctl.roles.ps.apply.sum_parts import StepSums
from adamctl.roles.ps.core.push import Update
from adamctl.roles.ps.core.sync_steps import StepPart
from adamctl.wire.constants import ErrorCode

ANY: Any = SimpleNamespace()


def part(step: int, *, code: int = 0, superseded: bool = False) -> StepPart:
    made = StepPart(ANY, 0, None, ANY, 1)
    made.step, made.code, made.superseded = step, code, superseded
    return made


def plain() -> Update:
    return Update(ANY, 0, None, ANY, 1, (0, 0))


def sums(updates: list[Update], gradients: list[Any]) -> list[tuple[int, list[float]]]:
    """Returns (index of the update, gradient) of what is to be applied."""
    by_update = dict(zip(map(id, updates), gradients, strict=True))
    found = StepSums().of(updates, lambda update: by_update[id(update)])
    return [(updates.index(update), gradient.tolist()) for update, gradient in found]


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_parts_are_added_in_order() -> None:
    gradients = [values(1, 1), values(2.0**25, 2), values(-(2.0**25), 3)]
    assert sums([part(1), part(1), part(1)], gradients) == [(0, [0, 6])]


def test_a_single_part_is_its_own_sum_and_gradients_are_left_alone() -> None:
    gradients = [values(1, 2), values(3, 4), values(5, 6)]
    assert sums([part(1), part(2), part(2)], gradients) == [(0, [1, 2]), (1, [8, 10])]
    assert gradients[1].tolist() == [3, 4]


def test_two_sums_in_one_batch_are_apart_and_memory_is_used_again() -> None:
    made = StepSums()
    updates = [part(1), part(1), part(2), part(2)]
    first, second = made.of(updates, lambda update: values(1, 1) * update.step)  # type: ignore[attr-defined]
    assert (first[1].tolist(), second[1].tolist()) == ([2, 2], [4, 4])
    ((_, again),) = made.of([part(3), part(3)], lambda update: values(7, 7))
    assert again.tolist() == [14, 14]
    assert again.base is first[1].base


def test_plain_updates_beside_a_step_are_applied_by_themselves() -> None:
    updates = [plain(), part(1), part(1), plain()]
    gradients = [values(1), values(2), values(3), values(4)]
    assert sums(updates, gradients) == [(0, [1]), (1, [5]), (3, [4])]


def test_what_is_superseded_or_refused_is_not_added() -> None:
    updates = [part(1), part(1), part(1, superseded=True), part(2, code=7), part(2)]
    assert sums(updates, [values(1), values(2), None, None, values(9)]) == [(0, [3])]
    assert [update.code for update in updates] == [0, 0, 0, 7, 7]


def test_one_that_is_not_finite_refuses_all() -> None:
    updates = [part(1), part(1)]

    def read(update: Update) -> np.ndarray | None:
        if update is updates[1]:
            update.code, update.message = ErrorCode.NOT_FINITE, "NaN"
            return None
        return values(1)

    assert StepSums().of(updates, read) == []
    assert [update.code for update in updates] == [ErrorCode.NOT_FINITE] * 2


@pytest.mark.parametrize("wire", [np.uint16, np.float16])
def test_parts_of_16_bits_are_widened_before_they_are_added(wire: type) -> None:
    narrow = np.empty(3, wire)
    narrowed(values(0.5, -2, 1024), narrow)
    assert sums([part(1), part(1), part(1)], [narrow, values(1, 1, 1), narrow]) == [(0, [2, -3, 2049])]


def test_twins_of_a_step_that_is_refused_are_refused_as_well() -> None:
    updates = [part(1), part(1), part(1, superseded=True), part(2)]
    refused = updates[1]

    def read(update: Update) -> Any:
        if update is refused:
            update.code, update.message = ErrorCode.NOT_FINITE, "NaN"
            return None
        return values(1)

    found = StepSums().of(updates, read)
    assert [update for update, _ in found] == [updates[3]]
    assert [update.code for update in updates] == [ErrorCode.NOT_FINITE] * 3 + [0]
