"""The token of a run: made for it, known to its roles by their environment, and kept where only its owner reads it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import live_runs

SECRETS = "secrets"
TOKEN = "token"  # a file's name
_BYTES = 32
_READ_MAX = 4096


def make_token() -> str:
    """Returns a token that nobody can guess."""
    return secrets.token_urlsafe(_BYTES)


def keep_token(folder: Path, token: str) -> Path:
    """Writes a run's token into its run folder, `secrets/token`, for other commands of its owner; returns where.

    Raises:
        ConfigurationError: it cannot be written.
    """
    place = folder / SECRETS
    try:
        place.mkdir(mode=0o700)
        descriptor = os.open(place / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, token.encode() + b"\n")
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(f"{place}: the run's token cannot be kept there: {error.strerror}") from error
    return place / TOKEN


def forget_token(folder: Path) -> None:
    """The run is over, and its token of no more use."""
    shutil.rmtree(folder / SECRETS, ignore_errors=True)


def read_token(folder: Path) -> str:
    """Returns the token of a run that goes on, by its run folder; empty if it has none, or is another user's."""
    with suppress(OSError, UnicodeDecodeError), (folder / SECRETS / TOKEN).open("rb") as stream:
        return stream.read(_READ_MAX).decode().strip()
    return ""


def token_for(addresses: Collection[str], state: Path) -> str:
    """Returns the token of this user's live run of which one of these addresses is; empty if there is none.

    `state` is the folder of notes of live runs.
    """
    for run in live_runs(state):
        if not set(addresses).isdisjoint((*run.controllers, *run.coordinator)):
            found = read_token(Path(run.folder))
            if found:
                return found
    return ""
