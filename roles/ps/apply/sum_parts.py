"""Sums the parts of a step into one gradient, in the order of their places, as one process would.

    sum = ((g_0 + g_1) + g_2) + ...    float32, element by element

A 16-bit part is widened first. If any part is refused or not finite, none is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np

from adamctl.kernels.numeric.convert import Narrow, widened
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.push import Update
from adamctl.roles.ps.core.sync_steps import StepPart
from adamctl.wire.constants import ErrorCode

Gradient: TypeAlias = "Array | Narrow"
Read: TypeAlias = Callable[[Update], "Gradient | None"]
"""Returns an update's gradient; refuses the update and returns None if it is not finite."""


class StepSums:
    """Sums of one apply thread, in memory that is reused for the next batch."""

    def __init__(self) -> None:
        self._sum = np.empty(0, np.float32)
        self._wide = np.empty(0, np.float32)
        self._used = False

    def of(self, updates: Sequence[Update], read: Read) -> list[tuple[Update, Gradient]]:
        """Returns what to apply of a batch, in order: (update, gradient); for a step, its first part and the sum."""
        self._used = False
        found: list[tuple[Update, Gradient]] = []
        for step, run in groupby(updates, key=lambda update: update.step if isinstance(update, StepPart) else None):
            parts = list(run)
            live = [update for update in parts if not update.superseded]
            gradients = [None if update.code else read(update) for update in live]
            if step is None:
                found.extend((u, g) for u, g in zip(live, gradients, strict=True) if g is not None)
            elif all(gradient is not None for gradient in gradients):
                if live:
                    found.append((live[0], self._add([g for g in gradients if g is not None])))
            else:
                _refuse_all(parts)  # twins get the same answer as the first part
        return found

    def _add(self, gradients: list[Gradient]) -> Gradient:
        first, *others = gradients
        if not others:
            return first
        total = self._memory(first.size)
        total[...] = self._float32(first)
        for gradient in others:
            total += self._float32(gradient)
        return total

    def _memory(self, size: int) -> Array:
        """Returns memory for a sum: the reused buffer for a batch's first sum, new memory for further ones."""
        if self._used:
            return np.empty(size, np.float32)
        self._used = True
        if self._sum.size < size:
            self._sum = np.empty(size, np.float32)
        return self._sum[:size]

    def _float32(self, gradient: Gradient) -> Array:
        if gradient.dtype == np.float32:
            return gradient
        if self._wide.size < gradient.size:
            self._wide = np.empty(gradient.size, np.float32)
        wide = self._wide[: gradient.size]
        widened(gradient, wide)
        return wide


def _refuse_all(parts: Sequence[Update]) -> None:
    """Refuses all parts, for the first refused part's reason: a step is applied whole or not at all."""
    code, message = next(((part.code, part.message) for part in parts if part.code), (int(ErrorCode.INTERNAL), ""))
    for part in parts:
        part.code, part.message = code, message
