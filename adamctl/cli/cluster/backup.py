"""`adamctl controller backup` and `restore`: the configuration as a file, and onto new controllers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from adamctl.cli import options
from adamctl.cli.cluster.controller import own_controllers
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError, RemoteError, RunFailedError

FOR_ETCD = "an etcd cluster is backed up and restored with etcdctl and etcdutl"
DEADLINE_S = 20.0


@click.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@options.controller_option
@options.token_option
def backup(file: Path, controller: tuple[str, ...], token: str) -> None:
    """Write the whole configuration, as the controllers have agreed on it by now, to the new FILE.

    It is for the day on which most controllers have lost their folders: `adamctl controller restore` puts it onto new
    ones. It has no parameters of networks; those are in stores and checkpoints.
    """
    addresses = own_controllers(controller, FOR_ETCD)
    from adamctl.net import loop
    from adamctl.roles.controller.backup_file import write_backup
    from adamctl.roles.controller.core.service.backup import decode_backup

    data = loop.run(_backup(addresses, token))
    write_backup(file, data)
    found = decode_backup(data)
    echo(f"{file}: {len(found.entries)} keys of cluster {found.cluster} at revision {found.revision}")


@click.command("restore")
@click.argument("file", type=click.Path(path_type=Path))
@options.controller_option
@options.token_option
def restore(file: Path, controller: tuple[str, ...], token: str) -> None:
    """Put the configuration in FILE onto new controllers, which have had no job yet.

    Start them with empty folders (--dir) and, if the processes of the cluster still run, at the addresses of the former
    ones, which must never come back. Every process that still runs then starts over: parameter servers with a store go
    on from it. Revisions, incarnations and epochs are raised above all that have been in use, so nothing that happened
    after the backup is mistaken for something newer. This machine's clock decides how far: wait two minutes before this
    cluster is restored once more.
    """
    addresses = own_controllers(controller, FOR_ETCD)
    from adamctl.net import loop
    from adamctl.roles.controller.backup_file import read_backup
    from adamctl.roles.controller.core.service.backup import raised_to_clock

    _, found = read_backup(file)
    try:
        data = raised_to_clock(found, time.time())
    except ValueError as error:
        raise ConfigurationError(f"this machine's clock: {error}") from error
    left_out, revision = loop.run(_restore(addresses, token, data))
    echo(f"restored {len(found.entries) - len(left_out)} keys of cluster {found.cluster}; now at revision {revision}")
    for key in left_out:
        echo(f"left out, since its record cannot be read: {key}", err=True)


async def _backup(addresses: Sequence[str], token: str) -> bytes:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.roles.controller.client import ControllerClient

    async with ClusterAccess(addresses, token, deadline_s=DEADLINE_S) as cluster:
        assert isinstance(cluster.store, ControllerClient)
        return await cluster.store.backup()


async def _restore(addresses: Sequence[str], token: str, data: bytes) -> tuple[Sequence[str], int]:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.wire.constants import ErrorCode

    async with ClusterAccess(addresses, token, deadline_s=DEADLINE_S) as cluster:
        assert isinstance(cluster.store, ControllerClient)
        try:
            reply = await cluster.store.restore(data)
        except RemoteError as error:
            if error.code == ErrorCode.BAD_CONFIGURATION:
                raise ConfigurationError(str(error)) from error
            raise RunFailedError(str(error)) from error
        return reply.left_out, reply.revision
