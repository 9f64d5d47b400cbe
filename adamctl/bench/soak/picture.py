"""The picture of a soak: memory of each process, pushes a second, and when what happened to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from adamctl.bench.plot import empty_figure, save_figure
from adamctl.bench.soak.plan import KINDS, SERVERS, WARM_UP_S
from adamctl.bench.soak.record import FAULTS, SAMPLES, Record

ENDINGS = (".png", ".svg")
WIDTH, HEIGHT = 10.0, 8.5
"""Inches."""
Line = Mapping[str, Any]


def check() -> None:
    """Raises ConfigurationError: matplotlib is not installed, which should be known before hours of work."""
    empty_figure(WIDTH, HEIGHT)


def draw(record: Record, report: Mapping[str, Any]) -> list[Path]:
    """Writes the picture of a finished soak into its folder, in each format; returns the files.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    samples, faults = list(record.lines(SAMPLES)), list(record.lines(FAULTS))
    (result,) = report["results"]
    figure = empty_figure(WIDTH, HEIGHT)
    memory, rate, happened = figure.subplots(3, 1, sharex=True, height_ratios=(4, 2, 2))
    lost = f"{result['pushes_acknowledged']:,} acknowledged pushes, {result['pushes_lost']} lost"
    minutes = result["minutes"]
    length = f"{minutes / 60:.1f} hours" if minutes >= 90 else f"{minutes:.0f} minutes"
    figure.suptitle(
        f"{length}, {result['faults']} faults: {lost}\n"
        f"{result['case']}, on {report['machine']['cores']} shared cores of {report['machine']['processor']}",
        fontsize=10,
    )
    _draw_memory(memory, samples, result["growth_mib_per_hour"])
    rate.plot([one["at_s"] / 60 for one in samples], [one["pushes_per_s"] for one in samples], linewidth=0.8)
    rate.set_ylabel("acknowledged\npushes per second")
    rate.set_ylim(bottom=0)
    _draw_faults(happened, faults)
    happened.set_xlabel("minutes")
    for axes in (memory, rate, happened):
        axes.grid(alpha=0.3)
    files = [record.folder / f"soak{ending}" for ending in ENDINGS]
    for file in files:
        save_figure(figure, file, f"--folder {record.folder}")
    return files


def _draw_memory(axes: Any, samples: Sequence[Line], slopes: Mapping[str, float]) -> None:
    """A line for each process, with its growth if there was time to judge it; broken where it did not run."""
    nodes = sorted({node for sample in samples for node in sample["resident_mib"]})
    times = [sample["at_s"] / 60 for sample in samples]
    for node in nodes:
        values = [sample["resident_mib"].get(node, float("nan")) for sample in samples]
        label = f"{node}, {slopes[node]:+.1f} MiB/h" if node in slopes else node
        axes.plot(times, values, linewidth=0.9, label=label)
    if times and times[-1] > WARM_UP_S / 60:
        axes.axvline(WARM_UP_S / 60, color="black", linestyle=":", linewidth=0.8)
    axes.set_ylabel("resident memory, MiB")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7, ncols=4, loc="lower right")


def _draw_faults(axes: Any, faults: Sequence[Line]) -> None:
    """A mark for each fault, in the row of its kind, and a line until every copy was there again."""
    rows = {kind: row for row, kind in enumerate(reversed(KINDS))}
    for fault in faults:
        row, began = rows.get(fault["kind"], 0), fault["at_s"] / 60
        color = f"C{int(fault['node'].rpartition('-')[2])}"
        axes.plot([began, began + fault["whole_after_s"] / 60], [row, row], color=color, linewidth=1.5)
        axes.plot([began], [row], marker="|", markersize=8, color=color)
    for number in range(1, len(SERVERS) + 1):
        axes.plot([], [], color=f"C{number}", label=f"number {number}")
    axes.legend(fontsize=7, loc="upper right")
    axes.set_yticks(list(rows.values()), list(rows), fontsize=7)
    axes.set_ylabel("until all copies are there")
