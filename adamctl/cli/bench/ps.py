"""`adamctl bench ps-throughput`: the parameter server from end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from adamctl.cli import options
from adamctl.cli.bench.bench import COUNT, Counts, usual_thread_counts
from adamctl.cli.number_types import ABOVE_ZERO, BYTES_PER_S, Numbers
from adamctl.cli.output import echo, print_json, table
from adamctl.errors import ConfigurationError
from adamctl.model.wire_types import WIRE_TYPES, WireType

if TYPE_CHECKING:
    from adamctl.bench.ps.throughput import PsSettings

_MODES = ("push", "pull", "both", "factors", "local")
_TRANSPORTS = ("auto", "tcp", "unix", "shared")
_DTYPES: tuple[WireType, ...] = ("float32",)
_MEGABYTE = 1_000_000
_COUNTS = {"apply_threads": "thread", "clients": "client", "servers": "server"}
_STRESS_MEGABYTES, _STRESS_S = 16.0, 60.0
_UNUSED = {
    "--stress": ("--mode", "--clients", "--servers", "--dtype", "--link", "--rounds", "--vs", "--plot"),
    "--linear": ("--mode", "--clients", "--servers", "--dtype", "--link", "--vs", "--plot"),
}


@click.command("ps-throughput")
@click.option(
    "--mode", "modes", multiple=True, type=click.Choice(_MODES), help="Measure only this mode.  [default: all]"
)
@click.option(
    "--apply-threads", "--cores", type=Counts(), help="Threads of a server.  [default: powers of two up to the cores]"
)
@click.option("--clients", type=Counts(), default="1", show_default=True, help="Client processes.")
@click.option("--servers", type=Counts(), default="1", show_default=True, help="Parameter servers.")
@click.option("--model-megabytes", type=ABOVE_ZERO, help="Size of the weights.  [default: 100; with --stress 16]")
@click.option(
    "--block-kib",
    "blocks_kib",
    type=Numbers(ABOVE_ZERO),
    default="1024",
    show_default=True,
    help="Size of a block: weights that are sent and locked together.",
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    type=click.Choice(WIRE_TYPES),
    help="Type of numbers on the wire.  [default: float32]",
)
@click.option(
    "--transport",
    "transports",
    multiple=True,
    type=click.Choice(_TRANSPORTS),
    help="Transport to servers.  [default: auto]",
)
@click.option(
    "--link", "link_bytes_per_s", type=BYTES_PER_S,
    help="Give each server a network of its own with a link of this rate, such as 10Gbit; with --transport tcp.",
)  # fmt: skip
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per side; the best counts.")
@click.option("--seconds", type=ABOVE_ZERO, help="Length of a round.  [default: 1; with --stress 60]")
@click.option("--vs", type=click.Choice(["torch-rpc"]), help="Measure PyTorch's RPC too.")
@click.option("--peer-python", default=sys.executable, metavar="PYTHON", help="Python interpreter that has PyTorch.")
@click.option("--stress", is_flag=True, help="Run the stress test instead: 64 connections push for a minute.")
@click.option("--linear", is_flag=True, help="Measure instead how cost grows with model, clients and servers.")
@options.plot_option
@options.json_option
def ps_throughput(
    modes: tuple[str, ...], apply_threads: tuple[int, ...] | None, clients: tuple[int, ...], servers: tuple[int, ...],
    model_megabytes: float | None, blocks_kib: tuple[float, ...], dtypes: tuple[WireType, ...],
    transports: tuple[str, ...], link_bytes_per_s: float | None, rounds: int, seconds: float | None, vs: str | None,
    peer_python: str, stress: bool, linear: bool, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure pushes, pulls and factors through real parameter servers against this machine's limits."""
    from adamctl.bench.peer import require
    from adamctl.bench.ps.throughput import PsSettings

    if stress or linear:
        _check_flags(
            ("--stress",) * stress + ("--linear",) * linear,
            {"--apply-threads": apply_threads, "--block-kib": blocks_kib, "--transport": transports},
        )
    if plot is not None and set(modes) == {"pull"}:
        raise ConfigurationError("--plot: expected a mode that updates parameters; found only pull")
    megabytes = model_megabytes if model_megabytes is not None else _STRESS_MEGABYTES if stress else 100.0
    every = [
        PsSettings(
            modes=modes or _MODES,
            apply_threads=apply_threads or usual_thread_counts(),
            clients=clients,
            servers=servers,
            model_bytes=int(megabytes * _MEGABYTE),
            block_bytes=int(block_kib * 1024),
            wire=dtype,
            transport=transport,
            link_bytes_per_s=link_bytes_per_s,
            rounds=rounds,
            seconds=seconds if seconds is not None else _STRESS_S if stress else 1.0,
            peer_python=peer_python if vs else None,
        )
        for transport in dict.fromkeys(transports or ("auto",))
        for dtype in dict.fromkeys(dtypes or _DTYPES)
        for block_kib in dict.fromkeys(blocks_kib)
    ]
    if vs:
        require(peer_python, "torch")
    if link_bytes_per_s is not None:
        from adamctl.bench import namespaces

        if not namespaces.is_inside():
            namespaces.go_inside(sys.argv[1:])
    report, show = _run(every, stress, linear)
    if as_json:
        print_json(report)
    else:
        show(report)
        for title in ("machine", "versions"):
            echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))
    if plot is not None:
        from adamctl.bench.plot import plot_ps

        plot_ps(report, plot)


def _check_flags(instead: tuple[str, ...], lists: dict[str, tuple[Any, ...] | None]) -> None:
    """Raises ConfigurationError for flags that the measurement `instead` does not use, before a minute is spent."""
    if len(instead) > 1:
        raise ConfigurationError(f"{' and '.join(instead)}: expected only one of them")
    context = click.get_current_context()
    unused = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.opts[0] in _UNUSED[instead[0]]
        and context.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT
    ]
    if unused:
        raise ConfigurationError(f"{instead[0]}: expected no {', '.join(unused)}: this measurement does not use it")
    for flag, values in lists.items():
        if values is not None and len(values) > 1:
            found = ", ".join(map(str, values))
            raise ConfigurationError(f"{instead[0]}: expected one value of {flag}; found {found}; run it once for each")


def _run(every: list[PsSettings], stress: bool, linear: bool) -> tuple[dict[str, Any], Any]:
    """Returns the requested report and the function that prints it."""
    settings = every[0]

    def progress(line: str) -> None:
        echo(line, err=True)

    if stress:
        from adamctl.bench.ps.stress import run_ps_stress

        report = run_ps_stress(
            seconds=settings.seconds,
            model_bytes=settings.model_bytes,
            block_bytes=settings.block_bytes,
            apply_threads=settings.apply_threads[0],
            transport=settings.transport,
            progress=progress,
        )
        return report, _show_stress
    if linear:
        from adamctl.bench.ps.linear import run_ps_linear

        return run_ps_linear(settings, progress=progress), _show_linear
    from adamctl.bench.ps.throughput import run_ps_benchmark

    return run_ps_benchmark(*every, progress=progress), _show


def _show(report: dict[str, Any]) -> None:
    rows = []
    for row in report["results"]:
        in_updates = "limit_g_updates_per_s" in row
        unit = "g_updates_per_s" if in_updates else "gb_per_s"
        peer = row.get(f"torch_rpc_{unit}")
        rows.append(
            [
                row["mode"],
                row.get("transport", "none"),
                str(row["apply_threads"]),
                str(row.get("clients", "-")),
                str(row.get("servers", "-")),
                f"{row['block_bytes'] / 1024:g}" if "block_bytes" in row else "-",
                row.get("dtype", "-"),
                "G updates/s" if in_updates else "GB/s",
                f"{row[unit]:.2f}",
                f"{row[f'limit_{unit}']:.2f}",
                f"{row['fraction_of_limit']:.2f}",
                f"{peer:.2f} ({row['torch_rpc_transport']})" if peer else "-",
                f"{row['ratio_vs_torch_rpc']:.2f}" if peer else "-",
            ]
        )
    setting = ["mode", "transport", "threads", "clients", "servers", "block KiB", "dtype"]
    columns = [*setting, "unit", "rate", "limit", "fraction", "PyTorch RPC", "ratio"]
    echo(table(columns, rows, right=[2, 3, 4, 5, 8, 9, 10, 11, 12]))
    echo()
    for mode, limit in dict.fromkeys((row["mode"], row["limit"]) for row in report["results"]):
        echo(f"limit of {mode}: {limit}")
    for row in report["results"]:
        if "our_options_gb_per_s" in row:
            shown = f"{row['our_options_gb_per_s']:.2f} GB/s, fraction {row['fraction_of_our_options']:.2f}"
            where = [row["mode"], row["transport"], row["dtype"], f"{row['block_bytes'] / 1024:g} KiB"]
            where += [f"{row[what]} {title}(s)" for what, title in _COUNTS.items()]
            echo(f"{', '.join(where)}: plain sockets with our options {shown}")
    if any("factors" in row["mode"] for row in report["results"]):
        echo(f"Adam's server applied {report['adam_g_updates_per_s']:g} G updates/s with 16 cores")


def _show_stress(report: dict[str, Any]) -> None:
    for name, value in report["results"][0].items():
        shown = f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
        echo(f"{name}: {shown}")
    echo()


def _show_linear(report: dict[str, Any]) -> None:
    rows = [
        [
            row["grows"],
            f"{row['value']:,}",
            f"{row['push_s']:.4f}",
            f"{row['pull_s']:.4f}",
            f"{row['push_gb_per_s']:.2f}",
            f"{row['pull_gb_per_s']:.2f}",
        ]
        for row in report["results"]
    ]
    echo(table(["grows", "to", "push s", "pull s", "push GB/s", "pull GB/s"], rows, right=[1, 2, 3, 4, 5]))
    for grows, found in report["exponents"].items():
        echo(f"exponent by {grows}: push {found['push_s']:.2f}, pull {found['pull_s']:.2f}")
    echo()
