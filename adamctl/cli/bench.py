"""`adamctl bench NAME`: measurements against the limits of this machine."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import print_json, table

command = TableGroup(
    name="bench",
    help="Measure against the limits of this machine.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={"net": ("adamctl.cli.bench:net", "1 MiB frames over one connection against plain blocking sockets")},
)
_HIDDEN_COLUMNS = frozenset({"rounds_seconds"})


@click.command("net")
@click.option("--transport", multiple=True, type=click.Choice(["tcp", "unix"]), help="Only this one.")
@click.option("--rounds", default=5, show_default=True, help="Rounds of each side; the best counts.")
@click.option("--gigabytes", default=2.0, show_default=True, help="Sent in each round.")
@options.json_option
def net(transport: tuple[str, ...], rounds: int, gigabytes: float, as_json: bool) -> None:
    """Measure 1 MiB frames over one loopback connection against plain blocking sockets."""
    from adamctl.bench.net import run_net_benchmark

    report = run_net_benchmark(
        transports=transport or ("tcp", "unix"), rounds=rounds, bytes_per_round=int(gigabytes * 1e9)
    )
    if as_json:
        print_json(report)
        return
    print_results(report)


def print_results(report: dict[str, Any]) -> None:
    """Prints a benchmark's results as a table, its machine below."""
    results = report["results"]
    columns = [key for key in dict.fromkeys(key for result in results for key in result) if key not in _HIDDEN_COLUMNS]
    rows = [[_cell(result.get(column)) for column in columns] for result in results]
    numbers = [index for index, column in enumerate(columns) if isinstance(results[0].get(column), (int, float))]
    click.echo(table(columns, rows, right=numbers))
    click.echo()
    for title in ("machine", "versions"):
        click.echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
