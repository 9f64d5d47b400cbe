"""`adamctl controller replace`: a new controller takes the place of a lost one."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError, RemoteError, RunFailedError

REPLACE_DEADLINE_S = 20.0


@click.command("replace")
@click.argument("node")
@click.option("--with", "replacement", required=True, metavar="NAME=HOST:PORT", help="Controller that takes its place.")
@options.controller_option
@options.token_option
def replace(node: str, replacement: str, controller: tuple[str, ...], token: str) -> None:
    """Replace the controller NODE, which is lost or has lost its folder, with another one.

    Start the new one first, with an empty --dir and with --peers naming it (under its own name, or under the name of
    the one it replaces) and the live controllers. It waits for this command. A majority of the controllers must be
    alive. NODE's promises are void from then on, so it must never come back.
    """
    addresses = own_controllers(controller, "members of an etcd cluster are replaced with etcdctl")
    name, separator, address = replacement.partition("=")
    if not separator or not name:
        raise ConfigurationError(f"--with: expected NAME=HOST:PORT, found {replacement!r}")
    from adamctl.net import loop
    from adamctl.net.address import parse_address

    loop.run(_replace(addresses, token, node, name, str(parse_address(address))))
    echo(f"{name} at {address} is now a controller and replaces {node}")


def own_controllers(controller: tuple[str, ...], instead: str) -> tuple[str, ...]:
    """Returns the controllers' addresses. Raises ConfigurationError: etcd is in their place; do `instead`."""
    from adamctl.roles.controller.etcd.url import is_etcd

    addresses = options.addresses(controller)
    if is_etcd(addresses[0]):
        raise ConfigurationError(f"{instead}, not with this command (docs/etcd.md)")
    return addresses


async def _replace(addresses: tuple[str, ...], token: str, node: str, name: str, address: str) -> None:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.roles.controller.client import ControllerClient
    from adamctl.wire.constants import ErrorCode

    async with ClusterAccess(addresses, token, deadline_s=REPLACE_DEADLINE_S) as cluster:
        assert isinstance(cluster.store, ControllerClient)
        try:
            await cluster.store.replace_controller(node, name, address)
        except RemoteError as error:
            if error.code == ErrorCode.BAD_CONFIGURATION:
                raise ConfigurationError(str(error)) from error
            raise RunFailedError(str(error)) from error
