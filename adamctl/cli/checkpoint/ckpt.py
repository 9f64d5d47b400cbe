"""`adamctl ckpt list|save|verify|restore|prune`: the checkpoints of a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from shlex import join as command_line
from typing import TYPE_CHECKING

import click

from adamctl.cli import completing, options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo, print_json, table
from adamctl.config.names import printable

if TYPE_CHECKING:
    from adamctl.cli.checkpoint.store import Stored

command = TableGroup(
    name="ckpt",
    help="List, save, verify, restore and prune the checkpoints of a run.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "list": ("adamctl.cli.checkpoint.ckpt:list_", "Show the checkpoints of a run"),
        "save": ("adamctl.cli.checkpoint.ckpt:save", "Make a running job write a checkpoint now"),
        "verify": ("adamctl.cli.checkpoint.ckpt:verify", "Read and check every byte of checkpoints"),
        "restore": ("adamctl.cli.checkpoint.ckpt:restore", "Make a new run folder that starts from a checkpoint"),
        "prune": ("adamctl.cli.checkpoint.ckpt:prune", "Remove old checkpoints of a run"),
    },
)

_COLUMNS = ("checkpoint", "pass", "examples", "metric", "size", "files", "state", "run", "age")


@click.command("list")
@click.argument("run", shell_complete=completing.runs)
@options.runs_option
@options.json_option
def list_(run: str, run_dir: str, as_json: bool) -> None:
    """Show the checkpoints of RUN: a run folder, NAME/NNN, or NAME for its newest run.

    `state` is complete, unfinished (after a crash, or still being written) or damaged, judged by manifest, sizes and
    headers only; `adamctl ckpt verify` reads everything. `run` is done if nothing is left to train.
    """
    from adamctl.cli.checkpoint.store import folder_of_checkpoints, stored

    folder = folder_of_checkpoints(run, Path(run_dir))
    found = stored(folder)
    now = datetime.now(UTC)
    if as_json:
        print_json({"folder": str(folder), "checkpoints": [one.described(now) for one in found]})
        return
    if not found:
        echo(f"{folder} holds no checkpoint")
        return
    echo(table(_COLUMNS, [_row(one, now) for one in found], right=(1, 2, 3, 4, 5, 8)))
    for one in found:
        if one.finished and one.damage:
            echo(one.damage, err=True)


def _row(one: Stored, now: datetime) -> tuple[str, ...]:
    from adamctl.live.units import duration, measured, size

    values = one.described(now)
    value = values["metric_value"]
    return (
        values["checkpoint"],
        "-" if values["passes"] is None else f"{values['passes']:.2f}",
        "-" if values["examples"] is None else f"{values['examples']:,}",
        "-" if value is None else printable(f"{values['metric']} {measured(values['metric'], value)}"),
        size(values["size_bytes"]),
        str(values["files"] or "-"),
        values["state"],
        "-" if one.manifest is None else "done" if one.manifest.complete else "not done",
        duration(values["age_seconds"]),
    )


@click.command("save")
@click.argument("job", required=False, shell_complete=completing.live_runs)
@options.controller_option
@options.token_option
@click.option("--wait", "wait_s", type=ABOVE_ZERO, default=600.0, show_default=True, help="Seconds to wait for it.")
@options.json_option
def save(job: str | None, controller: tuple[str, ...], token: str, wait_s: float, as_json: bool) -> None:
    """Make JOB write a checkpoint now, and return when it is finished; training continues meanwhile.

    Each shard is written at one version; pushes are not stopped. JOB may be left out if only one job runs. `adamctl
    train` prints the controller's address as "watch it with".
    """
    addresses = options.addresses(controller)
    from adamctl.cli.checkpoint.save import save_now
    from adamctl.net import loop

    saved = loop.run(save_now(addresses, token, job, wait_s))
    if as_json:
        print_json(saved)
    else:
        echo(f"checkpoint {saved['number']} of job {saved['job']}: {saved['folder']}")


@click.command("verify")
@click.argument("place", shell_complete=completing.runs)
@options.runs_option
@options.json_option
def verify(place: str, run_dir: str, as_json: bool) -> int:
    """Check every byte of PLACE: one checkpoint, or all finished ones of a run.

    It checks headers, sizes, the manifest, the checksum of every record and file, and that nothing is missing. Damage
    ends the command with exit code 5 and a line for each damaged part.
    """
    from adamctl.cli.checkpoint.damage import find_damage
    from adamctl.cli.checkpoint.store import chosen

    damage = {str(folder): find_damage(folder) for folder in chosen(place, Path(run_dir))}
    if as_json:
        found = [{"folder": folder, "damage": lines} for folder, lines in damage.items()]
        print_json({"ok": not any(damage.values()), "checkpoints": found})
    else:
        for folder, lines in damage.items():
            echo(f"{folder}: {f'{len(lines)} damaged parts' if lines else 'whole'}")
    for line in (line for lines in damage.values() for line in lines):
        echo(line, err=True)
    return 5 if any(damage.values()) else 0


@click.command("restore")
@click.argument("place", shell_complete=completing.runs)
@click.option("--into", metavar="DIR", help="Run folder to make; by default the next one for this experiment.")
@click.option("--ps", type=int, help="Number of parameter servers of the new run; it may differ.")
@options.set_option
@click.option(
    "--parameters-only", is_flag=True, help="Start at the first pass with these parameters (train.warmstart_from)."
)
@options.runs_option
@options.json_option
def restore(
    place: str,
    into: str | None,
    ps: int | None,
    settings: tuple[str, ...],
    parameters_only: bool,
    run_dir: str,
    as_json: bool,
) -> None:
    """Make a new run folder that starts from PLACE: a checkpoint, or the newest one of a run.

    The checkpoint is verified, then copied, so the new run does not need the old one; the experiment is the old one's,
    changed by --ps and --set. The command prints what to run next: `adamctl train ... --resume`, which restores
    passes, rule state and the rest on any number of servers, or, with --parameters-only, a training run that starts
    over from these parameters. (`train --resume RUN` does the same without a copy, `train.warmstart_from` the same as
    --parameters-only.)
    """
    from adamctl.cli.checkpoint.restore import restore_run

    changes = (*settings, *((f"cluster.ps={ps}",) if ps is not None else ()))
    made = restore_run(place, Path(run_dir), Path(into) if into else None, changes, parameters_only)
    base = ("--run-dir", run_dir) if run_dir != "runs" else ()
    resume = () if parameters_only else ("--resume", str(made.folder))
    train = command_line(["adamctl", "train", str(made.folder / "experiment.toml"), *resume, *base])
    if as_json:
        values = {"folder": str(made.folder), "checkpoint": str(made.checkpoint), "servers": made.servers}
        print_json(values | {"command": train})
        return
    echo(f"{made.folder} starts from {made.source}, for {made.servers} parameter server(s); continue with")
    echo(f"  {train}")


@click.command("prune")
@click.argument("run", shell_complete=completing.runs)
@click.option("--keep", type=int, default=3, show_default=True, metavar="N", help="Keep the newest N complete ones.")
@click.option("--every", type=int, metavar="K", help="Also keep those whose number is a multiple of K.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@options.runs_option
@options.json_option
def prune(run: str, keep: int, every: int | None, dry_run: bool, run_dir: str, as_json: bool) -> None:
    """Remove old checkpoints of RUN, and those that crashes left unfinished.

    One complete checkpoint always stays: the newest, which is read in full first; if it is damaged, the one before it.
    """
    from adamctl.cli.checkpoint.store import folder_of_checkpoints, plan_pruning, stored, with_newest_verified
    from adamctl.live.units import size
    from adamctl.roles.coordinator.checkpoint.manifest import abandon

    found = with_newest_verified(stored(folder_of_checkpoints(run, Path(run_dir))))
    plan = plan_pruning(found, keep, every)
    for one in plan.removed if not dry_run else ():
        abandon(one.folder)
    freed_bytes = sum(one.size_bytes for one in plan.removed)
    if as_json:
        kept, removed = ([one.folder.name for one in part] for part in (plan.kept, plan.removed))
        print_json({"kept": kept, "removed": removed, "freed_bytes": freed_bytes, "dry_run": dry_run})
        return
    for one in plan.removed:
        echo(f"{'would remove' if dry_run else 'removed'} {one.folder} ({one.state}, {size(one.size_bytes)})")
    would = "would be " if dry_run else ""
    echo(f"{len(plan.removed)} {would}removed, {len(plan.kept)} {would}kept, {size(freed_bytes)} {would}freed")
