"""Commands of a round: what each computes, and the same bits for any implementation, cut and order."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.kernels.numeric.accumulate import Accumulator
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.numeric.exact_sums import ADDITIONS_MAX, LOWEST_BIT, combined
from adamctl.model.commands import ACCUMULATOR, OPERANDS, Apply, Command, Parts, Reduce, Set
from tests.kernels.kernel_checks import BACKENDS
from tests.kernels.numeric.rounds import (
    FRACTION_BITS,
    VECTORS,
    accumulated,
    bits,
    carry_out,
    numbers,
    rounds,
)

ROOT = Path(__file__).parents[3]


# --- what each command computes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("terms", [1, 2, 3, 5, 13, 64])
def test_set_adds_in_order_in_float64_and_rounds_once(backend: str, terms: int) -> None:
    vectors, accumulator = numbers(37), accumulated(37)
    generator = np.random.default_rng(terms)
    names = [*generator.choice(VECTORS, terms - 1), ACCUMULATOR]
    factors = generator.standard_normal(terms).tolist()
    expected = []
    for i in range(37):
        values = {name: float(vector[i]) for name, vector in vectors.items()}
        values[ACCUMULATOR] = float(accumulator.values[i]) * 2.0**-FRACTION_BITS
        total = factors[0] * values[names[0]]
        for factor, name in zip(factors[1:], names[1:], strict=True):
            total += factor * values[name]
        expected.append(np.float32(total))
    carry_out([Set("a", tuple(zip(factors, names, strict=True)))], vectors, 37, backend, accumulator)
    assert vectors["a"].view(np.uint32).tolist() == np.array(expected).view(np.uint32).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_set_rounds_each_product_before_it_is_added(backend: str) -> None:
    """What is left when the first 48 bits of a product cancel shows how its 53rd was rounded."""
    factor, a = 0.1, numbers(100)["a"]
    products = factor * a.astype(np.float64)
    b = products.astype(np.float32)
    c = (products - b).astype(np.float32)
    vectors = {"a": a, "b": b, "c": c, "d": a.copy()}
    carry_out([Set("d", ((-1.0, "b"), (factor, "a"), (-1.0, "c")))], vectors, 10, backend)
    assert vectors["d"].tolist() == (products - b - c).astype(np.float32).tolist()
    accumulator = Accumulator(np.arange(1, 101) * 12345678901, 20)
    exact = accumulator.values * 2.0**-20
    vectors["b"][:] = exact * factor
    vectors["c"][:] = exact * factor - vectors["b"]
    carry_out([Set("d", ((-1.0, "b"), (factor, ACCUMULATOR), (-1.0, "c")))], vectors, 10, backend, accumulator)
    assert vectors["d"].tolist() == (exact * factor - vectors["b"] - vectors["c"]).astype(np.float32).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_set_copies_to_the_bit_and_makes_zeros(backend: str) -> None:
    vectors = numbers(50, odd=True)
    before = bits(vectors)
    carry_out([Set("b", ((1.0, "a"),)), Set("c")], vectors, 5, backend)
    assert bits(vectors) == before | {"b": before["a"], "c": [0] * 50}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("operation", ["multiply", "divide", "sqrt", "abs", "sign", "maximum", "minimum", "where"])
def test_an_operation_is_rounded_once_as_are_differences(backend: str, operation: str) -> None:
    vectors = numbers(300, odd=True)
    with np.errstate(all="ignore"):
        difference = vectors["a"] - vectors["b"]
        a, b, c = difference, vectors["c"], vectors["d"]
        expected = {
            "multiply": a * b, "divide": a / b, "sqrt": np.sqrt(a), "abs": np.abs(a), "sign": np.sign(a),
            "maximum": np.maximum(a, b), "minimum": np.minimum(a, b), "where": np.where(a > 0, b, c),
        }[operation]  # fmt: skip
    operands = ((("a", "b"), ("c",), ("d",)))[: OPERANDS[operation]]  # type: ignore[index]
    carry_out([Apply("e", operation, operands)], vectors, 300, backend)  # type: ignore[arg-type]
    np.testing.assert_array_equal(vectors["e"], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_commands_see_what_earlier_ones_wrote(backend: str) -> None:
    vectors = numbers(5000)
    a, b, c = (vectors[name].copy() for name in "abc")
    commands = [
        Reduce("dot", (("a", "b"), ("c",))),
        Reduce("max_abs", (("b",),)),
        Apply("b", "multiply", (("b",), ("b", "a"))),
        Reduce("dot", (("a", "b"), ("c",))),
        Set("b", ((2.0, "b"), (-1.0, "a"))),
        Reduce("dot", (("a", "b"), ("c",))),
        Reduce("max_abs", (("b",),)),
    ]
    found = carry_out(commands, vectors, 1, backend)
    second = b * (b - a)
    third = (2.0 * second.astype(np.float64) - a).astype(np.float32)
    for place, of in ((0, b), (3, second), (5, third)):
        products = (a - of).astype(np.float64) * c
        assert combined("dot", [found[{0: 0, 3: 2, 5: 3}[place]]]) == math.fsum(products)
    assert found[1].numbers == (float(np.abs(b).max()),)
    assert found[4].numbers == (float(np.abs(third).max()),)
    np.testing.assert_array_equal(vectors["b"], third)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("elements", [1, 8, 31, 20_000])
def test_sums_over_rows_of_one_element_are_the_nearest_float64(backend: str, elements: int) -> None:
    vectors = numbers(elements, seed=elements)
    commands = [Reduce("dot", (("a",), ("b",))), Reduce("sum", (("c",),)), Reduce("sum", (("a", "b"),))]
    products = vectors["a"].astype(np.float64) * vectors["b"]
    difference = (vectors["a"] - vectors["b"]).astype(np.float64)
    expected = [math.fsum(products), math.fsum(vectors["c"].astype(np.float64)), math.fsum(difference)]
    found = carry_out(commands, vectors, 1, backend)
    assert [combined("sum", [part]) for part in found] == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_terms_of_the_whole_range_of_float32_are_added_exactly(backend: str) -> None:
    pairs = [(3e38, 3e38), (1e-45, 1e-45), (1.0, 2.0**-80), (-3e38, 3e38), (1e-40, 1e10), (-1.0, 1e-30)] * 5
    vectors = {name: np.array(values, np.float32) for name, values in zip("ab", zip(*pairs, strict=True), strict=True)}
    exact = sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(vectors["a"], vectors["b"], strict=True))
    [part] = carry_out([Reduce("dot", (("a",), ("b",)))], vectors, 1, backend)
    assert sum(map(Fraction, part.numbers)) == exact


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row_size", [1, 5, 10_000])
def test_nan_and_infinity_are_found_and_not_lost(backend: str, row_size: int) -> None:
    commands = [
        Reduce("max_abs", (("a",),)), Reduce("sum", (("a",),)), Reduce("dot", (("a",), ("b",))),
        Reduce("count_nonzero", (("a",),)),
    ]  # fmt: skip
    for bad, of_sum in ((math.nan, math.nan), (-math.inf, -math.inf)):
        vectors = {"a": np.zeros(10_000, np.float32), "b": np.zeros(10_000, np.float32)}
        vectors["a"][7777] = bad
        largest, total, product, count = [part.numbers for part in carry_out(commands, vectors, row_size, backend)]
        assert largest == pytest.approx((abs(bad),), nan_ok=True)
        assert total == pytest.approx((of_sum,), nan_ok=True)
        assert math.isnan(product[0]), "0 times infinity"
        assert count == (1.0,)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_count_is_of_what_is_not_zero(backend: str) -> None:
    vectors = {"a": np.array([0.0, -0.0, 1.0, math.nan, -2.0, 1e-45] * 900, np.float32)}
    commands = [Reduce("count_nonzero", (("a",),)), Reduce("count_nonzero", (("a", "a"),))]
    assert [part.numbers for part in carry_out(commands, vectors, 2, backend)] == [(3600.0,), (900.0,)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shard_without_elements_has_nothing_to_add(backend: str) -> None:
    vectors = {name: np.zeros(0, np.float32) for name in VECTORS}
    commands = [Set("a", ((1.0, "b"),)), Reduce("dot", (("a",), ("b",))), Reduce("max_abs", (("c",),))]
    assert carry_out(commands, vectors, 3, backend) == [Parts((0.0,)), Parts((0.0,))]


# --- the same bits for any implementation, cut and order --------------------------------------------------------------


@given(rounds, st.integers(0, 9), st.sampled_from([1, 2, 7, 8, 9, 16, 75, 2500, 5001]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_implementations_agree_to_the_last_bit(commands: list[Command], seed: int, row_size: int, odd: bool) -> None:
    rows = max(1, 2600 // row_size)
    results = []
    for backend in BACKENDS:
        vectors = numbers(rows * row_size, seed, odd)
        parts = carry_out(commands, vectors, row_size, backend, accumulated(rows * row_size))
        results.append((bits(vectors), [str(part) for part in parts]))
    assert all(result == results[0] for result in results[1:])


@given(rounds, st.randoms(use_true_random=False), st.sampled_from([(40, 1), (9, 8), (5, 75), (3, 2500)]), st.data())
@settings(max_examples=40, deadline=None)
def test_any_cut_into_shards_and_any_order_of_replies_give_the_same(
    commands: list[Command], random: object, shape: tuple[int, int], data: st.DataObject
) -> None:
    rows, row_size = shape
    backend = data.draw(st.sampled_from(BACKENDS))
    cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1), max_size=4)))
    operations = [command.operation for command in commands if isinstance(command, Reduce)]
    whole, cut = numbers(rows * row_size), numbers(rows * row_size)
    accumulator = accumulated(rows * row_size)
    straight = carry_out(commands, whole, row_size, backend, accumulator)
    replies = []
    prepared = PreparedRound(commands, backend)
    for first, last in zip([0, *cuts], [*cuts, rows], strict=True):
        part = slice(first * row_size, last * row_size)
        totals = prepared.new_totals()
        shard = {name: vector[part] for name, vector in cut.items()}
        prepared.run(shard, row_size, totals, Accumulator(accumulator.values[part], FRACTION_BITS))
        replies.append(totals.parts())
    random.shuffle(replies)  # type: ignore[attr-defined]
    assert bits(cut) == bits(whole)
    for number, operation in enumerate(operations):
        together = combined(operation, [reply[number] for reply in replies])
        assert str(together) == str(combined(operation, [straight[number]]))


@pytest.mark.skipif("numba" not in BACKENDS, reason="needs numba")
def test_digits_hand_their_carries_on_before_they_overflow() -> None:
    pairs = [(3e38, 3e38), (1e-45, 1e-45), (1.0, 2.0**-80), (1e-20, 1e-15), (3e38, 1.0)] * 200
    vectors = {name: np.array(values, np.float32) for name, values in zip("ab", zip(*pairs, strict=True), strict=True)}
    prepared = PreparedRound([Reduce("dot", (("a",), ("b",)))], "numba")
    totals, straight = prepared.new_totals(), prepared.new_totals()
    full = (1 << 63) - (1 << 37)  # room for few terms
    totals.digits[0, :22], totals.additions[0] = full, ADDITIONS_MAX
    prepared.run(vectors, 1, totals)
    prepared.run(vectors, 1, straight)
    before = sum(Fraction(full) * 2 ** (32 * place) for place in range(22)) / 2**LOWEST_BIT
    found, expected = (sum(map(Fraction, one.parts()[0].numbers)) for one in (totals, straight))
    assert found == before + expected


def test_threads_share_a_prepared_round() -> None:
    """Each has rows and totals of its own."""
    commands = [Set("e", ((0.5, "a"), (-2.0, "b"))), *(Reduce("dot", ((a,), ("e", "c"))) for a in VECTORS)]
    prepared, vectors, alone = PreparedRound(commands), numbers(40_000), numbers(40_000)
    straight = carry_out(commands, alone, 10, "numpy")
    totals = [prepared.new_totals() for _ in range(4)]

    def work(thread: int) -> None:
        for start in range(thread * 1000, 40_000, 4000):
            part = {name: vector[start : start + 1000] for name, vector in vectors.items()}
            prepared.run(part, 10, totals[thread])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    before = [one.parts() for one in totals[1:]]
    for other in totals[1:]:
        totals[0].merge(other)
    for _ in range(2):
        assert totals[0].parts() == straight
    assert [one.parts() for one in totals[1:]] == before, "what was merged stays as it was"
    assert bits(vectors) == bits(alone)


OTHER_PROCESSOR = """
import hashlib
from tests.kernels.numeric.test_commands import *

commands = [
    Set("e", ((0.1, ACCUMULATOR), *((0.3 * i - 1, name) for i, name in enumerate(VECTORS)))),
    Apply("d", "divide", (("e", "a"), ("b",))),
    *(Reduce("dot", (a, b)) for a in (("a",), ("b", "c"), ("d",)) for b in (("e",), ("e", "d"), ("c",))),
    Set("b", ((0.1, "a"),)),
    Set("c", ((0.1, "a"), (-1.0, "b"))),
    Set("e", ((-1.0, "b"), (0.1, "a"), (-1.0, "c"))),  # the last bits of a product
]
digest = hashlib.sha256()
for row_size in (1, 5, 64, 5000):
    vectors = numbers(10 * row_size)
    parts = carry_out(commands, vectors, row_size, "numba", accumulated(10 * row_size))
    digest.update(repr((parts, bits(vectors))).encode())
print(digest.hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif("numba" not in BACKENDS or platform.machine() != "x86_64", reason="needs numba on x86-64")
def test_processors_without_wide_vectors_or_fused_products_give_the_same_bits(tmp_path: Path) -> None:
    found = set()
    for name in ("nehalem", "haswell", ""):
        cache = (
            {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "XDG_CACHE_HOME": str(tmp_path / name)} if name else {}
        )
        found.add(subprocess.check_output([sys.executable, "-c", OTHER_PROCESSOR], env=os.environ | cache, cwd=ROOT))
    assert len(found) == 1
