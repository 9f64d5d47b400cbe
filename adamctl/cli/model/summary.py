"""`adamctl summary EXP.toml`: what a network consists of and costs, before anything starts."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.number_types import PARTITIONS_MOST
from adamctl.cli.output import echo, print_json, progress, table


@click.command("summary")
@options.experiment_options
@click.option(
    "--partitions", type=click.IntRange(1, PARTITIONS_MOST), help="Show how so many workers hold a replica together."
)
@options.machine_options
@options.json_option
def command(
    experiment: str,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    partitions: int | None,
    link_bytes_per_s: float,
    latency_s: float,
    rates_file: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show each layer of EXP.toml: output shape, parameters, connections, memory of a training context, bytes per push.

    Bytes are for one push by one thread: n_push x batch examples to cluster.ps servers (try other numbers with --ps N).

    With --partitions, or with cluster.partitions set to more than 1 or to auto, also shows what each partition
    computes, holds and sends, and what binds the time of a batch (docs/partitions.md). The command ends with exit code
    2 if a partition does not fit cluster.memory_per_worker.
    """
    loaded = options.load(experiment, settings, data, flags)
    from adamctl.cli.model.partition_figures import numbers_of, rates_for, summary_figures
    from adamctl.cli.model.summary_figures import figures_of

    figures = figures_of(loaded.experiment)
    numbers, cut = numbers_of(loaded.experiment, partitions), None
    if numbers:
        from adamctl.model.partition.cost import TCP_PROCESSOR_S_PER_BYTE, Link

        rates = rates_for(loaded.experiment, numbers, rates_file, progress("measuring"))
        cut = summary_figures(
            loaded.experiment, numbers, rates, Link(link_bytes_per_s, latency_s, TCP_PROCESSOR_S_PER_BYTE)
        )
        figures["partitioning"] = cut
    if as_json:
        print_json(figures)
    else:
        _show(figures)
    if cut is not None:
        from adamctl.cli.model.partition_tables import refuse_what_does_not_fit, show_summary

        if not as_json:
            show_summary(cut)
        refuse_what_does_not_fit(cut, f"{cut['partitions']} partitions")


def _show(figures: dict[str, Any]) -> None:
    header = ("layer", "output", "parameters", "connections", "context", "as gradient", "as factors", "pushed as")
    echo(table(header, [_row(layer) for layer in figures["layers"]], right=(2, 3, 4, 5, 6)))
    echo()
    for line in _totals(figures):
        echo(line)


def _row(layer: dict[str, Any]) -> tuple[str, ...]:
    from adamctl.live.units import size

    gradient, factors = layer["gradient_bytes"], layer["factors_bytes"]
    return (
        layer["name"],
        "x".join(map(str, layer["output_shape"])),
        f"{layer['parameters']:,}",
        f"{layer['connections']:,}",
        size(layer["context_bytes"]),
        size(gradient) if gradient else "-",
        size(factors) if factors else "-",
        layer["protocol"] or "-",
    )


def _totals(figures: dict[str, Any]) -> list[str]:
    from adamctl.live.units import size

    return [
        f"{figures['experiment']}: {figures['parameters']:,} parameters ({size(figures['parameters_bytes'])}), "
        f"{figures['connections']:,} connections",
        f"{figures['shards']} shards in {figures['buckets']} buckets on {figures['servers']} server(s)"
        if figures["servers"]
        else "no parameter servers: the replica updates its own weights, and nothing is pushed",
        *([_held_line(figures)] if figures["servers"] else []),
        f"a training context takes {size(figures['context_bytes'])} for batches of {figures['batch']}",
        *([_push_line(figures)] if figures["servers"] else []),
    ]


def _held_line(figures: dict[str, Any]) -> str:
    from adamctl.live.units import size

    held = size(figures["server_bytes"])
    return f"servers hold {held}: the parameters and what {figures['optimizer']} keeps for each, in all copies"


def _push_line(figures: dict[str, Any]) -> str:
    from adamctl.live.units import size

    return (
        f"a push of {figures['push_examples']} examples as {figures['wire_push']}: {size(figures['push_bytes'])}, "
        f"or {size(figures['push_gradient_bytes'])} if all went as gradients"
    )
