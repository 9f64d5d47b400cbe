"""Sums that depend neither on order nor on how their terms are spread over shards, threads and servers.

A sum over a vector has one term for each tensor row (`row_sums`), rounded in a fixed order. Terms are then added
without any error, as integers that are multiples of 2^-352; so the total of a job is the same number however its rows
are spread, and the number nearest to it the same float64. This is Kulisch's long accumulator ("Computer Arithmetic and
Validity", 2008), kept short: products of float32 are multiples of 2^-298 and below 2^256.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.model.commands import Parts, Reduction

LANES = 8
"""A row's terms are added in so many sums, by their place in the row."""
LOWEST_BIT = 352
"""Totals are integers in units of 2^-352."""
DIGITS = 24
"""Of 32 bits each, from 2^-352 on: up to 2^416, which 2^60 terms do not reach."""
ADDITIONS_MAX = 1 << 28
"""A digit holds so many terms, each below 2^33, before its carry must be handed on."""
_BITS_OF_FLOAT64 = 53


class Totals:
    """What the reductions of a round have found so far; each thread has its own.

    Compiled kernels add to the arrays: `pairs` [n, 2, LANES] holds float64 sums and what their rounding lost, `digits`
    [n, DIGITS] what does not fit there, `additions` [n] how often digits were added to. `others` [n] is the sum of
    terms that are not finite, `largest` [n] the bits of the largest float32 without their signs, `counts` [n] numbers
    of elements. `scratch` is theirs, too.
    """

    def __init__(self, operations: Sequence[Reduction]) -> None:
        n = len(operations)
        self.operations = tuple(operations)
        self.pairs = np.zeros((n, 2, LANES))
        self.digits = np.zeros((n, DIGITS), np.int64)
        self.additions = np.zeros(n, np.int64)
        self.others = np.zeros(n)
        self.largest = np.zeros(n, np.int64)
        self.counts = np.zeros(n, np.int64)
        self.scratch: Any = None
        self._sums = [0] * n  # in units of 2^-LOWEST_BIT
        self._merged: list[NDArray[np.float64]] = []  # the pairs of other threads

    def add(self, number: int, terms: NDArray[np.float64]) -> None:
        """Adds terms [any] to the sum of one reduction, without error."""
        finite = np.isfinite(terms)
        if not finite.all():
            with np.errstate(invalid="ignore"):
                self.others[number] += terms[~finite].sum()
        self._sums[number] += exact_sum(terms[finite])

    def merge(self, other: Totals) -> None:
        """Adds what another thread has found for the same reductions."""
        with np.errstate(invalid="ignore"):
            self.others += other.others
        np.maximum(self.largest, other.largest, out=self.largest)
        self.counts += other.counts
        self._merged += [other.pairs.copy(), *other._merged]
        self._sums = [a + b for a, b in zip(self._sums, other._units(), strict=True)]

    def parts(self) -> list[Parts]:
        """Returns the answer to each reduction; equal totals give equal numbers."""
        pairs = _condensed(np.stack((self.pairs, *self._merged)))
        terms = pairs.transpose(1, 0, 2, 3).reshape(len(self.operations), 2 * LANES * len(pairs)).tolist()
        units = self._units()
        found = []
        for number, operation in enumerate(self.operations):
            if operation == "count_nonzero":
                numbers: tuple[float, ...] = (float(self.counts[number]),)
            elif operation == "max_abs":
                numbers = (float(np.uint32(self.largest[number]).view(np.float32)),)
            elif self.others[number] != 0:
                numbers = (float(self.others[number]),)
            elif units[number]:
                numbers = expansion(units[number] + sum(map(_units_of, terms[number])))
            else:
                numbers = _expansion_of(terms[number])
            found.append(Parts(numbers))
        return found

    def _units(self) -> list[int]:
        """Returns all that is not in such sums."""
        units = list(self._sums)
        for number in np.flatnonzero(self.additions):
            units[number] += sum(int(digit) << (32 * place) for place, digit in enumerate(self.digits[number]))
        return units


def combined(operation: Reduction, parts: Iterable[Parts]) -> float:
    """Returns a reduction's result from the answers of all servers, in any order: the float64 nearest to the sum.

    A sum of infinities of both signs is NaN, and so is all that has NaN.
    """
    numbers = [number for one in parts for number in one.numbers]
    if operation == "max_abs":
        return math.nan if any(map(math.isnan, numbers)) else max(numbers, default=0.0)
    if not all(map(math.isfinite, numbers)):
        return sum(number for number in numbers if not math.isfinite(number))
    return math.fsum(numbers)


def exact_sum(terms: NDArray[np.float64]) -> int:
    """Returns the sum of finite multiples of 2^-LOWEST_BIT in units of it."""
    fractions, exponents = np.frexp(terms.reshape(-1))
    mantissas = np.ldexp(fractions, _BITS_OF_FLOAT64).astype(np.int64)
    total = 0
    for exponent in np.unique(exponents):
        alike = mantissas[exponents == exponent]
        high, low = int((alike >> 32).sum()), int((alike & 0xFFFFFFFF).sum())
        scaled, shift = (high << 32) + low, int(exponent) - _BITS_OF_FLOAT64 + LOWEST_BIT
        total += scaled << shift if shift >= 0 else scaled >> -shift
    return total


def expansion(total: int) -> tuple[float, ...]:
    """Returns the numbers whose exact sum is `total` units of 2^-LOWEST_BIT: the nearest, then that to the rest, ..."""
    numbers = []
    while total:
        nearest = total / (1 << LOWEST_BIT)  # Python rounds quotients of integers correctly
        numbers.append(nearest)
        total -= _units_of(nearest)
    return tuple(numbers) or (0.0,)


def _condensed(pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns fewer pairs [k, n, 2, LANES] with the same exact sum: one, if all that is lost fits beside the sums."""
    while len(pairs) > 1:
        half = len(pairs) // 2
        (a, a_lost), (b, b_lost) = (one.transpose(2, 0, 1, 3) for one in (pairs[:half], pairs[half : 2 * half]))
        total, lost = _two_sum(a, b)
        all_lost, rest = _two_sum(a_lost, b_lost)
        all_lost, more = _two_sum(all_lost, lost)
        if rest.any() or more.any():
            break
        pairs = np.concatenate((np.stack((total, all_lost), axis=2), pairs[2 * half :]))
    return pairs


def _two_sum(a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the rounded sums and what rounding lost, exactly (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def _expansion_of(terms: list[float]) -> tuple[float, ...]:
    """Returns the `expansion` of the exact sum of finite terms. `math.fsum` rounds it correctly, and takes no time."""
    numbers, rest = [], list(terms)
    while nearest := math.fsum(rest):
        numbers.append(nearest)
        rest.append(-nearest)
    return tuple(numbers) or (0.0,)


def _units_of(number: float) -> int:
    return int(math.ldexp(number, LOWEST_BIT))


def row_sums(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the sum of each row of products [rows, n], rounded in the order that all implementations share.

    Product i is added to sum i mod LANES, one after another; then the sums are added in pairs, the far ones first.
    """
    rows, size = products.shape
    padded = np.zeros((rows, -(-size // LANES), LANES))
    padded.reshape(rows, -1)[:, :size] = products
    with np.errstate(invalid="ignore"):
        sums = np.add.accumulate(padded, axis=1)[:, -1]  # in order, which numpy's sum does not promise
        for half in (4, 2, 1):
            sums = sums[:, :half] + sums[:, half:]
    return sums[:, 0]
