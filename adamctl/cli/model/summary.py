"""`adamctl summary EXP.toml`: what a network consists of and costs, before anything starts."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json, table


@click.command("summary")
@options.experiment_options
@options.json_option
def command(experiment: str, settings: tuple[str, ...], data: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Show each layer of EXP.toml: output shape, parameters, connections, memory of a training context, bytes per push.

    Bytes are for one push by one thread: n_push x batch examples to cluster.ps servers (try other numbers with --ps N).
    """
    loaded = options.load(experiment, settings, data, flags)
    from adamctl.cli.model.summary_figures import figures_of

    figures = figures_of(loaded.experiment)
    if as_json:
        print_json(figures)
        return
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

    push = figures["push_examples"]
    return [
        f"{figures['experiment']}: {figures['parameters']:,} parameters ({size(figures['parameters_bytes'])}), "
        f"{figures['connections']:,} connections",
        f"{figures['shards']} shards in {figures['buckets']} buckets on {figures['servers']} server(s)",
        f"a training context takes {size(figures['context_bytes'])} for batches of {figures['batch']}",
        f"a push of {push} examples as {figures['wire_push']}: {size(figures['push_bytes'])}, "
        f"or {size(figures['push_gradient_bytes'])} if all went as gradients",
    ]
