"""`adamctl bench tls`."""

from __future__ import annotations

from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json, table
from adamctl.errors import ConfigurationError


@click.command("tls")
@click.option("--rounds", type=COUNT, default=7, show_default=True, help="Of each side, in turn; the median counts.")
@click.option("--gigabytes", type=ABOVE_ZERO, default=1.0, show_default=True, help="Moved in each round.")
@click.option("--handshakes", type=COUNT, default=100, show_default=True, help="Connections made in each round.")
@click.option(
    "--before",
    type=click.Path(path_type=Path),
    help="Checkout of an earlier commit, whose frames without TLS are measured in turn with these.",
)
@options.json_option
def tls(rounds: int, gigabytes: float, handshakes: int, before: Path | None, as_json: bool) -> None:
    """Measure what TLS costs: each way against blocking SSLSockets and the cipher, and a handshake.

    Rates are bytes per second of processor time of one end.
    """
    from adamctl.bench.net.tls import TlsSettings, run_tls_benchmark

    if before is not None and not before.is_dir():
        raise ConfigurationError(f"--before: expected the folder of a checkout; found {str(before)!r}")
    before = before.resolve() if before is not None else None
    settings = TlsSettings(rounds, gigabytes, handshakes, before)
    report = run_tls_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
        return
    rows = []
    for row in report["results"]:
        verdict = {True: "meets", False: "MISSES", None: f"not measured: {row['details'].get('cannot', '')}"}
        ratio = "" if row["ratio"] is None else f"{row['ratio']:g}"
        rows.append((row["part"], ratio, row["bar"], verdict[row["meets"]], row["what"]))
    echo(table(("part", "found", "bar", "", "of what"), rows))
