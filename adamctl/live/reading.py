"""A reading of a process on this machine, and its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adamctl.live.units import size


@dataclass(frozen=True)
class ProcessReading:
    """A reading of one role's process on this machine; `cpu_share` is 1.0 for one busy core. `role` may be unknown.

    `problem` is what the role reports as wrong; empty when all is well.
    """

    cpu_share: float
    memory_bytes: int
    role: str = ""
    problem: str = ""


def total(readings: Sequence[ProcessReading], role: str = "") -> ProcessReading | None:
    """Returns what processes use together; None of none."""
    if not readings:
        return None
    return ProcessReading(sum(one.cpu_share for one in readings), sum(one.memory_bytes for one in readings), role)


def cpu_text(reading: ProcessReading | None) -> str:
    return "-" if reading is None else f"{reading.cpu_share * 100:.0f}%"


def memory_text(reading: ProcessReading | None) -> str:
    return "-" if reading is None else size(reading.memory_bytes)
