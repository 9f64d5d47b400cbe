"""The token of a run: created for it, passed to its roles in the environment, and readable by its owner only."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import live_runs
from adamctl.launch.run_folder import run_folders
from adamctl.roles.durable_file import write_all

SECRETS = "secrets"
TOKEN = "token"  # a file's name
_BYTES = 32
_READ_MAX = 4096


def make_token() -> str:
    """Returns a token that nobody can guess."""
    return secrets.token_urlsafe(_BYTES)


@contextmanager
def kept_token(folder: Path, token: str) -> Iterator[Path]:
    """Keeps a run's token in its run folder, `secrets/token`, for its owner's other commands; yields the path.

    The file is locked during the run. The system releases the lock when the process ends, however it ends, so that
    `sweep_tokens` recognises a token that is no longer used.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    place = folder / SECRETS
    unseen = place / f"{TOKEN}.new"
    descriptor = -1
    try:
        try:
            place.mkdir(mode=0o700)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(unseen, flags, 0o600)
            with suppress(OSError):  # a file system without locks: a sweep cannot lock it either and leaves it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            write_all(descriptor, token.encode() + b"\n")
            os.fsync(descriptor)  # on a shared disk other machines would see it only when it is closed
            unseen.rename(place / TOKEN)
        except OSError as error:
            raise ConfigurationError(f"{place}: cannot store the run's token: {error.strerror}") from error
        yield place / TOKEN
    finally:
        shutil.rmtree(place, ignore_errors=True)  # the run is over and its token useless
        if descriptor >= 0:
            os.close(descriptor)


def sweep_tokens(base: Path) -> list[Path]:
    """Removes the tokens of runs in `base` whose front was killed; returns their run folders."""
    return [folder for folder in run_folders(base) if _forgotten(folder / SECRETS)]


def _forgotten(place: Path) -> bool:
    """Removes a token that no front holds; returns whether it did."""
    try:
        descriptor = os.open(place / TOKEN, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        shutil.rmtree(place)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_token(folder: Path) -> str:
    """Returns a live run's token, by its run folder; empty if it has none or belongs to another user."""
    with suppress(OSError, UnicodeDecodeError), (folder / SECRETS / TOKEN).open("rb") as stream:
        return stream.read(_READ_MAX).decode().strip()
    return ""


def token_for(addresses: Collection[str], state: Path) -> str:
    """Returns the token of this user's live run that has one of these addresses; empty if there is none.

    `state` is the folder of notes of live runs.
    """
    for folder in folders_of(addresses, state):
        if found := read_token(folder):
            return found
    return ""


def folders_of(addresses: Collection[str], state: Path) -> Iterator[Path]:
    """Yields the run folders of this user's live runs that have one of these addresses.

    `state` is the folder of notes of live runs.
    """
    for run in live_runs(state):
        if not set(addresses).isdisjoint((*run.controllers, *run.coordinator)):
            yield Path(run.folder)
