"""What a soak writes down as it goes, so that it can go on where it was: its state, its account, samples and faults."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from adamctl.bench.soak.plan import Account, Sample
from adamctl.errors import ConfigurationError
from adamctl.wire.unreadable import UNREADABLE

STATE, SAMPLES, FAULTS, REPORT = "state.json", "samples.jsonl", "faults.jsonl", "report.json"
_ENTRY = struct.Struct("<QQ")


class State(msgspec.Struct, kw_only=True):
    """How far a soak is.

    Attributes:
        seconds, seed, acks: what was asked for.
        ports: of the processes, by node.
        elapsed_s: of all starts together.
        faults: begun so far.
        starts: how often it was begun or taken up again; names the account and the base of this start.
        done: the report is written.
    """

    seconds: float
    seed: int
    acks: str
    ports: dict[str, int]
    elapsed_s: float = 0.0
    faults: int = 0
    starts: int = 0
    done: bool = False


class Record:
    """The files of one soak in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def state(self) -> State | None:
        """Returns the state of a soak that was begun here. Raises ConfigurationError: its file cannot be read."""
        try:
            return msgspec.json.decode((self.folder / STATE).read_bytes(), type=State)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            text = f"--folder {self.folder}: {STATE} cannot be read ({error}); give another folder"
            raise ConfigurationError(text) from error

    def save(self, state: State) -> None:
        """Replaces the state."""
        self._replace(STATE, msgspec.json.encode(state))

    def save_report(self, report: dict[str, Any]) -> None:
        self._replace(REPORT, json.dumps(report, indent=2).encode() + b"\n")

    def base(self, start: int) -> NDArray[np.float32] | None:
        """Returns the values that the pushes of a start were added to; None: they are not written yet."""
        path = self._base(start)
        return np.load(path, allow_pickle=False) if path.is_file() else None

    def save_base(self, start: int, values: NDArray[np.float32]) -> None:
        new = self.folder / "base.new.npy"
        np.save(new, values)
        new.replace(self._base(start))

    def account_file(self, start: int) -> Path:
        return self.folder / f"account-{start}"

    def _base(self, start: int) -> Path:
        return self.folder / f"base-{start}.npy"

    def _replace(self, name: str, content: bytes) -> None:
        new = self.folder / f"{name}.new"
        new.write_bytes(content)
        new.replace(self.folder / name)

    # --- lines --------------------------------------------------------------------------------------------------------

    def add(self, name: str, values: dict[str, Any]) -> None:
        """Appends a line."""
        with (self.folder / name).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(values) + "\n")

    def lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yields the lines; one that was cut off by the end of the process is left out."""
        path = self.folder / name
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                yield json.loads(line)
            except ValueError:
                continue

    def samples(self) -> list[Sample]:
        return [Sample(one["at_s"], one["since_start_s"], one["resident_mib"]) for one in self.lines(SAMPLES)]


class AccountFile:
    """Pushes of several clients, counted before and after each: true even if this process is killed between."""

    def __init__(self, path: Path, clients: int) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        content = os.pread(self._fd, clients * _ENTRY.size, 0).ljust(clients * _ENTRY.size, b"\0")
        self._entries = [list(_ENTRY.unpack_from(content, n * _ENTRY.size)) for n in range(clients)]

    @property
    def total(self) -> Account:
        return Account(sum(sent for sent, _ in self._entries), sum(done for _, done in self._entries))

    def sends(self, client: int) -> None:
        """A push is about to be sent."""
        self._count(client, 0)

    def acknowledged(self, client: int) -> None:
        """Its acknowledgement has come."""
        self._count(client, 1)

    def close(self) -> None:
        os.close(self._fd)

    def _count(self, client: int, which: int) -> None:
        entry = self._entries[client]
        entry[which] += 1
        os.pwrite(self._fd, _ENTRY.pack(*entry), client * _ENTRY.size)
