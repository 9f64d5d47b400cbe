"""Measures every kernel against this machine's limits, with all implementations side by side (Adam 4.3).

Each case's implementations and the peer take turns for several rounds; the median of each counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from threadpoolctl import threadpool_limits

from adamctl.bench.kernels.cases import Case
from adamctl.bench.kernels.layer_cases import layer_cases
from adamctl.bench.kernels.measuring import Limit, calls_per_s, memory_limit, product_limit, reading_limit
from adamctl.bench.kernels.rule_cases import rule_cases
from adamctl.bench.kernels.vector_cases import factor_cases, vector_cases
from adamctl.bench.peer import PeerProcess
from adamctl.bench.report import make_report
from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import installed, warm_up
from adamctl.model.description import Model

PACKAGES = ("adamctl", "numpy", "numexpr", "numba")
PROGRAM = "torch_program.py"
ANSWER_S = 120.0
RULE_ELEMENTS = 1 << 24
FACTORS = (128, 4096, 4096)  # examples, outputs, inputs: the layer of Adam 4.3.2

Progress = Callable[[str], None]


def all_cases(models: Sequence[tuple[Model, int]], elements: int = RULE_ELEMENTS) -> Iterator[Case]:
    """Yields the layers of each (model, batch), each size only once, then rules, factors and vector operations."""
    seen = set()
    for model, batch in models:
        for case in layer_cases(model, batch):
            if case.name not in seen:
                seen.add(case.name)
                yield case
    yield from rule_cases(elements)
    yield from factor_cases(*FACTORS)
    yield from vector_cases(elements)


def run_kernels_benchmark(
    cases: Sequence[Case],
    *,
    threads: int = 1,
    rounds: int = 5,
    seconds: float = 0.1,
    peer_python: str | None = None,
    progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Measures and returns the report.

    Args:
        cases: as `all_cases` yields them.
        threads: how many threads run the call, each on its own arrays; for the peer, how many it may use.
        rounds, seconds: how often, and for how long, each implementation repeats its call.
        peer_python: an interpreter that has PyTorch; None: no comparison.
        progress: called before each measurement with its description.
    """
    warm_up()
    limits = {"product": product_limit(threads), "memory": memory_limit(threads)}
    reading = reading_limit(threads) if any(case.reads for case in cases) else None
    results = []
    version = None
    with ExitStack() as stack, threadpool_limits(limits=1, user_api="blas"):
        peer = None
        if peer_python is not None:
            peer = stack.enter_context(PeerProcess(peer_python, PROGRAM, threads))
        for case in cases:
            progress(case.name)
            row, answered = _measure(case, limits[case.bound], reading, threads, rounds, seconds, peer)
            version = version or answered
            results.append(row)
    report = make_report("kernels", PACKAGES, results)
    report["threads"], report["rounds"], report["seconds_per_round"] = threads, rounds, seconds
    if version is not None:
        report["versions"]["torch"] = version
    return report


def _measure(
    case: Case,
    limit: Limit,
    reading: Limit | None,
    threads: int,
    rounds: int,
    seconds: float,
    peer: PeerProcess | None,
) -> tuple[dict[str, Any], str | None]:
    """Returns a row, and the peer's version if it took part. The limit is measured again in every round."""
    backends = [backend for backend in installed() if backend in case.backends]
    calls = {backend: [case.make(backend) for _ in range(threads)] for backend in backends}
    for mine in calls.values():
        for call in mine:
            call()
    version = why = None
    rates: dict[str, list[float]] = {backend: [] for backend in backends}
    bounds: list[float] = []
    read_bounds: list[float] = []
    if peer is not None and case.peer is not None:
        version, why = _build(peer, case.peer, threads)
        if version is not None:
            rates["torch"] = []
    for _ in range(rounds):
        bounds.append(case.share * limit.measure(seconds))
        if reading is not None and case.reads is not None:
            read_bounds.append(reading.measure(seconds) / case.reads)
        for backend in backends:
            rates[backend].append(case.work * calls_per_s(calls[backend], seconds))
        if version is not None and peer is not None:
            answer = peer.ask({"do": "run", "seconds": seconds}, ANSWER_S)
            rates["torch"].append(case.work * answer["calls"] / answer["seconds"])
    return _row(case, bounds, read_bounds, rates, why), version


def _build(peer: PeerProcess, request: dict[str, Any], threads: int) -> tuple[str | None, str | None]:
    """Returns (version, None), or (None, why the peer has no equivalent)."""
    answer = peer.ask({"do": "kernel", "threads": threads, "case": request}, ANSWER_S)
    return (answer["torch_version"], None) if answer["ok"] else (None, answer["error"])


def _row(
    case: Case, bounds: list[float], read_bounds: list[float], rates: dict[str, list[float]], why: str | None
) -> dict[str, Any]:
    medians = {side: statistics.median(mine) for side, mine in rates.items()}
    best = max((side for side in medians if side != "torch"), key=lambda side: medians[side])
    row: dict[str, Any] = {"kernel": case.name, "best": best}
    for side in (*installed(), "torch"):
        row[f"{side}_{case.unit}"] = round(medians[side] / 1e9, 2) if side in medians else None
    row[f"limit_{case.unit}"] = round(statistics.median(bounds) / 1e9, 1)
    row["fraction_of_limit"] = _ratio(rates[best], bounds)
    if read_bounds:
        row["fraction_of_reading"] = _ratio(rates[best], read_bounds)
    row["ratio_vs_torch"] = _ratio(rates[best], rates["torch"]) if "torch" in rates else None
    row["peer_error"] = why
    return row


def _ratio(ours: list[float], theirs: list[float]) -> float:
    """Returns the median of the rounds' ratios."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


def select(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """Returns the cases whose name or group contains one of the words; all cases if there are no words.

    Raises:
        ConfigurationError: no case matches.
    """
    if not only:
        return list(cases)
    chosen = [case for case in cases if any(word in case.name or word == case.group for word in only)]
    if not chosen:
        names = ", ".join(dict.fromkeys(case.name.split()[0].rstrip(",") for case in cases))
        raise ConfigurationError(
            f"--only {' '.join(only)}: expected part of a kernel's name; found none that matches; kernels: {names}"
        )
    return chosen
