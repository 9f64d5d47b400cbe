"""DistBelief's figure 3, planned: how much faster several machines train one model than one machine does.

    python benchmarks/distbelief_speedup.py [--link 1Gbit] [--batch 100] [--plot figure.svg]

Four networks over up to 144 machines: speech, and images with 8, 16 and 36 nodes on each patch; the last one also by
rows, as our runtime would cut it. Nothing is measured: times come from counts and from what is assumed of the paper's
machines (`adamctl/model/scaling/distbelief.py`), which is printed. A second table changes one assumption after another.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from adamctl.bench.plot import new_figure, save_figure
from adamctl.bench.script import run_script
from adamctl.cli.number_types import BYTES_PER_S
from adamctl.cli.output import table
from adamctl.model.layout import tensors_of
from adamctl.model.scaling.distbelief import (
    ASSUMED,
    BATCH,
    MACHINE,
    MAPS,
    SAID_OF_IMAGES,
    SAID_OF_SPEECH,
    Point,
    curve,
    images,
    speech,
)
from adamctl.model.scaling.speedup import ClusterMachine

MACHINES = (1, 2, 4, 6, 8, 12, 16, 24, 32, 49, 64, 81, 100, 121, 144)
PAPER = {"speech": SAID_OF_SPEECH, f"images, {MAPS[-1]} nodes": SAID_OF_IMAGES}
"""What the paper's text says: machines and speed-up."""
Curves = Mapping[str, tuple[Point, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="1Gbit")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    machine = replace(MACHINE, link_bytes_per_s=BYTES_PER_S.convert(given.link, None, None))
    curves = curves_of(machine, given.batch)
    print("assumed, and not fitted:")
    for name, text in ASSUMED.items():
        print(f"  {name}: {text}")
    print()
    rows = [
        (f"{count}", *(f"{points[n].speed_up:.2f}" for points in curves.values())) for n, count in enumerate(MACHINES)
    ]
    print(table(("machines", *curves), rows, right=range(len(curves) + 1)))
    print("\nthe paper:", "; ".join(f"{name}: {speed:g} at {count}" for name, (count, speed) in PAPER.items()))
    print("\none assumption changed: speech's peak, and the largest network at 81 machines\n")
    rows_of_changes = [_changed(change) for change in changes(machine, given.batch)]
    print(table(("changed", "peak at", "speech", "at 81", "and at 100"), rows_of_changes, right=(1, 2, 3, 4)))
    if given.plot is not None:
        plot(curves, given.plot)


def curves_of(machine: ClusterMachine, batch: int) -> Curves:
    """Returns the figure's curves by name."""
    found = {"speech": curve(speech(), MACHINES, machine, batch)}
    for maps in MAPS:
        found[f"images, {maps} nodes"] = curve(images(maps), MACHINES, machine, batch)
    found[f"{MAPS[-1]} nodes by rows"] = curve(images(MAPS[-1]), MACHINES, machine, batch, by_rows=True)
    return found


def changes(machine: ClusterMachine, batch: int) -> list[tuple[str, ClusterMachine, int]]:
    """Returns what is tried: its name, the machine, the mini-batch."""
    rate = machine.products_per_s
    return [
        ("nothing", machine, batch),
        ("links ten times as fast", replace(machine, link_bytes_per_s=10 * machine.link_bytes_per_s), batch),
        ("cores half as fast", replace(machine, products_per_s=rate / 2), batch),
        ("cores twice as fast", replace(machine, products_per_s=rate * 2), batch),
        ("memory half as fast", replace(machine, memory_bytes_per_s=machine.memory_bytes_per_s / 2), batch),
        ("messages for nothing", replace(machine, message_s=0.0), batch),
        ("messages of 10 us", replace(machine, message_s=10e-6), batch),
        ("messages of 200 us", replace(machine, message_s=200e-6), batch),
        ("no spread", replace(machine, spread=0.0), batch),
        ("a spread of 30%", replace(machine, spread=0.3), batch),
        ("mini-batches of 32", machine, 32),
        ("mini-batches of 400", machine, 400),
    ]


def _changed(change: tuple[str, ClusterMachine, int]) -> tuple[str, ...]:
    name, machine, batch = change
    words = max(curve(speech(), MACHINES, machine, batch), key=lambda point: point.speed_up)
    at = curve(images(MAPS[-1]), (81, 100), machine, batch)
    return name, f"{words.machines}", f"{words.speed_up:.2f}", *(f"{point.speed_up:.1f}" for point in at)


def plot(curves: Curves, path: Path) -> None:
    """Draws the curves, with the paper's numbers beside them."""
    figure, (axes,) = new_figure(width=10.0)
    for name, points in curves.items():
        counts, speeds = zip(*points, strict=True)
        model = speech() if name == "speech" else images(int(name.split(",")[-1].split()[0]))
        parameters = sum(tensor.size for tensor in tensors_of(model)) / 1e6
        style = "--" if "rows" in name else "-"
        (line,) = axes.plot(
            counts, speeds, style, marker="o", markersize=3, label=f"{name}: {parameters:,.0f} M parameters"
        )
        if name in PAPER:
            axes.plot(*PAPER[name], marker="*", markersize=14, color=line.get_color(), linestyle="")
    axes.set_xlabel("machines for one replica (stars: what the paper's text says)")
    axes.set_ylabel("speed-up of a mini-batch")
    axes.set_title("DistBelief figure 3, planned: machines assumed, nothing fitted", fontsize=10)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path, f"--plot {path}")


if __name__ == "__main__":
    run_script(main)
