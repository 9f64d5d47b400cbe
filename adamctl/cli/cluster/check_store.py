"""`adamctl controller check`: looks through the folder of a controller that is not running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from adamctl.cli import options
from adamctl.cli.output import EXIT_DEGRADED, echo, print_json, table
from adamctl.errors import ConfigurationError, DamagedDataError

if TYPE_CHECKING:
    from adamctl.roles.controller.core.service.check import Replayed
    from adamctl.roles.controller.store import LogStore


@click.command("check")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--remove", "removed", multiple=True, metavar="KEY", help="Remove this key; repeatable.")
@click.option("--yes", is_flag=True, help="Remove. Without this flag, only show what would be done.")
@click.option("--backup", type=click.Path(path_type=Path), metavar="FILE", help="Write what is left to a new FILE.")
@options.json_option
def check(folder: Path, removed: tuple[str, ...], yes: bool, backup: Path | None, as_json: bool) -> int:
    """Look through the FOLDER of a controller that is not running for keys that nobody can read.

    With --remove and --yes, remove keys from the folder of a controller that is alone. One of several must not change
    its folder by itself; write a backup without the key instead (--backup), and restore that onto new controllers. A
    backup of the folder of one of several may lack the last changes.
    """
    from adamctl.roles.controller.core.service.check import findings
    from adamctl.roles.controller.store import LogStore

    if not (folder / "vote").is_file():
        raise ConfigurationError(f"{folder}: expected the folder of a controller, with a file `vote` in it")
    changes = bool(removed) and yes and backup is None
    store = LogStore(folder, read_only=not changes)
    try:
        replayed = _replayed(store)
        there = {entry.key for entry in replayed.state.read("")}
        if unknown := sorted(set(removed) - there):
            raise ConfigurationError(f"--remove: expected a key of this configuration; found {unknown[0]!r}")
        found = findings(replayed.state.read(""))
        if changes:
            _remove(store, replayed, removed)
        elif backup is not None:
            _write(backup, replayed, removed)
    finally:
        store.close()
    left = [one for one in found if one.key not in removed or not (changes or backup is not None)]
    if as_json:
        values = [{"key": one.key, "problem": one.problem} for one in found]
        done = list(removed) if changes or backup is not None else []
        print_json({"keys": len(there), "revision": replayed.state.revision, "findings": values, "removed": done})
        return EXIT_DEGRADED if left else 0
    echo(f"{folder}: {len(there)} keys at revision {replayed.state.revision}, {len(found)} of them wrong")
    if found:
        echo(table(("key", "what is wrong"), [(one.key, one.problem) for one in found]))
    if removed and not (changes or backup is not None):
        echo("nothing was changed; run again with --yes to remove " + ", ".join(removed))
    elif removed:
        echo(("removed " if changes else f"{backup} is without ") + ", ".join(removed))
    return EXIT_DEGRADED if left else 0


def _replayed(store: LogStore) -> Replayed:
    from adamctl.roles.controller.core.service.check import Replayed
    from adamctl.wire.unreadable import UNREADABLE

    assert store.vote is not None
    try:
        return Replayed(store.vote, store.snapshot, store.entries)
    except UNREADABLE as error:
        text = f"{store.folder}: its log or snapshot holds what no controller writes: {error}; restore a backup"
        raise DamagedDataError(text) from error


def _remove(store: LogStore, replayed: Replayed, keys: Sequence[str]) -> None:
    members = replayed.acceptor.members
    if len(members) != 1:
        names = ", ".join(member.name for member in members) or "unknown"
        raise ConfigurationError(
            f"{store.folder} is of one of several controllers ({names}), which would no longer agree; write a backup "
            "without the key (--backup FILE), and restore it onto new controllers"
        )
    store.write_snapshot(replayed.without(keys))


def _write(path: Path, replayed: Replayed, removed: Sequence[str]) -> None:
    from adamctl.roles.controller.backup_file import write_backup
    from adamctl.roles.controller.core.paxos.forming import cluster_identity
    from adamctl.roles.controller.core.service.backup import encode_backup

    cluster = replayed.state.cluster or cluster_identity(replayed.acceptor.vote.cluster)
    if removed:
        replayed.without(removed)
    write_backup(path, encode_backup(replayed.state, cluster))
