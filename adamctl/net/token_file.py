"""A file that holds the cluster's secret."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from adamctl.errors import ConfigurationError

_BYTES_MAX = 4096
_OTHERS = stat.S_IROTH | stat.S_IWOTH


def environment_token(environment: Mapping[str, str]) -> str:
    """Returns the token from ADAMCTL_TOKEN_FILE or ADAMCTL_TOKEN; empty if there is none. The file takes precedence.

    Raises:
        ConfigurationError: as `read_token_file`.
    """
    path = environment.get("ADAMCTL_TOKEN_FILE", "")
    return read_token_file(Path(path), "ADAMCTL_TOKEN_FILE") if path else environment.get("ADAMCTL_TOKEN", "")


def read_token_file(path: Path, what: str) -> str:
    """Returns the token in a file, without white space at its ends. `what` names the setting in errors.

    Raises:
        ConfigurationError: it cannot be read, every user can read or write it, or it holds no token.
    """
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{what} {path}: {error.strerror}") from error
    if stat.S_ISREG(mode) and mode & _OTHERS:
        raise ConfigurationError(f"{what} {path}: every user of this machine can read or write it; run chmod 600 on it")
    try:
        token = content.decode("ascii").strip() if len(content) <= _BYTES_MAX else ""
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable():
        raise ConfigurationError(f"{what} {path}: expected one line of up to {_BYTES_MAX} printable ASCII characters")
    return token
