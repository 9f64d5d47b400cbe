"""`adamctl layer check`: whether a layer of one's own keeps its promises."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import EXIT_DEGRADED, echo, print_json

command = TableGroup(
    name="layer",
    help="Check layers of your own.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "check": ("adamctl.cli.model.layer:check", "Check gradients, parts and promises of a layer of your own"),
    },
)


@click.command("check")
@click.argument("path", metavar="MODULE:CLASS")
@click.option("--input", "shape", metavar="SHAPE", required=True, help="Shape of one example, such as 28,28,3 or 100.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A key of the layer; may be repeated.")
@click.option("--partitions", default="2,3", show_default=True, help="Into how many parts it is cut, in turn.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the numbers that are drawn.")
@options.json_option
def check(path: str, shape: str, settings: tuple[str, ...], partitions: str, seed: int, as_json: bool) -> None:
    """Check numerical gradients, parts against the whole, what a node reads, native calls, and what threads share.

    The module is found on Python's path, in the present folder and in ADAMCTL_MODULES. Ends with exit code 4 if the
    layer breaks a promise.
    """
    from adamctl.config.load import parse_setting
    from adamctl.kernels.layer_check.check import findings
    from adamctl.model.custom.registry import layer_of, plain_value
    from adamctl.model.description import Custom

    given = [parse_setting(text) for text in settings]
    keys = sorted((one.key, plain_value(f"--set {one.key}", one.value)) for one in given)
    extents, parts = _numbers("--input", shape), _numbers("--partitions", partitions)
    if len(extents) not in (1, 3):
        raise click.UsageError(f"--input {shape}: expected FEATURES or HEIGHT,WIDTH,MAPS")
    found = findings(layer_of(Custom(path, tuple(keys))), extents, parts, seed)
    if as_json:
        rows = [{"check": one.check, "text": one.text} for one in found]
        print_json({"layer": path, "input": extents, "ok": not found, "findings": rows})
    elif found:
        echo("\n".join([f"{path} on {shape} breaks a promise:", *map(str, found)]))
    else:
        echo(f"{path} on {shape} keeps its promises, whole and in {partitions} parts")
    if found:
        raise click.exceptions.Exit(EXIT_DEGRADED)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise click.UsageError(f"{option} {text}: expected whole numbers of at least 1, with commas between")
    return tuple(int(word) for word in words)
