"""`adamctl bench NAME`: measurements against the limits of this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from adamctl.cli import completing, options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json, table
from adamctl.net.address import TLS_VARIABLE


def _without_certificate() -> None:
    """What is measured starts its own processes on loopback, which have no certificates; `bench tls` makes its own."""
    os.environ.pop(TLS_VARIABLE, None)


command = TableGroup(
    name="bench",
    callback=_without_certificate,
    help="Measure against the limits of this machine.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "net": ("adamctl.cli.bench.bench:net", "1 MiB frames over one connection against plain blocking sockets"),
        "tls": ("adamctl.cli.bench.tls:tls", "TLS against blocking SSLSockets, the cipher, and frames without it"),
        "kernels": (
            "adamctl.cli.bench.bench:kernels",
            "Each kernel against matrix product rate, memory bandwidth and PyTorch",
        ),
        "ps-throughput": (
            "adamctl.cli.bench.ps:ps_throughput",
            "Parameter servers end to end against sockets, matrix products and memory",
        ),
        "replication": ("adamctl.cli.bench.replication:replication", "What three copies of every bucket cost"),
        "failover": ("adamctl.cli.bench.failover:failover", "How long pushes stall when a server is lost"),
        "metrics": ("adamctl.cli.bench.metrics:metrics", "What scraping metrics costs a run"),
        "layer": ("adamctl.cli.bench.layer:layer", "A layer of one's own against a built-in one"),
        "soak": ("adamctl.cli.bench.soak:soak", "Hours of faults, with an account of every push"),
        "figures": ("adamctl.cli.bench.figures:figures", "Figures of the papers: measured here, planned beyond"),
        "hosts": ("adamctl.cli.bench.hosts:hosts", "Many agents at one front, and the loss of a role and of a host"),
        "store": (
            "adamctl.cli.bench.bench:store",
            "Parameter servers' store against the disk: flush, recovery, long runs",
        ),
        "worker": (
            "adamctl.cli.bench.bench:worker",
            "Training steps per second by threads and batch size, against PyTorch",
        ),
        "partition": (
            "adamctl.cli.bench.partition:partition",
            "Replicas of several partitions against one process with as many threads",
        ),
        "sandblaster": (
            "adamctl.cli.bench.sandblaster:sandblaster",
            "L-BFGS over parameter servers against SciPy, PyTorch, Downpour and limits",
        ),
        "data": ("adamctl.cli.bench.data:data", "Data servers against SciPy, OpenCV, PyTorch and limits"),
    },
)
COUNT = click.IntRange(min=1)
_HIDDEN_COLUMNS = frozenset({"fractions", "rounds_s", "rounds_seconds", "connections_per_example", "peer_error"})


class Counts(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.3
    """Whole numbers of at least 1, separated by commas."""

    name = "N,N,..."

    def convert(
        self, value: str | tuple[int, ...], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if not all(part.strip().isdecimal() and int(part) >= 1 for part in parts):
            self.fail(f"expected whole numbers of at least 1, separated by commas; found {value!r}", parameter, context)
        return tuple(int(part) for part in parts)


def usual_thread_counts() -> tuple[int, ...]:
    """Returns the powers of two up to the number of this process's cores, and that number."""
    from adamctl.kernels.threads import available_cores

    cores = available_cores()
    return tuple(sorted({*(1 << power for power in range(cores.bit_length())), cores}))


@click.command("net")
@click.option("--transport", multiple=True, type=click.Choice(["tcp", "unix"]), help="Measure only this transport.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per side; the best counts.")
@click.option("--gigabytes", type=ABOVE_ZERO, default=2.0, show_default=True, help="Data sent in each round.")
@options.json_option
def net(transport: tuple[str, ...], rounds: int, gigabytes: float, as_json: bool) -> None:
    """Measure 1 MiB frames over one loopback connection against plain blocking sockets."""
    from adamctl.bench.net.net import run_net_benchmark

    report = run_net_benchmark(
        transports=transport or ("tcp", "unix"), rounds=rounds, bytes_per_round=int(gigabytes * 1e9)
    )
    if as_json:
        print_json(report)
        return
    print_results(report)


@click.command("store")
@click.option(
    "--folder", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Folder on the disk to measure."
)
@click.option("--megabytes", type=COUNT, default=512, show_default=True, help="Size of the model to write.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per side; the best counts.")
@click.option("--loss-window-s", type=ABOVE_ZERO, default=5.0, show_default=True, help="Loss window of the long runs.")
@click.option("--hours", type=ABOVE_ZERO, default=1.0, show_default=True, help="Hours of updates in the long runs.")
@click.option("--long-run-megabytes", type=COUNT, default=4, show_default=True, help="Size of their model.")
@click.option(
    "--training",
    type=click.IntRange(min=0),
    default=0,
    help="Pairs of training runs, with and without a store; each takes about half a minute.",
)
@options.json_option
def store(
    folder: Path | None, megabytes: int, rounds: int, loss_window_s: float, hours: float, long_run_megabytes: int,
    training: int, as_json: bool,
) -> None:  # fmt: skip
    """Measure the parameter server's store against this disk's sequential write and read rates."""
    from adamctl.bench.store.store import run_store_benchmark

    report = run_store_benchmark(
        folder=folder,
        megabytes=megabytes,
        rounds=rounds,
        window_s=loss_window_s,
        hours=hours,
        long_run_megabytes=long_run_megabytes,
        training_pairs=training,
        progress=lambda line: echo(line, err=True),
    )
    if as_json:
        print_json(report)
        return
    print_results(report)


@click.command("worker")
@options.experiment_options
@click.option("--thread-counts", type=Counts(), help="Thread counts.  [default: powers of two up to the cores]")
@click.option("--batches", type=Counts(), default="32,64,128", show_default=True, help="Examples per step.")
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per setting; the median counts.")
@click.option("--seconds", type=ABOVE_ZERO, default=1.0, show_default=True, help="Length of a round.")
@click.option("--vs", type=click.Choice(["torch"]), help="Compare with PyTorch's best setting.")
@click.option("--peer-python", default=sys.executable, metavar="PYTHON", help="Python interpreter that has PyTorch.")
@options.plot_option
@options.json_option
def worker(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], thread_counts: tuple[int, ...] | None,
    batches: tuple[int, ...], rounds: int, seconds: float, vs: str | None, peer_python: str, plot: Path | None,
    as_json: bool, **flags: Any,
) -> None:  # fmt: skip
    """Measure training steps of EXP.toml's model on this machine's cores: synthetic examples, nothing sent."""
    loaded = options.load(experiment, settings, data, flags)
    from adamctl.bench.peer import require
    from adamctl.bench.worker.worker import run_worker_benchmark

    if vs:
        require(peer_python, vs)
    report = run_worker_benchmark(
        loaded.experiment,
        thread_counts or usual_thread_counts(),
        batches,
        rounds=rounds,
        seconds=seconds,
        peer_python=peer_python if vs else None,
        progress=lambda line: echo(line, err=True),
    )
    if as_json:
        print_json(report)
    else:
        _show_worker(report)
    if plot is not None:
        from adamctl.bench.plot import plot_worker

        plot_worker(report, plot)


def _show_worker(report: dict[str, Any]) -> None:
    print_results(report)
    for lock in report.get("interpreter_lock", ()):
        how = "one native call" if lock["native_step"] else "native calls and Python between them"
        limit = lock["predicted_speed_up"]["16"]
        echo(
            f"batch {lock['batch']}: a step is {how}; one thread holds the interpreter lock {lock['held_share']:.1%} "
            f"of the time; that alone limits 16 threads on 16 cores to {limit:.1f} x one thread"
        )
    if "comparison" in report:
        echo(_comparison(report["comparison"]))


@click.command("kernels")
@click.argument(
    "experiments", nargs=-1, type=click.Path(), metavar="EXP.toml...", shell_complete=completing.experiments
)
@click.option("--only", multiple=True, metavar="WORD", help="Only kernels of this group or with WORD in their name.")
@click.option("--batch", type=COUNT, default=32, show_default=True, help="Examples per step.")
@click.option(
    "--threads", type=COUNT, default=1, show_default=True, help="Threads that run the kernel at the same time."
)
@click.option("--rounds", type=COUNT, default=5, show_default=True, help="Rounds per kernel; the median counts.")
@click.option("--seconds", type=ABOVE_ZERO, default=0.1, show_default=True, help="Length of a round.")
@click.option("--vs", type=click.Choice(["torch"]), help="Measure PyTorch too.")
@click.option("--peer-python", default=sys.executable, metavar="PYTHON", help="Python interpreter that has PyTorch.")
@options.plot_option
@options.json_option
def kernels(
    experiments: tuple[str, ...], only: tuple[str, ...], batch: int, threads: int, rounds: int, seconds: float,
    vs: str | None, peer_python: str, plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure each kernel against this machine's limits: the layers of the given models (without any, a set with every
    kind of layer), update rules and vector operations."""
    from adamctl.bench.kernels.kernels import all_cases, run_kernels_benchmark, select
    from adamctl.bench.kernels.sample_models import SAMPLES
    from adamctl.bench.peer import require

    if vs:
        require(peer_python, vs)
    models = [options.load(path, (), (), {}).experiment.model for path in experiments]
    cases = list(all_cases([(model, batch) for model in models or SAMPLES]))
    report = run_kernels_benchmark(
        select(cases, only),
        threads=threads,
        rounds=rounds,
        seconds=seconds,
        peer_python=peer_python if vs else None,
        progress=lambda line: echo(line, err=True),
    )
    if as_json:
        print_json(report)
    else:
        print_results(report | {"results": [_in_one_column(row) for row in report["results"]]})
    if plot is not None:
        from adamctl.bench.plot import plot_kernels

        plot_kernels(report, plot)


def _in_one_column(row: dict[str, Any]) -> dict[str, Any]:
    """Puts both units of rates under the implementation's name, so that the table fits a screen."""
    units = {"_gflop_per_s": "GFLOP/s", "_gb_per_s": "GB/s"}
    unit = next(unit for unit in units if f"limit{unit}" in row)
    shown = {key.removesuffix(unit): value for key, value in row.items()}
    return {"kernel": shown.pop("kernel"), "unit": units[unit], **shown}


def _comparison(comparison: dict[str, Any]) -> str:
    ours, peer = comparison["adamctl"], comparison["torch"]
    return (
        f"best against best: adamctl {comparison['adamctl_images_per_s']:,.0f} images/s "
        f"({ours['threads']} thread(s), batch {ours['batch']}), PyTorch {comparison['torch_images_per_s']:,.0f} "
        f"({peer['threads']} thread(s), batch {peer['batch']}, {peer['setting']}): "
        f"ratio {comparison['ratio_vs_torch']:.2f}"
    )


def print_results(report: dict[str, Any]) -> None:
    """Prints a benchmark's results as a table, with the machine below it."""
    results = report["results"]
    filled = dict.fromkeys(key for result in results for key, value in result.items() if value is not None)
    columns = [key for key in filled if key not in _HIDDEN_COLUMNS]
    rows = [[_cell(result.get(column)) for column in columns] for result in results]
    numbers = [
        index
        for index, column in enumerate(columns)
        if any(isinstance(result.get(column), (int, float)) for result in results)
    ]
    echo(table(columns, rows, right=numbers))
    echo()
    for title in ("machine", "versions"):
        echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (int, float)) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def print_bars(report: dict[str, Any]) -> None:
    """Prints a row for each part, what else was found, and the machine."""
    rows = [
        [row["part"], row["what"], _number(row["ratio"]), row["bar"], _yes(row["meets"]), f"{row['load_1_minute']:.1f}"]
        for row in report["results"]
    ]
    echo(table(["part", "what", "ratio", "bar", "meets it", "load"], rows, right=[2, 5]))
    echo()
    for row in report["results"]:
        echo(f"{row['part']}: " + ", ".join(f"{key} {_shown(value)}" for key, value in row["details"].items()))
    echo()
    for title in ("machine", "versions"):
        echo(f"{title}: " + ", ".join(f"{key} {value}" for key, value in report[title].items()))


def _number(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _yes(meets: bool | None) -> str:
    return "-" if meets is None else "yes" if meets else "no"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, (list, tuple)):
        return " to ".join(map(_shown, value))
    return f"{value:,}" if type(value) is int else str(value)
