"""Which cluster a folder on disk belongs to: kept in a file that is written when its process first joins one."""

from __future__ import annotations

from pathlib import Path

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.durable_file import replace_file

NAME = "cluster"
_BYTES_MAX = 64


def bound_to(folder: Path) -> str:
    """Returns the identity of the cluster that a folder belongs to; empty while it belongs to none.

    Raises:
        DamagedDataError: the file does not contain an identity.
    """
    path = folder / NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return ""
    text = content[:_BYTES_MAX].decode("ascii", "replace").strip()
    if len(content) > _BYTES_MAX or not text or not text.isalnum():
        raise DamagedDataError(f"{path}: expected the identity of a cluster; restore it, or start without this folder")
    return text


def bind(folder: Path, cluster: str) -> None:
    """Binds a folder that belongs to no cluster yet, for good. An empty identity binds nothing.

    Raises:
        ConfigurationError: it belongs to another cluster, or cannot be written to.
        DamagedDataError: as `bound_to`.
    """
    before = bound_to(folder)
    if before == cluster or not cluster:
        return
    if before:
        raise ConfigurationError(
            f"{folder} belongs to cluster {before[:8]}, not to {cluster[:8]}; give it another folder"
        )
    try:
        replace_file(folder / NAME, cluster.encode() + b"\n", folder / f"{NAME}.new")
    except OSError as error:
        raise ConfigurationError(f"{folder / NAME}: {error.strerror}") from error
