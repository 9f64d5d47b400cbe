"""How the cost of a push and a pull grows with the model, the clients and the servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import Any

from adamctl.bench.ps.throughput import PsSettings, run_ps_benchmark
from adamctl.bench.report import make_report

PACKAGES = ("adamctl", "numpy", "uvloop", "msgspec")
BASE_BYTES = 100_000_000
MODEL_BYTES = (10_000_000, 100_000_000, 1_000_000_000)
CLIENTS = (1, 4, 16)
SERVERS = (1, 2, 4)


def run_ps_linear(
    settings: PsSettings,
    *,
    model_bytes: Sequence[int] = MODEL_BYTES,
    clients: Sequence[int] = CLIENTS,
    servers: Sequence[int] = SERVERS,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Returns the report that `adamctl bench ps-throughput --linear --json` prints.

    One of the three grows at a time, the others stay at 1 and `settings.model_bytes`. A cost is the seconds until every
    client has pushed (or pulled) the whole model once; its exponent is the slope of its logarithm over the logarithm of
    what grows: 1 is linear. On one machine more servers share the same cores, so their exponent is ideally 0.

    Raises:
        ConfigurationError, RunFailedError: as `run_ps_benchmark`.
    """
    rows: list[dict[str, Any]] = []
    exponents: dict[str, dict[str, float]] = {}
    for grows, values in (("model_bytes", model_bytes), ("clients", clients), ("servers", servers)):
        measured = []
        for value in values:
            progress(f"{grows} = {value:,}")
            row = _measure(settings, grows, value)
            rows.append({"grows": grows, "value": value, **row})
            measured.append(row)
        if measured:
            exponents[grows] = {
                cost: exponent(values, [row[cost] for row in measured]) for cost in ("push_s", "pull_s")
            }
    return make_report("ps-throughput-linear", PACKAGES, rows) | {"exponents": exponents}


def _measure(settings: PsSettings, grows: str, value: int) -> dict[str, Any]:
    size = value if grows == "model_bytes" else settings.model_bytes
    clients = value if grows == "clients" else 1
    case = PsSettings(
        modes=("push", "pull"),
        apply_threads=settings.apply_threads[:1],
        clients=(clients,),
        servers=(value if grows == "servers" else 1,),
        model_bytes=size,
        block_bytes=min(settings.block_bytes, size),
        transport=settings.transport,
        rounds=settings.rounds,
        seconds=settings.seconds,
    )
    push, pull = run_ps_benchmark(case)["results"]
    whole_gb = clients * size / 1e9
    return {
        "push_s": whole_gb / push["gb_per_s"],
        "pull_s": whole_gb / pull["gb_per_s"],
        "push_gb_per_s": push["gb_per_s"],
        "pull_gb_per_s": pull["gb_per_s"],
    }


def exponent(values: Sequence[float], costs: Sequence[float]) -> float:
    """Returns the least-squares slope of log(cost) over log(value); 0 for a single value."""
    xs, ys = [log(value) for value in values], [log(cost) for cost in costs]
    middle_x, middle_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - middle_x) ** 2 for x in xs)
    if not spread:
        return 0.0
    return sum((x - middle_x) * (y - middle_y) for x, y in zip(xs, ys, strict=True)) / spread
