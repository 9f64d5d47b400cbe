"""A round's commands on one shard, block by block (`adamctl.kernels.numeric.round_steps` lays out the steps).

A block is a run of whole rows, at most ROWS_MAX and of at most BLOCK elements, or a part of one longer row.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from adamctl.kernels.compiled.jit import IN1, f64, i64, inline, kernel, readable, writable
from adamctl.kernels.compiled.rules import carray, copy, floats, pointer_to
from adamctl.kernels.compiled.sweeps import (
    BLOCK,
    GRID,
    LANES,
    PAIRS,
    add_1_term,
    add_2_terms,
    add_4_terms,
    add_8_terms,
    add_accumulated,
    add_without_error,
    dot_row_grid,
    dot_row_pairs,
    nearest,
    round_totals,
    subtract,
)

# As in `adamctl.kernels.numeric.round_steps`.
SET, DIFFERENCE, GRID_STEP, PAIRS_STEP, MAX_ABS, COUNT = range(6)
MULTIPLY, DIVIDE, SQRT, ABS, SIGN, MAXIMUM, MINIMUM, WHERE = range(16, 24)
GRID_VECTORS, PAIRS_VECTORS = 6, 8
SUMS = len(GRID)
ROWS_MAX = 512
"""Of a block, so that their sums stay in cache, too."""
HELD = 64
"""Sums of rows are added to totals when there are so many: each time takes as long as some hundred products."""
LOWEST_BIT, ADDITIONS_MAX = 352, 1 << 28  # as in `adamctl.kernels.numeric.exact_sums`


def exactly(function: Any) -> Any:
    """As `inline`, with arithmetic as written."""
    return inline(function, relaxed=False)


_words_at, _doubles_at = pointer_to(i64), pointer_to(f64)


@exactly
def _words(array: Any) -> Any:
    """The same array without its owner: to count references to a slice costs more than to add up a row."""
    return carray(_words_at(array.ctypes.data), array.shape)


@exactly
def _doubles(array: Any) -> Any:
    return carray(_doubles_at(array.ctypes.data), array.shape)


@exactly
def _carry(digits: Any) -> None:
    """Leaves 32 bits in each digit but the last."""
    for place in range(len(digits) - 1):
        digits[place + 1] += digits[place] >> 32
        digits[place] &= 0xFFFFFFFF


@exactly
def _add_to_digits(number: Any, digits: Any) -> None:
    """Adds a finite multiple of 2^-LOWEST_BIT."""
    fraction, exponent = math.frexp(abs(number))
    mantissa = np.int64(math.ldexp(fraction, 53))
    place = exponent - 53 + LOWEST_BIT
    if place < 0:
        mantissa >>= -place
        place = 0
    digit, shift = place >> 5, place & 31
    low, high = (mantissa & 0xFFFFFFFF) << shift, (mantissa >> 32) << shift
    sign = np.int64(-1) if number < 0 else np.int64(1)
    digits[digit] += sign * (low & 0xFFFFFFFF)
    digits[digit + 1] += sign * ((low >> 32) + (high & 0xFFFFFFFF))
    digits[digit + 2] += sign * (high >> 32)


@exactly
def _add(numbers: Any, n: int, pairs: Any, digits: Any, additions: Any, others: Any) -> None:
    """Adds n vectors of LANES numbers to the totals of one reduction (`exact_sums.Totals`)."""
    done = 0
    while done < n:
        done += add_without_error(numbers.ctypes.data + 8 * LANES * done, n - done, pairs.ctypes.data)
        if done < n:
            for lane in range(LANES):
                number = numbers[done * LANES + lane]
                if not abs(number) < math.inf:
                    others[0] += number
                elif number != 0:
                    _add_to_digits(number, digits)
                    additions[0] += 1
            if additions[0] > ADDITIONS_MAX:
                _carry(digits)
                additions[0] = 1
            done += 1


@exactly
def _set(
    target: int, slots: Any, factors: Any, table: Any, here: Any, accumulated: Any, scale: float, totals: Any, size: int
) -> None:
    """target = sum of factor x vector; `table` holds the addresses of all slots in this block."""
    if not len(slots):
        out = floats(target, size)
        for i in range(size):
            out[i] = np.float32(0)
        return
    for i in range(size):
        totals[i] = -0.0  # to which a first term is added without changing its sign
    first = 0
    while first < len(slots):
        together = 0
        while together < 8 and first + together < len(slots) and slots[first + together] >= 0:
            here[together] = table[slots[first + together]]
            together += 1
        at, factors_at = here.ctypes.data, factors.ctypes.data + 8 * first
        if together == 8:
            add_8_terms(at, factors_at, totals.ctypes.data, size)
        elif together >= 4:
            together = 4
            add_4_terms(at, factors_at, totals.ctypes.data, size)
        elif together >= 2:
            together = 2
            add_2_terms(at, factors_at, totals.ctypes.data, size)
        elif together == 1:
            add_1_term(at, factors_at, totals.ctypes.data, size)
        else:
            together = 1
            add_accumulated(accumulated.ctypes.data, scale, factors[first], totals.ctypes.data, size)
        first += together
    round_totals(totals.ctypes.data, target, size)


@exactly
def _apply(operation: int, a: Any, b: Any, c: Any, out: Any) -> None:
    """As `adamctl.kernels.numeric.reference_commands.ELEMENTWISE`."""
    zero, one = np.float32(0), np.float32(1)
    if operation == MULTIPLY:
        for i in range(len(out)):
            out[i] = a[i] * b[i]
    elif operation == DIVIDE:
        for i in range(len(out)):
            out[i] = a[i] / b[i]
    elif operation == SQRT:
        for i in range(len(out)):
            out[i] = math.sqrt(a[i])
    elif operation == ABS:
        for i in range(len(out)):
            out[i] = abs(a[i])
    elif operation == SIGN:
        for i in range(len(out)):
            value = a[i]
            out[i] = one if value > zero else (-one if value < zero else (zero if value == zero else value))
    elif operation == MAXIMUM:
        for i in range(len(out)):
            out[i] = a[i] if a[i] >= b[i] or a[i] != a[i] else b[i]
    elif operation == MINIMUM:
        for i in range(len(out)):
            out[i] = a[i] if a[i] <= b[i] or a[i] != a[i] else b[i]
    elif operation == WHERE:
        for i in range(len(out)):
            out[i] = b[i] if a[i] > zero else c[i]


@kernel((IN1,), relaxed=False)
def largest_bits(values: Any) -> int:
    """The bits of the largest number without their signs; NaN's are above infinity's."""
    bits, largest = values.view(np.int32), np.int32(0)
    for i in range(len(bits)):
        largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
    return int(largest)


@exactly
def _count(values: Any) -> int:
    count = np.int32(0)
    for i in range(len(values)):
        count += np.int32(values[i] != np.float32(0))
    return int(count)


@exactly
def _row_sums(
    grid: bool, step: Any, table: Any, here: Any, rows: int, row_size: int, first: bool, lanes: Any, sums: Any,
    held: int,
) -> None:  # fmt: skip
    """Finds the sums of all rows in a block, or of what there is of one row, and writes them from sums[:, held] on."""
    vectors = GRID_VECTORS if grid else PAIRS_VECTORS
    for vector in range(vectors):
        here[vector] = table[step[1 + vector]]
    if row_size == 1:
        for number in range(SUMS if grid else len(PAIRS)):
            a, b = (number // 2, 4 + number % 2) if grid else (2 * number, 2 * number + 1)
            left, right, out = floats(here[a], rows), floats(here[b], rows), sums[number, held:]
            for i in range(rows):
                out[i] = np.float64(left[i]) * np.float64(right[i])
        return
    at, lanes_at, stride = here.ctypes.data, lanes.ctypes.data, 8 * sums.shape[1]
    sums_at = sums.ctypes.data + 8 * held
    for row in range(rows):
        if grid:
            dot_row_grid(at, 4 * row * row_size, row_size, first, lanes_at, sums_at + 8 * row, stride)
        else:
            dot_row_pairs(at, 4 * row * row_size, row_size, first, lanes_at, sums_at + 8 * row, stride)


@exactly
def _settle(step: Any, sums: Any, held: int, pairs: Any, digits: Any, additions: Any, others: Any) -> None:
    """Adds the sums of rows that a step has found to the totals of its reductions."""
    whole = (held + LANES - 1) // LANES
    grid = step[0] == GRID_STEP
    numbers = step[1 + GRID_VECTORS :] if grid else step[1 + PAIRS_VECTORS :]
    for place in range(SUMS if grid else len(PAIRS)):
        number = numbers[place]
        if number >= 0:
            for i in range(held, whole * LANES):
                sums[place, i] = 0.0
            _add(
                sums[place], whole, pairs[number], digits[number], additions[number : number + 1],
                others[number : number + 1],
            )  # fmt: skip


@kernel(
    (
        readable(i64, 2), readable(i64, 1), readable(f64, 1), readable(i64, 1), readable(i64, 1),
        readable(i64, 1), f64, i64, i64,
        writable(f64, 3), writable(f64, 3), writable(i64, 1), writable(f64, 1), writable(i64, 1), i64,
        writable(f64, 3), writable(i64, 2), writable(i64, 1), writable(f64, 1), writable(i64, 1), writable(i64, 1),
    ),
    relaxed=False,
)  # fmt: skip
def run(
    steps: Any, slots: Any, factors: Any, addresses: Any, moves: Any,
    accumulated: Any, scale: float, elements: int, row_size: int,
    lanes: Any, sums: Any, held: Any, totals: Any, table: Any, spare: int,
    pairs: Any, digits: Any, additions: Any, others: Any, largest: Any, counts: Any,
) -> None:  # fmt: skip
    """Carries out all steps on each block.

    addresses, moves [slots]: where a slot begins, and 1 for vectors, 0 for scratch blocks; accumulated x scale: the
    accumulator; lanes [steps, SUMS, LANES], sums [steps, SUMS, ROWS_MAX + HELD], held [steps], totals [BLOCK], table
    [slots + 8]: scratch; spare: the address of a scratch block; the rest: `exact_sums.Totals`.
    """
    steps, slots, factors, accumulated = _words(steps), _words(slots), _doubles(factors), _words(accumulated)
    lanes, sums, totals, table = _doubles(lanes), _doubles(sums), _doubles(totals), _words(table)
    pairs, digits, additions, others = _doubles(pairs), _words(digits), _words(additions), _doubles(others)
    largest, counts, held, here = _words(largest), _words(counts), _words(held), table[len(addresses) :]
    for number in range(len(steps)):
        held[number] = 0
    start = 0
    in_block = min(BLOCK // row_size, ROWS_MAX) * row_size if row_size <= BLOCK else BLOCK
    while start < elements:
        in_row = start % row_size
        left = elements - start if row_size <= BLOCK else row_size - in_row
        size = min(in_block, left)
        rows, length = (size // row_size, row_size) if row_size <= BLOCK else (1, size)
        first, last = in_row == 0, row_size <= BLOCK or size == left
        for slot in range(len(addresses)):
            table[slot] = addresses[slot] + 4 * start * moves[slot]
        for number in range(len(steps)):
            step = steps[number]
            kind = step[0]
            if kind in (GRID_STEP, PAIRS_STEP):
                _row_sums(
                    kind == GRID_STEP, step, table, here, rows, length, first, lanes[number], sums[number], held[number]
                )
                if last:
                    held[number] += rows
                if held[number] >= HELD:
                    _settle(step, sums[number], held[number], pairs, digits, additions, others)
                    held[number] = 0
            elif kind == SET:
                term, end = step[2], step[2] + step[3]
                _set(
                    table[step[1]], slots[term:end], factors[term:end], table, here, accumulated[start : start + size],
                    scale, totals, size,
                )  # fmt: skip
            elif kind == DIFFERENCE:
                subtract(table[step[2]], table[step[3]], table[step[1]], size)
            elif kind == MAX_ABS:
                found = largest_bits(floats(table[step[1]], size))
                largest[step[2]] = max(largest[step[2]], found)
            elif kind == COUNT:
                counts[step[2]] += _count(floats(table[step[1]], size))
            else:
                a, b, c = floats(table[step[2]], size), floats(table[step[3]], size), floats(table[step[4]], size)
                _apply(kind, a, b, c, floats(spare, size))
                copy(spare, table[step[1]], size)
        start += size
    for number in range(len(steps)):
        if held[number]:
            _settle(steps[number], sums[number], held[number], pairs, digits, additions, others)


@kernel((writable(i64, 1), IN1, f64, f64), relaxed=False)
def accumulate(values: Any, part: Any, weight: float, scale: float) -> None:
    """values += rint(part * weight * scale), all of which fit int64."""
    for i in range(len(part)):
        values[i] += np.int64(nearest(np.float64(part[i]) * weight * scale))
