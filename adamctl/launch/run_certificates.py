"""The certificates of a run on hosts: made for it, kept in its run folder for its owner's commands, and gone with it.

Its roles trust an authority that is in the front's memory alone, and each has a certificate for its own role and name.
Agents and the front trust another one, which both make of the run's token (`adamctl.net.tls.by_token`), or the user's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from adamctl.config.names import as_name
from adamctl.errors import ConfigurationError
from adamctl.launch.run_token import SECRETS, folders_of
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.authority import Pair, issue, new_authority
from adamctl.net.tls.by_token import LIFETIME, token_credentials, valid_from
from adamctl.net.tls.credentials import (
    CERTIFICATE,
    Credentials,
    environment_credentials,
    make_private_folder,
    write_folder,
)
from adamctl.net.tls.identity import OPERATOR, Identity, command_for
from adamctl.wire.messages import HostCredentials

Trust: TypeAlias = Literal["network", "token", "certificates"]
"""What the front and the agents of a run know each other by: the token alone, on a network that is trusted;
certificates that both make of it; certificates of an authority of the user's."""

TLS = "tls"  # a folder inside that of a run's secrets
FRONT = "front"
"""The name of the front, and of its owner's commands, in certificates."""
AGENTS = "agents"
"""The folder of the certificate by which agents know the front, and it the commands that ask for logs."""


class RunCertificates:
    """The authority of one run, and what it vouches for.

    Args:
        name: NAME/NNN of the run.
        folder: the run folder; its folder of secrets is there.

    Raises:
        ConfigurationError: `cryptography` is not installed.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self._cluster = as_name(name)
        self._folder = folder.absolute() / SECRETS / TLS
        self._authority = new_authority(self._cluster, now=valid_from(), lifetime=LIFETIME)

    def issued(self, role: str, node: str) -> HostCredentials:
        """Returns a new certificate for this role and node alone, to hand over."""
        made = self._issue(role, node)
        return HostCredentials(self._authority.certificate, *made)

    def beside(self, role: str, node: str) -> tuple[str, ...]:
        """Makes a certificate for a role beside the front; returns the flags that give it to the role.

        Raises:
            ConfigurationError: its files cannot be written.
        """
        return ("--tls-dir", str(self._placed(role, node, f"of-{node}")))

    def operator(self) -> Credentials:
        """Makes the certificate with which the front, and its owner's commands, reach the run's roles.

        Raises:
            ConfigurationError: its files cannot be written.
        """
        return Credentials(self._placed(OPERATOR, FRONT, OPERATOR))

    def _issue(self, role: str, node: str) -> Pair:
        return issue(self._authority, Identity(self._cluster, role, node), now=valid_from(), lifetime=LIFETIME)

    def _placed(self, role: str, node: str, name: str) -> Path:
        write_folder(self._folder / name, self._authority.certificate, *self._issue(role, node))
        return self._folder / name


@dataclass(frozen=True)
class RunTls:
    """How a run on hosts speaks TLS: the certificates of its roles, and that with which its front meets agents."""

    certificates: RunCertificates
    agents: Credentials


def make_run_tls(trust: Trust, name: str, folder: Path, token: str, environment: Mapping[str, str]) -> RunTls | None:
    """Returns the certificates of a run; None if it needs none. Its folder of secrets is there.

    Raises:
        ConfigurationError: they cannot be made, or that in ADAMCTL_TLS cannot be used or is not an operator's.
    """
    if trust == "network":
        return None
    place = folder.absolute() / SECRETS / TLS / AGENTS
    given = environment_credentials(environment) if trust == "certificates" else None
    if given is None:
        return RunTls(RunCertificates(name, folder), token_credentials(token, OPERATOR, FRONT, place))
    found = given.current.identity
    if FRONT not in found.roles:
        raise ConfigurationError(
            f"{given.folder}: expected the certificate of an operator, whom agents take orders from; found {found}; "
            f"{command_for(FRONT, found.node)}"
        )
    make_private_folder(place.parent)
    place.symlink_to(given.folder.absolute())  # for commands of the same user, also when it has been renewed
    return RunTls(RunCertificates(name, folder), given)


# --- commands of the run's owner --------------------------------------------------------------------------------------


def run_transport(folder: Path) -> StreamTransport:
    """Returns how to reach the roles of a live run: as it does itself, or, if it has joined a cluster, as usual."""
    return _transport(folder, OPERATOR)


def front_transport(folder: Path) -> StreamTransport:
    """Returns how to reach the front of a live run, likewise."""
    return _transport(folder, AGENTS)


def transport_for(addresses: Collection[str], state: Path) -> StreamTransport:
    """Returns how to reach the roles at these addresses: as `run_transport`, if a live run of this user started them.

    `state` is the folder of notes of live runs.
    """
    for folder in folders_of(addresses, state):
        if (folder / SECRETS).is_dir():
            return run_transport(folder)
    return StreamTransport()


def _transport(folder: Path, name: str) -> StreamTransport:
    if not (folder / SECRETS).is_dir():
        return StreamTransport()
    place = folder / SECRETS / TLS / name
    return StreamTransport(tls=Credentials(place) if (place / CERTIFICATE).is_file() else None)
