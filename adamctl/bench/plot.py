"""Plots of benchmark reports, in the style of Adam's figures 8 and 9, and what other pictures are made with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adamctl.errors import ConfigurationError

_SETTING = ("transport", "dtype", "block_bytes")


def plot_worker(report: dict[str, Any], path: Path) -> None:
    """Plots connections per second over threads, a line per batch size, and the peer's best as a level (figure 8).

    Raises:
        ConfigurationError: matplotlib is not installed, or cannot write files with this ending.
    """
    figure, axes = _figure()
    ours = [row for row in report["results"] if row["side"] == "adamctl"]
    for batch in dict.fromkeys(row["batch"] for row in ours):
        rows = [row for row in ours if row["batch"] == batch]
        counts = [row["threads"] for row in rows]
        (line,) = axes.plot(
            counts, [row["connections_per_s"] / 1e9 for row in rows], marker="o", label=f"adamctl, batch {batch}"
        )
        first = rows[0]["connections_per_s"] / rows[0]["threads"] / 1e9
        axes.plot(counts, [first * count for count in counts], linestyle=":", color=line.get_color())
    peers = [row for row in report["results"] if row["side"] == "torch" and row["images_per_s"] is not None]
    if peers:
        best = max(peers, key=lambda row: row["images_per_s"])
        label = f"PyTorch's best: batch {best['batch']}, {best['threads']} thread(s), {best['setting']}"
        axes.axhline(best["connections_per_s"] / 1e9, color="black", linestyle="--", label=label)
    axes.set_xticks(sorted({row["threads"] for row in ours}))
    axes.set_xlabel("threads (dotted: linear from the first)")
    axes.set_ylabel("billion connections per second")
    axes.set_title(f"{report['model']} on {report['machine']['processor']}")
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(figure, path)


def plot_kernels(report: dict[str, Any], path: Path) -> None:
    """Plots a bar per kernel: the share of its limit that each implementation reaches.

    Raises:
        ConfigurationError: as `plot_worker`.
    """
    rows = report["results"]
    everyone = ("numpy", "numexpr", "numba", "torch")
    sides = [side for side in everyone if any(_rate(row, side) is not None for row in rows)]
    figure, axes = _figure(height=1.5 + 0.18 * len(sides) * len(rows))
    thickness = 0.8 / len(sides)
    for number, side in enumerate(sides):
        places = [index + (number - (len(sides) - 1) / 2) * thickness for index in range(len(rows))]
        axes.barh(places, [(_rate(row, side) or 0) / (_rate(row, "limit") or 1) for row in rows], thickness, label=side)
    axes.axvline(1, color="black", linestyle="--")
    axes.set_yticks(range(len(rows)), [row["kernel"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("share of the measured limit: product rate or memory bandwidth")
    axes.set_title(f"{report['machine']['processor']}, {report['threads']} thread(s)")
    axes.legend()
    _save(figure, path)


def plot_ps(report: dict[str, Any], path: Path) -> None:
    """Plots parameter updates per second over apply threads, a line per mode and setting, its limit dotted (figure 9).

    Raises:
        ConfigurationError: as `plot_worker`; also if no parameter was updated.
    """
    rows = [row for row in report["results"] if row.get("g_updates_per_s")]
    if not rows:
        raise ConfigurationError("--plot: expected a mode that updates parameters; found none (add push or factors)")
    figure, axes = _figure()
    axes.set_yscale("log")
    varied = [what for what in _SETTING if len({row[what] for row in rows if what in row}) > 1]
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["apply_threads"]):
        lines.setdefault(_line(row, varied), []).append(row)
    for label, of_line in lines.items():
        counts = [row["apply_threads"] for row in of_line]
        rates = [row["g_updates_per_s"] for row in of_line]
        (line,) = axes.plot(counts, rates, marker="o", label=label)
        limits = [rate / row["fraction_of_limit"] for rate, row in zip(rates, of_line, strict=True)]
        axes.plot(counts, limits, linestyle=":", color=line.get_color())
    level = report["adam_g_updates_per_s"]
    axes.axhline(level, color="black", linestyle="--", label=f"Adam, 16 cores: {level:g}")
    axes.set_xticks(sorted({row["apply_threads"] for row in rows}))
    axes.set_xlabel("apply threads (dotted: the limit measured in the same run)")
    axes.set_ylabel("billion parameter updates per second")
    axes.set_title(f"parameter server on {report['machine']['processor']}")
    axes.legend()
    _save(figure, path)


def _line(row: dict[str, Any], varied: Sequence[str]) -> str:
    """Returns the name of a row's line: its mode, and the settings that vary or are unusual."""
    counts = [f"{row[what]} {what}" for what in ("clients", "servers") if row.get(what, 1) != 1]
    texts = {what: f"{row[what]}" for what in varied if what in row}
    if "block_bytes" in texts:
        texts["block_bytes"] = f"{row['block_bytes'] / 1024:g} KiB"
    return ", ".join((row["mode"], *counts, *texts.values()))


def _rate(row: dict[str, Any], side: str) -> float | None:
    rate: float | None = row.get(f"{side}_gflop_per_s", row.get(f"{side}_gb_per_s"))
    return rate


def _figure(height: float = 5.0) -> tuple[Any, Any]:
    figure, (axes,) = new_figure(height=height)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    save_figure(figure, path, f"--plot {path}")


def new_figure(width: float = 8.0, height: float = 5.0, columns: int = 1) -> tuple[Any, Sequence[Any]]:
    """Returns a figure, of so many inches, and its axes side by side, which have one vertical axis.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    figure = empty_figure(width, height)
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    for one in axes:
        one.grid(alpha=0.3)
    return figure, tuple(axes)


def empty_figure(width: float, height: float) -> Any:
    """Returns a figure, of so many inches, without axes.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigurationError("pictures need matplotlib: pip install 'adamctl[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: Path, what: str) -> None:
    """Writes a picture; its kind is told by the ending. `what`: for the error.

    Raises:
        ConfigurationError: it cannot be written, or not with this ending.
    """
    try:
        figure.savefig(path, dpi=120)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{what}: {error}") from None
