"""`adamctl tls create-ca`, `create`, `create-operator`, `sign`, `renew`: what needs the authority's key."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError

CommandT = TypeVar("CommandT", bound=Callable[..., Any])

TLS_FOLDER = Path("tls")
CA_FOLDER = TLS_FOLDER / "ca"
_PATH = click.Path(path_type=Path)
_ca_option = click.option(
    "--ca", type=_PATH, default=CA_FOLDER, metavar="DIR", show_default=True, help="Folder of the authority."
)
_days_option = click.option("--days", type=ABOVE_ZERO, help="Days until it expires; by default 90, an operator's 30.")
_POWERFUL = frozenset({"operator", "controller", "host"})


@click.command("create-ca")
@click.argument("cluster", metavar="CLUSTER")
@click.option("--ca", type=_PATH, default=CA_FOLDER, metavar="DIR", show_default=True, help="Where it goes.")
@click.option("--days", type=ABOVE_ZERO, default=3653.0, show_default=True, help="Days until it expires.")
def create_ca(cluster: str, ca: Path, days: float) -> None:
    """Make the authority of a cluster, called CLUSTER. Its key, ca.key, stays on this machine: whoever has it can be
    anyone."""
    from adamctl.cli.tls.files import AUTHORITY_KEY
    from adamctl.net.tls.authority import new_authority
    from adamctl.net.tls.credentials import AUTHORITY, make_private_folder, write_private

    if (ca / AUTHORITY_KEY).exists():
        raise ConfigurationError(
            f"{ca / AUTHORITY_KEY}: there is an authority already; for another one give --ca DIR (docs/tls.md says how "
            "a cluster changes its authority)"
        )
    made = new_authority(cluster, lifetime=timedelta(days=days))
    make_private_folder(ca)
    write_private(ca / AUTHORITY, made.certificate)
    write_private(ca / AUTHORITY_KEY, made.key)  # last: once it is there, so is the rest
    echo(f"{ca}: the authority of cluster {cluster}; {AUTHORITY_KEY} belongs on no node; keep a copy of it in a safe")
    echo("next: adamctl tls create ROLE NODE, adamctl tls create-operator NAME")


@click.command("create")
@click.argument("role", metavar="ROLE")
@click.argument("node", metavar="NODE")
@_ca_option
@click.option("--out", type=_PATH, metavar="DIR", help="Folder of the certificate; by default tls/ROLE-NODE.")
@_days_option
@click.option(
    "--request", metavar="CLUSTER", help="Make only a key and a request, node.csr, for adamctl tls sign elsewhere."
)
def create(role: str, node: str, ca: Path, out: Path | None, days: float | None, request: str | None) -> None:
    """Make the certificate of NODE as ROLE: controller, ps, data, worker, coordinator, client, metrics; or host, for a
    machine's agent. One folder for each process; copy it to the process's machine."""
    _create(role, node, ca, out, days, request)


@click.command("create-operator")
@click.argument("name", metavar="NAME")
@_ca_option
@click.option("--out", type=_PATH, metavar="DIR", help="Folder of the certificate; by default tls/operator-NAME.")
@_days_option
@click.option(
    "--request", metavar="CLUSTER", help="Make only a key and a request, node.csr, for adamctl tls sign elsewhere."
)
def create_operator(name: str, ca: Path, out: Path | None, days: float | None, request: str | None) -> None:
    """Make the certificate of a person, who may use every command on the cluster and start runs on it."""
    _create("operator", name, ca, out, days, request)


def _create(role: str, node: str, ca: Path, out: Path | None, days: float | None, request: str | None) -> None:
    from adamctl.cli.tls.files import REQUEST, read_authority
    from adamctl.net.tls.authority import issue, need_cryptography, new_request
    from adamctl.net.tls.credentials import CERTIFICATE, KEY, make_private_folder, write_folder, write_private
    from adamctl.net.tls.identity import make_identity

    need_cryptography()
    folder = out or TLS_FOLDER / f"{role}-{node}"
    if (folder / CERTIFICATE).exists():
        raise ConfigurationError(f"{folder}: there is a certificate already; adamctl tls renew {folder} replaces it")
    if (folder / KEY).exists():
        raise ConfigurationError(
            f"{folder}: there is a key without a certificate, of a request that is not signed yet (adamctl tls sign) "
            f"or of a command that was interrupted; remove {folder / KEY} to begin anew"
        )
    if request is not None:
        identity = make_identity(request, role, node)
        made = new_request(identity)
        write_private(make_private_folder(folder) / KEY, made.key)
        write_private(folder / REQUEST, made.certificate)
        echo(f"{folder / REQUEST}: a request for {identity}; have it signed where the authority is: adamctl tls sign")
        return
    authority = read_authority(ca)
    identity = make_identity(_cluster_of(authority.certificate, ca), role, node)
    made = issue(authority, identity, lifetime=_lifetime(days))
    write_folder(folder, authority.certificate, *made)
    echo(f"{folder}: {identity}, {_until(made.certificate)}")
    echo("next: copy this folder to its machine, and start the process there with --tls-dir or ADAMCTL_TLS")


@click.command("sign")
@click.argument("request", metavar="CSR", type=_PATH)
@_ca_option
@_days_option
@click.option("--role", help="The role that the request must be for; needed for operators, controllers and hosts.")
@click.option("--out", type=_PATH, metavar="FILE", help="The certificate; by default node.crt beside the request.")
def sign(request: Path, ca: Path, days: float | None, role: str | None, out: Path | None) -> None:
    """Sign the request CSR (adamctl tls create --request), so that the key need not leave its machine.

    Send back node.crt and ca.crt."""
    from adamctl.cli.tls.files import naming, read, read_authority
    from adamctl.net.tls.authority import issue, need_cryptography, requested_identity
    from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE, write_private

    need_cryptography()
    asked = read(request, "a request to sign")
    with naming(request):
        identity = requested_identity(asked)
    if role is None and identity.role in _POWERFUL:
        raise ConfigurationError(
            f"{request}: it asks for {identity}, which may do much; give --role {identity.role} if that is meant"
        )
    if role is not None and identity.role != role:
        raise ConfigurationError(f"{request}: expected a request for a {role}; it asks for {identity}")
    made = issue(read_authority(ca), identity, lifetime=_lifetime(days), request=asked)
    place = out or request.with_name(CERTIFICATE)
    write_private(place, made.certificate)
    echo(f"{place}: {identity}, {_until(made.certificate)}; send it back, with {ca / AUTHORITY}")


@click.command("renew")
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=_PATH)
@_ca_option
@_days_option
def renew(folders: tuple[Path, ...], ca: Path, days: float | None) -> None:
    """Replace the certificates in folders by new ones for the same nodes, with new keys.

    Processes take a changed folder by themselves; copy it to where they run. ca.crt keeps the authorities that it has,
    and gets this one."""
    from adamctl.cli.tls.files import naming, read, read_authority, with_authority
    from adamctl.net.tls.authority import describe, issue
    from adamctl.net.tls.credentials import AUTHORITY, CERTIFICATE, write_folder
    from adamctl.net.tls.identity import parse_identity

    authority = read_authority(ca)
    for folder in folders:
        what = f"a folder with {CERTIFICATE}, as adamctl tls create makes it"
        with naming(folder / CERTIFICATE):
            identity = parse_identity(describe(read(folder / CERTIFICATE, what))[0].uri)
        made = issue(authority, identity, lifetime=_lifetime(days))
        bundle = with_authority(read(folder / AUTHORITY, what), authority.certificate)
        write_folder(folder, bundle, *made)
        echo(f"{folder}: {identity}, {_until(made.certificate)}")


def _lifetime(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)


def _cluster_of(certificate: bytes, ca: Path) -> str:
    from adamctl.net.tls.authority import describe
    from adamctl.net.tls.identity import SCHEME

    uri = describe(certificate)[0].uri
    if not uri:
        raise ConfigurationError(
            f"{ca}: its authority names no cluster; expected one that adamctl tls create-ca made; or --request and sign"
        )
    return uri.removeprefix(SCHEME)


def _until(certificate: bytes) -> str:
    from datetime import UTC, datetime

    from adamctl.net.tls.authority import describe

    return f"until {datetime.fromtimestamp(describe(certificate)[0].not_after_s, UTC):%Y-%m-%d %H:%M} UTC"
