"""A round's commands as steps of a compiled interpreter, which goes through all steps block by block.

A block's operands stay in cache between steps. Sums of products that wait for the same vectors are made together, so
that each vector is read and converted once for up to eight of them: they are held back until one of their vectors is
written, or the round ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from adamctl.model.commands import ACCUMULATOR, Command, Elementwise, Operand, Reduce, Set

# Numbers of steps; `adamctl.kernels.compiled.rounds` has the same.
SET, DIFFERENCE, GRID, PAIRS, MAX_ABS, COUNT = range(6)
APPLY = 16
APPLIED: tuple[Elementwise, ...] = ("multiply", "divide", "sqrt", "abs", "sign", "maximum", "minimum", "where")
"""Step APPLY + i applies the operation i."""

WORDS = 16
"""Of a step: its number, operands as below, zeros."""
GRID_LEFT, GRID_RIGHT = 4, 2
"""GRID: slots of 4 left and 2 right vectors, then the numbers of the 8 reductions: left 0 with each right, ..."""
PAIRS_MAX = 4
"""PAIRS: slots of 4 pairs of vectors, then the numbers of the 4 reductions."""
NOTHING = -1
"""Instead of the number of a reduction: the sum is not wanted."""
ACCUMULATOR_SLOT = -1
ONES = (1.0,)

Dot = tuple[int, int, int]
"""Slots of two vectors, and the number of the reduction."""


@dataclass
class RoundSteps:
    """What the interpreter carries out, in each block.

    Slots are vectors by name, then scratch blocks.

    Attributes:
        names: of the vectors in the first slots.
        blocks: how many scratch blocks follow them.
        ones: the slot of a scratch block that must be full of ones, or -1.
        steps: [n, WORDS]. SET: target, first term, terms. DIFFERENCE: target, both operands. APPLY: target, operands.
            MAX_ABS, COUNT: operand, reduction.
        slots, factors: [terms] of all `Set`s.
    """

    names: tuple[str, ...]
    blocks: int = 0
    ones: int = -1
    steps: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, WORDS), np.int64))
    slots: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    factors: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


def lay_out(commands: Sequence[Command], names: Sequence[str]) -> RoundSteps:
    """Returns the steps of checked commands on vectors of these names."""
    return _Layout(names).lay_out(commands)


class _Layout:
    def __init__(self, names: Sequence[str]) -> None:
        self._slots: dict[Operand | tuple[float], int] = {(name,): slot for slot, name in enumerate(names)}
        self._names = tuple(names)
        self._valid: set[Operand] = set()  # differences that are in their blocks
        self._waiting: list[tuple[int, Reduce]] = []
        self._steps: list[list[int]] = []
        self._terms: list[tuple[int, float]] = []

    def lay_out(self, commands: Sequence[Command]) -> RoundSteps:
        reductions = 0
        for command in commands:
            if isinstance(command, Reduce):
                self._waiting.append((reductions, command))
                reductions += 1
                continue
            if any(command.target in operand for _, waiting in self._waiting for operand in waiting.operands):
                self._reduce()
            if isinstance(command, Set):
                self._set(command)
            else:
                operands = [self._slot(operand) for operand in command.operands]
                self._step(APPLY + APPLIED.index(command.operation), self._slots[command.target,], *operands)
            self._valid = {operand for operand in self._valid if command.target not in operand}
        self._reduce()
        slots, factors = [slot for slot, _ in self._terms], [factor for _, factor in self._terms]
        return RoundSteps(
            names=self._names,
            blocks=len(self._slots) - len(self._names),
            ones=self._slots.get(ONES, -1),
            steps=np.array(self._steps, np.int64).reshape(-1, WORDS),
            slots=np.array(slots, np.int64),
            factors=np.array(factors, np.float64),
        )

    def _step(self, *words: int) -> None:
        self._steps.append([*words, *[0] * (WORDS - len(words))])

    def _slot(self, operand: Operand | tuple[float]) -> int:
        """Returns where an operand is; a difference is computed unless it is there already."""
        slot = self._slots.setdefault(operand, len(self._slots))
        if len(operand) == 2 and operand not in self._valid:
            self._step(DIFFERENCE, slot, *(self._slots[name,] for name in operand))
            self._valid.add(operand)
        return slot

    def _set(self, command: Set) -> None:
        self._step(SET, self._slots[command.target,], len(self._terms), len(command.terms))
        for factor, name in command.terms:
            self._terms.append((ACCUMULATOR_SLOT if name == ACCUMULATOR else self._slots[name,], factor))

    def _reduce(self) -> None:
        dots: list[Dot] = []
        for number, command in self._waiting:
            slots = [self._slot(operand) for operand in command.operands]
            if command.operation == "max_abs":
                self._step(MAX_ABS, slots[0], number)
            elif command.operation == "count_nonzero":
                self._step(COUNT, slots[0], number)
            else:
                other = self._slot(ONES) if command.operation == "sum" else slots[1]
                dots.append((slots[0], other, number))
        self._waiting = []
        for step in together(dots):
            self._step(*step)


def together(dots: Iterable[Dot]) -> list[tuple[int, ...]]:
    """Returns GRID and PAIRS steps that find all of these sums, each vector read for as many of them as possible."""
    left = list(dots)
    steps: list[tuple[int, ...]] = []
    while True:
        partners = _partners(left)
        candidates = combinations([slot for slot, others in partners.items() if len(others) > 1], 2)
        rights = max(candidates, key=lambda two: len(partners[two[0]].keys() & partners[two[1]]), default=None)
        if rights is None or len(partners[rights[0]].keys() & partners[rights[1]]) < 2:
            break
        shared = [slot for slot in partners[rights[0]] if slot in partners[rights[1]]]
        taken: set[int] = set()
        for start in range(0, len(shared), GRID_LEFT):
            lefts = shared[start : start + GRID_LEFT]
            numbers = []
            for number in (partners[right][one] for one in lefts for right in rights):
                numbers.append(NOTHING if number in taken else number)  # a.b is also b.a
                taken.add(number)
            numbers += [NOTHING] * (GRID_LEFT * GRID_RIGHT - len(numbers))
            lefts += [lefts[-1]] * (GRID_LEFT - len(lefts))
            steps.append((GRID, *lefts, *rights, *numbers))
        left = [dot for dot in left if dot[2] not in taken]
    for start in range(0, len(left), PAIRS_MAX):
        pairs = left[start : start + PAIRS_MAX]
        numbers = [number for _, _, number in pairs] + [NOTHING] * (PAIRS_MAX - len(pairs))
        pairs += [pairs[-1]] * (PAIRS_MAX - len(pairs))
        steps.append((PAIRS, *(slot for a, b, _ in pairs for slot in (a, b)), *numbers))
    return steps


def _partners(dots: Iterable[Dot]) -> dict[int, dict[int, int]]:
    """Returns, for each vector, with which others its product is wanted, and a reduction's number for each."""
    partners: dict[int, dict[int, int]] = {}
    for a, b, number in dots:
        partners.setdefault(a, {}).setdefault(b, number)
        partners.setdefault(b, {}).setdefault(a, number)
    return partners
