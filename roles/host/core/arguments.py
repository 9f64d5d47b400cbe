"""What an agent may be told to start: known roles, known flags, bounded values, and no path outside the agent's roots.

A front is trusted with a run, not with a machine. So an order names flags of a table; whatever is a path lies in a root
that the agent was started with, or is a folder that the agent chooses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Literal, TypeAlias

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.config.urls import is_url
from adamctl.wire.messages import HostCredentials

Kind: TypeAlias = Literal["switch", "number", "word", "address", "addresses", "checkpoints", "data"]

ARGUMENTS_MAX: Final = 128
CHARACTERS_MAX: Final = 4096
NEEDS_MAX: Final = 64
CREDENTIAL_BYTES_MAX: Final = 16 << 10
"""Of a certificate, a key, or the authorities."""
FOLDER_FLAG: Final[Mapping[str, str]] = {"ps": "--store", "controller": "--dir"}
"""The flag by which a role is given a folder of its own; other roles keep nothing."""

_EVERY_ROLE: Final[Mapping[str, Kind]] = {
    "--controller": "address",
    "--port": "number",
    "--log-level": "word",
    "--capacity": "number",
    "--controller-deadline": "number",
    "--stop-deadline": "number",
    "--wait-for-name": "switch",
}
FLAGS: Final[Mapping[str, Mapping[str, Kind]]] = {
    "controller": {"--peers": "addresses", "--lease": "number", "--lost-after": "number", "--retire-after": "number"},
    "ps": {
        "--apply-threads": "word",
        "--failure-domain": "word",
        "--memory": "word",
        "--loss-window-s": "word",
        "--loss-window-bytes": "word",
        "--forget-after-s": "word",
        "--checkpoint-root": "checkpoints",
    },
    "data": {"--threads": "number", "--memory": "word", "--ahead": "number", "--data": "data", "--data-root": "data"},
    "worker": {"--threads": "number", "--job": "word", "--once": "switch", "--checkpoint-root": "checkpoints"},
}
"""Role -> flag -> what its value is, besides the flags of every role. A coordinator stays with the front."""

_PATTERNS: Final[Mapping[Kind, str]] = {
    "number": r"[0-9]{1,15}(\.[0-9]{1,9})?",
    "word": r"[A-Za-z0-9._%-]{1,128}",
    "address": r"(tcp://)?[A-Za-z0-9.\[\]:_-]{1,255}:[0-9]{1,5}",
    "addresses": r"[A-Za-z0-9._-]{1,128}=[A-Za-z0-9.\[\]:_-]{1,255}:[0-9]{1,5}"
    r"(,[A-Za-z0-9._-]{1,128}=[A-Za-z0-9.\[\]:_-]{1,255}:[0-9]{1,5}){0,6}",
}


@dataclass(frozen=True)
class Roots:
    """Where an order may name paths: folders, absolute, and URLs."""

    data: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    def allows(self, kind: Kind, path: str) -> bool:
        """Returns whether a path of this kind lies in one of its roots, by its name alone."""
        return any(_within(path, root) for root in (self.data if kind == "data" else self.checkpoints))


def refusal(
    role: str, node: str, arguments: Sequence[str], needs: Sequence[Sequence[str]], folder: bool, roots: Roots
) -> str:
    """Returns why an agent does not start a role so; empty if it does."""
    if role not in FLAGS:
        return f"an agent starts {', '.join(FLAGS)}; found role {role[:128]!a}"
    if not is_name(node):
        return f"the name of a node is {NAME_EXPECTED}; found {node[:160]!a}"
    if folder and role not in FOLDER_FLAG:
        return f"a {role} keeps no folder"
    if len(arguments) > ARGUMENTS_MAX or any(len(one) > CHARACTERS_MAX for one in arguments):
        return f"expected at most {ARGUMENTS_MAX} arguments of at most {CHARACTERS_MAX} characters each"
    if len(needs) > NEEDS_MAX or any(len(group) > NEEDS_MAX for group in needs):
        return f"expected at most {NEEDS_MAX} groups of at most {NEEDS_MAX} paths each"
    for path in (path for group in needs for path in group):
        if not roots.allows("data", path):
            return _outside(path, "--data-root", roots.data)
    return _flags_refused({**_EVERY_ROLE, **FLAGS[role]}, role, arguments, roots)


def credentials_refusal(credentials: HostCredentials | None) -> str:
    """Returns why an agent gives no process these credentials; empty if it does. Whose they are, files will tell."""
    if credentials is None:
        return ""
    sizes = [len(one) for one in (credentials.authorities, credentials.certificate, credentials.key)]
    if not all(sizes) or max(sizes) > CREDENTIAL_BYTES_MAX:
        return f"expected authorities, a certificate and a key of 1 to {CREDENTIAL_BYTES_MAX:,} bytes; found {sizes}"
    return ""


def _flags_refused(known: Mapping[str, Kind], role: str, arguments: Sequence[str], roots: Roots) -> str:
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        kind = known.get(flag)
        if kind is None:
            return f"an agent gives a {role} {', '.join(known)}; found {flag[:128]!a}"
        if kind == "switch":
            continue
        if not rest:
            return f"{flag}: expected a value"
        value = rest.pop(0)
        if kind in ("data", "checkpoints"):
            if not roots.allows(kind, value):
                return _outside(value, f"--{'data' if kind == 'data' else 'checkpoint'}-root", getattr(roots, kind))
        elif re.fullmatch(_PATTERNS[kind], value, re.ASCII) is None:
            return f"{flag}: expected a {kind}; found {value[:128]!a}"
    return ""


def _outside(path: str, flag: str, roots: Sequence[str]) -> str:
    return (
        f"{path[:256]!a} lies in none of this agent's roots ({', '.join(roots) or 'there are none'}); "
        f"start the agent with {flag} for a folder that it lies in"
    )


def _within(path: str, root: str) -> bool:
    if is_url(path) or is_url(root):
        plain = ".." not in path.split("/") and path.isprintable()
        return plain and (path == root or path.startswith(root.rstrip("/") + "/"))
    if "\0" in path or not path.startswith("/") or ".." in path.split("/"):
        return False
    return PurePosixPath(path).is_relative_to(PurePosixPath(root))
