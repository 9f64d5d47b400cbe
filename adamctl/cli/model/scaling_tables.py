"""What `adamctl plan --machines` prints and draws for people; fits a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from adamctl.cli.output import echo, table


def show_scaling(figures: dict[str, Any]) -> None:
    """Prints a row for each number of machines, then what failures cost at the largest."""
    rows = [_row(row) for row in figures["machines"]]
    header = ("machines", "workers", "servers", "data", "images/s", "each", "bound by")
    echo(table(header, rows, right=(0, 1, 2, 3, 4, 5)))
    echo()
    if any(row.get("together") for row in figures["machines"]):
        echo("* with a server and a data server on the workers' machines\n")
    planned = [row for row in figures["machines"] if "failures" in row and not row["together"]]
    if planned:
        _show_failures(planned[-1])
    link = f"{figures['link_bytes_per_s'] / 125e6:.4g} Gbit/s, {figures['latency_s'] * 1e6:.4g} us"
    echo(
        f"{figures['consistency']}, batches of {figures['batch']}, {figures['threads']} threads a worker; links {link};"
    )
    echo(f"speeds spread by {figures['spread']:.0%}, batches by {figures['jitter']:.0%}. Simulated, not measured.")


def _show_failures(row: dict[str, Any]) -> None:
    echo(f"what a failure costs with {row['machines']} machines, at {_rate(row['examples_per_s'])} images/s:\n")
    costs = [
        (
            _named(cost["what"]),
            f"{cost['noticed_s']:.2g} s",
            "the run ends" if cost["ends_run"] else f"{cost['whole_s']:.2g} s",
            "unknown" if cost["lost_examples"] is None else f"{cost['lost_examples']:,.0f}",
            "unknown" if cost["lost_s"] is None else f"{cost['lost_s']:.3g} s",
        )
        for cost in row["failures"]
    ]
    echo(table(("lost", "noticed", "as before", "lost images", "lost time"), costs, right=(1, 2, 3, 4)))
    if any(cost["ends_run"] for cost in row["failures"]):
        echo("\nwithout copies (cluster.replication) the death of a server ends the run, and")
        echo("--resume goes on from the last checkpoint")
    echo()


def plot_scaling(figures: dict[str, Any], path: Path) -> None:
    """Plots images per second over machines, beside as many times the fewest, and how busy what is shared is.

    Raises:
        ConfigurationError: matplotlib is not installed, or cannot write files with this ending.
    """
    from adamctl.bench.plot import empty_figure, save_figure

    rows = [row for row in figures["machines"] if "examples_per_s" in row]
    counts = [row["machines"] for row in rows]
    figure = empty_figure(11.0, 5.0)
    speed, busy = figure.subplots(1, 2)
    for axes in (speed, busy):
        axes.grid(alpha=0.3)
        axes.set_xscale("log")
        axes.set_xlabel("machines")
    rates = [row["examples_per_s"] for row in rows]
    speed.plot(counts, rates, marker="o", label="planned")
    speed.plot(counts, [rates[0] * count / counts[0] for count in counts], linestyle=":", label="linear")
    speed.set_yscale("log")
    speed.set_ylabel("images per second")
    speed.legend()
    for key, label in (
        ("compute_share", "workers compute"),
        ("server_link_share", "servers' links"),
        ("server_loop_share", "servers' event loops"),
        ("server_cores_share", "servers' cores"),
        ("data_server_share", "data servers"),
    ):
        busy.plot(counts, [row[key] for row in rows], marker="o", label=label)
    busy.set_ylim(0, 1.05)
    busy.set_ylabel("share of the time at work")
    busy.legend()
    figure.suptitle(_title(figures, rows))
    save_figure(figure, path, f"--plot {path}")


def _title(figures: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    last = rows[-1]
    shared = f"{last['workers']} workers, {last['servers']} servers, {last['data_servers']} data servers"
    return (
        f"{figures['experiment']}, planned: links of {figures['link_bytes_per_s'] / 125e6:.4g} Gbit/s, "
        f"{figures['threads']} threads a worker; {last['machines']} machines: {shared}"
    )


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    if "examples_per_s" not in row:
        return f"{row['machines']:,}", "-", "-", "-", "-", "-", "too few machines"
    workers = f"{row['replicas']:,}" + (f" x {row['partitions']}" if row["partitions"] > 1 else "")
    each = row["examples_per_s"] / row["machines"]
    return (
        f"{row['machines']:,}" + "*" * row["together"], workers, f"{row['servers']:,}", f"{row['data_servers']:,}",
        _rate(row["examples_per_s"]), _rate(each), row["bound_by"],
    )  # fmt: skip


def _named(what: str) -> str:
    return "a machine with one of each" if what == "machine" else f"a {what}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}" if per_s < 100 else f"{per_s:,.0f}"
