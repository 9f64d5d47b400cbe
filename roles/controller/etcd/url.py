"""`etcd://host:port[,host:port...][/prefix][?lost_after=SECONDS]`: the etcd cluster used instead of controllers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from adamctl.errors import ConfigurationError
from adamctl.net.address import parse_address

SCHEMES = ("etcd", "etcds")
DEFAULT_ROOT = "/adamctl"
DEFAULT_LOST_AFTER_S = 5
LOST_AFTER_S_MIN = 2
"""The shortest lease that etcd grants by default: one and a half times its election timeout."""
USER_VARIABLE = "ADAMCTL_ETCD_USER"
PASSWORD_VARIABLE = "ADAMCTL_ETCD_PASSWORD"
CA_VARIABLE = "ADAMCTL_ETCD_CA"
CERTIFICATE_VARIABLE = "ADAMCTL_ETCD_CERT"
KEY_VARIABLE = "ADAMCTL_ETCD_KEY"
_EXPECTED = "expected etcd://host:port[,host:port...][/prefix], or etcds:// for TLS"


@dataclass(frozen=True)
class EtcdUrl:
    """Where an etcd cluster is, and which of its keys are used.

    Attributes:
        text: as the user wrote it.
        members: `http://host:port` or `https://host:port` of its members, tried in turn.
        root: the prefix of every key, such as `/adamctl`; several clusters of adamctl may share one etcd.
        lost_after_s: whole seconds without a beacon after which a node counts as lost.
        user, password: what to log in with (ADAMCTL_ETCD_USER, ADAMCTL_ETCD_PASSWORD); empty: no log-in.
        authority, certificate, key: files for TLS (ADAMCTL_ETCD_CA, _CERT, _KEY); empty: the system's authorities, and
            no client certificate.
    """

    text: str
    members: tuple[str, ...]
    root: str = DEFAULT_ROOT
    lost_after_s: int = DEFAULT_LOST_AFTER_S
    user: str = ""
    password: str = ""
    authority: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def places(self) -> tuple[str, ...]:
        """`tcp://host:port` of each member."""
        return tuple(f"tcp://{member.partition('://')[2]}" for member in self.members)


def is_etcd(text: str) -> bool:
    """Returns whether an address is meant as an etcd URL, well-formed or not."""
    return text.partition("://")[0] in SCHEMES and "://" in text


def parse_etcd_url(text: str, environment: Mapping[str, str] | None = None) -> EtcdUrl:
    """Parses the URL of an etcd cluster, together with the variables named in `EtcdUrl`.

    Args:
        environment: used instead of this process's.

    Raises:
        ConfigurationError: it is malformed.
    """
    environment = os.environ if environment is None else environment
    parts = _parts(text)
    if parts.scheme not in SCHEMES or not parts.netloc or parts.fragment:
        raise ConfigurationError(f"{_EXPECTED}; found {text!r}")
    if "@" in parts.netloc:
        hidden = f"{parts.scheme}://...@{parts.netloc.rpartition('@')[2]}"
        raise ConfigurationError(
            f"{_EXPECTED}; found {hidden}: anyone can see arguments, so set {USER_VARIABLE} and "
            f"{PASSWORD_VARIABLE} instead"
        )
    root = parts.path.rstrip("/") or DEFAULT_ROOT
    if not re.fullmatch(r"(/[\w.-]+)+", root) or len(root.encode()) > 128:
        raise ConfigurationError(f"{_EXPECTED}; found {text!r}: a prefix is at most 128 letters, digits and -_./")
    protocol = "https" if parts.scheme == "etcds" else "http"
    members = []
    for member in parts.netloc.split(","):
        address = parse_address(member if ":" in member.rpartition("]")[2] else f"{member}:2379")
        members.append(f"{protocol}://{str(address).removeprefix('tcp://')}")
    return EtcdUrl(
        text,
        tuple(dict.fromkeys(members)),
        root,
        _lost_after_s(text, parts.query),
        environment.get(USER_VARIABLE, ""),
        environment.get(PASSWORD_VARIABLE, ""),
        environment.get(CA_VARIABLE, ""),
        environment.get(CERTIFICATE_VARIABLE, ""),
        environment.get(KEY_VARIABLE, ""),
    )


def etcd_url_inside(text: str, name: str, lost_after_s: int | None = None) -> str:
    """Returns the URL of a part of a cluster's keys: those whose prefix continues with `/name`.

    Args:
        lost_after_s: replaces the URL's value.

    Raises:
        ConfigurationError: the URL, or the resulting one, is malformed.
    """
    url = parse_etcd_url(text)
    parts = _parts(text)
    query = parts.query if lost_after_s is None else f"lost_after={lost_after_s}"
    inside = urlunsplit((parts.scheme, parts.netloc, f"{url.root}/{name}", query, ""))
    return parse_etcd_url(inside).text


def split_job(text: str) -> tuple[str, str]:
    """Returns the URL of an etcd cluster and the name at the end of its path: `etcd://h:1/site/mine` is job `mine`
    of the cluster `etcd://h:1/site`, `etcd://h:1/mine` the same of `etcd://h:1`. The name may be empty.

    Raises:
        ConfigurationError: the URL is malformed.
    """
    parts = _parts(text)
    path, _, job = parts.path.rpartition("/")
    address = urlunsplit((parts.scheme, parts.netloc, path, parts.query, parts.fragment))
    return parse_etcd_url(address).text, job


def _parts(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:  # the text is not repeated: it may hold a password
        what = "found a URL whose host cannot be parsed"
        raise ConfigurationError(f"{_EXPECTED}; {what}; write IPv6 as in etcd://[::1]:2379") from error


def _lost_after_s(text: str, query: str) -> int:
    seconds = DEFAULT_LOST_AFTER_S
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "lost_after":
            raise ConfigurationError(f"{_EXPECTED}; found {text!r}: only ?lost_after=SECONDS may follow")
        if not value.isascii() or not value.isdigit() or not LOST_AFTER_S_MIN <= int(value) <= 3600:
            raise ConfigurationError(
                f"{text!r}: expected lost_after to be {LOST_AFTER_S_MIN} to 3600 whole seconds; found {value!r}"
            )
        seconds = int(value)
    return seconds
