"""Runs the parts of `adamctl bench data`, one after another, and reports each beside its bars."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from adamctl.bench.bars import Progress, row_of
from adamctl.bench.data.parts import PARTS, DataSettings, Part
from adamctl.bench.report import make_report
from adamctl.errors import ConfigurationError

PACKAGES = ("adamctl", "numpy", "numba", "scipy", "Pillow", "uvloop", "msgspec")


def run_data_benchmark(
    settings: DataSettings,
    only: Sequence[str] = (),
    progress: Progress = lambda line: None,
    parts: Mapping[str, Part] = PARTS,
) -> dict[str, Any]:
    """Measures and returns the report that `adamctl bench data --json` prints.

    Args:
        only: names of parts; empty: all.

    Raises:
        ConfigurationError: a part is unknown, or what it needs is not installed or not found.
        RunFailedError: a process ended, or a run failed.
    """
    unknown = [name for name in only if name not in parts]
    if unknown:
        raise ConfigurationError(f"--only: expected some of {', '.join(parts)}; found {', '.join(unknown)}")
    rows: list[dict[str, Any]] = []
    for name, part in parts.items():
        if not only or name in only:
            load = round(os.getloadavg()[0], 2)
            found = part.load()(settings, progress)
            rows += [row_of(bar_name, bar, found[bar_name], load) for bar_name, bar in part.bars.items()]
    return make_report("data", PACKAGES, rows)
