"""Formats numbers for people."""

from __future__ import annotations

from adamctl.model.metric import TOP_1

_STEPS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))


def count(value: float) -> str:
    """Returns three significant digits with a decimal prefix: 1234 -> `1.23 k`."""
    for size, prefix in _STEPS:
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{prefix}"
    return f"{value:.0f}"


def size(bytes_: float) -> str:
    """Returns bytes with a binary prefix: 1048576 -> `1.0 MiB`."""
    for step, prefix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if bytes_ >= step:
            return f"{bytes_ / step:.1f} {prefix}"
    return f"{bytes_:.0f} B"


def share(value: float | None) -> str:
    """Returns a share as a percentage with two digits after the point: 0.98765 -> `98.77%`."""
    return "-" if value is None else f"{value * 100:.2f}%"


def figure(value: float | None) -> str:
    """Returns four significant digits: 0.0123449 -> `0.01234`, 1.23e-9 -> `1.23e-09`."""
    return "-" if value is None else f"{value:.4g}"


def measured(metric: str, value: float | None) -> str:
    """Returns a metric's value: top-1 as a percentage, others with four significant digits."""
    return share(value) if metric == TOP_1.name else figure(value)


def duration(seconds: float | None) -> str:
    """Returns `4.2 s`, `3 min 20 s` or `2 h 05 min`."""
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
