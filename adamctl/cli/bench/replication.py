"""`adamctl bench replication`: what three copies of every bucket cost."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, Counts
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json, table

_TRANSPORTS = ("tcp", "unix", "auto")


@click.command("replication")
@click.option("--model-megabytes", type=ABOVE_ZERO, default=32.0, show_default=True, help="Size of the weights.")
@click.option("--hot-kib", type=COUNT, default=8192, show_default=True, help="Size of the shards that always change.")
@click.option("--rate", type=ABOVE_ZERO, default=8.0, show_default=True, help="Pushes per second to them, at 1x.")
@click.option("--times", type=Counts(), default="1,4,16", show_default=True, help="Multiples of that rate.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per side; the best counts.")
@click.option("--seconds", type=ABOVE_ZERO, default=2.0, show_default=True, help="Length of a round.")
@click.option(
    "--transport", type=click.Choice(_TRANSPORTS), default="tcp", show_default=True, help="Transport to servers."
)
@click.option("--past-clients", type=COUNT, help="Measure instead how far this many past clients slow a push.")
@click.option("--shards", type=COUNT, default=300, show_default=True, help="Shards of 4 KiB, for --past-clients.")
@options.json_option
def replication(
    model_megabytes: float, hot_kib: int, rate: float, times: tuple[int, ...], rounds: int, seconds: float,
    transport: str, past_clients: int | None, shards: int, as_json: bool,
) -> None:  # fmt: skip
    """Push to one copy and to three copies on three servers of this machine, and change few shards at rising rates."""
    from adamctl.bench.replication.replication import ReplicationSettings, run_replication_benchmark

    if past_clients is not None:
        _past_clients(past_clients, shards, rounds, seconds, transport, as_json)
        return

    settings = ReplicationSettings(
        model_bytes=int(model_megabytes * 1e6),
        hot_bytes=hot_kib << 10,
        pushes_per_s=rate,
        factors_of_rate=times,
        rounds=rounds,
        seconds=seconds,
        transport=transport,
    )
    report = run_replication_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
        return
    whole = [row for row in report["results"] if row["case"] == "whole"]
    columns = ["whole model per push", "one copy GB/s", "three copies GB/s", "ratio"]
    rows = [
        [
            f"{row['model_bytes'] / 1e6:.0f} MB, {row['transport']}",
            f"{row['one_copy_gb_per_s']:.3f}",
            f"{row['three_copies_gb_per_s']:.3f}",
            f"{row['ratio']:.2f}",
        ]
        for row in whole
    ]
    echo(table(columns, rows, right=[1, 2, 3]))
    echo()
    hot = [row for row in report["results"] if row["case"] == "hot"]
    names = ["hot shards", "pushes/s", "changed GB/s", "shipped GB/s", "shipped per change", "median s"]
    lines = [
        [
            row["rate"],
            f"{row['pushes_per_s']:.0f}",
            f"{row['changed_gb_per_s']:.3f}",
            f"{row['shipped_gb_per_s']:.3f}",
            f"{row['shipped_per_change']:.2f}",
            f"{row['latency_p50_s']:.4f}",
        ]
        for row in hot
    ]
    echo(table(names, lines, right=[1, 2, 3, 4, 5]))
    for title in ("machine", "versions"):
        echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))


def _past_clients(clients: int, shards: int, rounds: int, seconds: float, transport: str, as_json: bool) -> None:
    from adamctl.bench.replication.past_clients import PastClientsSettings, run_past_clients_benchmark

    settings = PastClientsSettings(clients, shards, rounds, seconds, transport)
    report = run_past_clients_benchmark(settings, lambda line: echo(line, err=True))
    if as_json:
        print_json(report)
        return
    columns = ["past clients", "shards", "s per push, none remembered", "all remembered", "ratio"]
    rows = [
        [
            str(row["clients"]),
            str(row["shards"]),
            f"{row['fresh_s']:.4f}",
            f"{row['remembering_s']:.4f}",
            f"{row['ratio']:.2f}",
        ]
        for row in report["results"]
    ]
    echo(table(columns, rows, right=[0, 1, 2, 3, 4]))
    for title in ("machine", "versions"):
        echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))
