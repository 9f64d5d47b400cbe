"""`adamctl config check|show`: whether an experiment is valid, and where each value comes from."""

from __future__ import annotations

from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.output import echo, print_json, table

command = TableGroup(
    name="config",
    help="Check an experiment, or show it with the origin of each value.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "check": ("adamctl.cli.model.config:check", "Check whether an experiment is valid, and show what is wrong"),
        "show": ("adamctl.cli.model.config:show", "Show every value of an experiment"),
        "reference": ("adamctl.cli.model.config:reference", "Print all keys, types, defaults and data formats"),
    },
)


@click.command("check")
@options.experiment_options
@click.option("--full", is_flag=True, help="Also read every example of the data.")
@options.json_option
def check(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], full: bool, as_json: bool, **flags: Any
) -> None:
    """Check whether EXP.toml is valid; an invalid one ends the command with exit code 2, damaged data with 5.

    With --data, checks the data as train does before it starts: headers, all labels and about a thousand examples. With
    --full, reads every example.
    """
    loaded = options.load(experiment, settings, data, flags)
    if loaded.experiment.optimizer.is_batch:
        from adamctl.optimizers.configured import check as check_algorithm

        check_algorithm(loaded.experiment)
    if data or full:
        from adamctl.launch.checking import look_at_data

        look_at_data(loaded.experiment, lambda text: echo(text, err=True), full=full)
    if as_json:
        print_json({"experiment": loaded.experiment.name, "ok": True})
    else:
        echo(f"{experiment}: experiment {loaded.experiment.name!r} is valid")


@click.command("reference")
def reference() -> None:
    """Print every key of an experiment, its type, default, allowed values and meaning, and every data format."""
    from adamctl.config.reference import page

    echo(page(), nl=False)


@click.command("show")
@options.experiment_options
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@options.json_option
def show(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], origin: bool, as_json: bool, **flags: Any
) -> None:
    """Show EXP.toml with every default, and with the changes made by flags and the environment."""
    loaded = options.load(experiment, settings, data, flags)
    from adamctl.config.load import GIVEN_WHOLE
    from adamctl.config.resolved import to_toml

    if not origin and not as_json:
        echo(to_toml(loaded.experiment), nl=False)
        return
    from adamctl.model.custom.plain import builtins_of

    values = builtins_of(loaded.experiment)
    if as_json:
        origins = {key: {"kind": found.kind, "place": found.place} for key, found in loaded.origins.items()}
        print_json({"experiment": values} | ({"origins": origins} if origin else {}))
        return
    rows = []
    for key, value in _leaves(values, ""):
        whole = key.rsplit(".", 1)[0] if key.startswith(GIVEN_WHOLE) else key
        found = loaded.origins.get(key) or loaded.origins.get(whole)
        rows.append((key, _text(value), str(found) if found else "default"))
    echo(table(("key", "value", "origin"), rows))


def _leaves(value: Any, key: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        children = {str(index): item for index, item in enumerate(value)}.items()
    else:
        return [(key, value)]
    return [leaf for name, item in children for leaf in _leaves(item, f"{key}.{name}" if key else name)]


def _text(value: Any) -> str:
    from adamctl.config.check import show as as_toml

    return "(unset)" if value is None else as_toml(value)
