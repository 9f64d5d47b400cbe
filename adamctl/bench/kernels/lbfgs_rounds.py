"""What the servers' rounds of an L-BFGS iteration cost, against copying the history (DistBelief 4.2, appendix).

An iteration has three rounds: R1 measures the new gradient against the history, R2 commits, R3 makes a direction and a
trial point. R1 and R3 read all 2 m vectors of the history; copying these once is what they are compared with.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from adamctl.kernels.array import Array
from adamctl.kernels.numeric.accumulate import Accumulator
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.model.commands import ACCUMULATOR, Command, Operand, Reduce, Set

SHARD_ELEMENTS = 1 << 18  # 1 MiB of float32, as servers hold them
ROW_SIZE = 1024
FRACTION_BITS = 40
OTHERS = ("x", "g", "h", "d", "t")


class RoundTimes(msgspec.Struct, frozen=True):
    """Seconds of one core, medians; `ratio` is R1 and R3 over the copy, the median of each turn's."""

    elements: int
    history: int
    copy_s: float
    measure_s: float
    commit_s: float
    step_s: float
    ratio: float


def history_of(m: int) -> list[str]:
    """Returns the names of the 2 m vectors of a history."""
    return [f"{kind}{i}" for i in range(m) for kind in "sy"]


def measure(m: int, weight_decay: float = 1e-4) -> list[Command]:
    """Returns R1: h = gradient at t; its products, and those of h - g and t - x, with each other and the history."""
    h, d, t, sigma, eta = ("h",), ("d",), ("t",), ("t", "x"), ("h", "g")
    pairs: list[tuple[Operand, Operand]] = [(h, d), (h, h), (t, t), (sigma, eta), (eta, eta), (sigma, sigma)]
    pairs += [((name,), other) for name in history_of(m) for other in (h, eta)]
    return [
        Set("h", ((1.0, ACCUMULATOR), (weight_decay, "t"))),
        Reduce("max_abs", (h,)),
        *(Reduce("dot", pair) for pair in pairs),
    ]


def commit(slot: int = 0) -> list[Command]:
    """Returns R2: the trial point is accepted, and the step and the gradient's change are kept in one slot."""
    return [
        Set(f"s{slot}", ((1.0, "t"), (-1.0, "x"))), Set(f"y{slot}", ((1.0, "h"), (-1.0, "g"))),
        Set("x", ((1.0, "t"),)), Set("g", ((1.0, "h"),)),
    ]  # fmt: skip


def step(m: int) -> list[Command]:
    """Returns R3: d combines g and the history, t = x + alpha d."""
    terms = [(-1.0, "g"), *((1e-3 * (place + 1), name) for place, name in enumerate(history_of(m)))]
    products = [Reduce("dot", (("g",), ("d",))), Reduce("dot", (("d",), ("d",)))]
    return [Set("d", tuple(terms)), Set("t", ((1.0, "x"), (0.5, "d"))), *products]


def measure_rounds(elements: int = 1 << 24, m: int = 10, turns: int = 7, backend: str | None = None) -> RoundTimes:
    """Times each round and the copy in turn, in this thread, over shards of 1 MiB; elements are rounded to rows."""
    shards = list(shards_of(elements // ROW_SIZE * ROW_SIZE, m))
    copies = [[np.ones_like(vectors[name]) for name in history_of(m)] for vectors, _ in shards]

    def copy() -> None:
        for (vectors, _), into in zip(shards, copies, strict=True):
            for name, out in zip(history_of(m), into, strict=True):
                np.copyto(out, vectors[name])

    def carry_out(prepared: PreparedRound) -> None:
        totals = prepared.new_totals()
        for vectors, accumulator in shards:
            prepared.run(vectors, ROW_SIZE, totals, accumulator)
        totals.parts()

    rounds = [PreparedRound(commands, backend) for commands in (measure(m), commit(), step(m))]
    calls: list[Callable[[], None]] = [copy, *(lambda one=one: carry_out(one) for one in rounds)]
    for call in calls:
        call()
    times = [[_seconds(call) for call in calls] for _ in range(turns)]
    copy_s, measure_s, commit_s, step_s = (statistics.median(column) for column in zip(*times, strict=True))
    return RoundTimes(
        elements=sum(accumulator.values.size for _, accumulator in shards),
        history=m,
        copy_s=copy_s,
        measure_s=measure_s,
        commit_s=commit_s,
        step_s=step_s,
        ratio=statistics.median((turn[1] + turn[3]) / turn[0] for turn in times),
    )


def shards_of(elements: int, m: int) -> Iterator[tuple[dict[str, Array], Accumulator]]:
    """Yields shards of at most 1 MiB with all vectors of a history of m and a sum of gradients."""
    generator = np.random.default_rng(1)
    for start in range(0, elements, SHARD_ELEMENTS):
        size = min(SHARD_ELEMENTS, elements - start)
        numbers = generator.standard_normal(size, np.float32) * np.float32(1e-3)
        vectors = {name: np.roll(numbers, place) for place, name in enumerate((*OTHERS, *history_of(m)))}
        values = generator.integers(-(1 << 36), 1 << 36, size)
        yield vectors, Accumulator(values, FRACTION_BITS)


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
