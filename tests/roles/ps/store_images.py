"""Logs for tests: small records, and images of the file as a crash would leave it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryRecord
from adamctl.roles.ps.store.lmdb_log import LogStore, Writing
from adamctl.roles.ps.store.record import JobIdentity, ShardState

PAGE_BYTES = 4096
JOB = JobIdentity("mnist", 7, "hash", "momentum")


def state(shard: int, value: int, size: int = 300, job: JobIdentity = JOB) -> tuple[ShardState, list[np.ndarray]]:
    """A shard with its version in every element, so that the content tells what it is."""
    memory = MemoryRecord((ClientRecord("w", 1, value),))
    described = ShardState(job, shard, size, 2, 1, value, value, memory)
    return described, [np.full(size, value, np.float32), np.full(size, -value, np.float32)]


def writing(sequence: int, shard: int, value: int, size: int = 300) -> Writing:
    described, arrays = state(shard, value, size)
    return Writing(sequence, described, arrays)


def contents(store: LogStore) -> dict[int, int]:
    """Returns shard -> the value that its last record holds, having looked at every element."""
    found: dict[int, int] = {}
    for record in store.found:
        assert isinstance(record.description, ShardState)
        if record.sequence in store.loaded:
            pairs = zip(store.loaded[record.sequence], store.read(record.sequence), strict=True)
            assert all(np.array_equal(loaded, read) for loaded, read in pairs)
        values, rule_state = store.read(record.sequence)
        (value,) = set(values.tolist())
        assert set(rule_state.tolist()) == {-value}
        assert record.description.counter == record.description.memory.clients[0].sequence == value
        found[record.description.shard] = int(value)
    return found


def fill(store: LogStore, chance: Random, groups: int, shards: int = 6, size: int = 300) -> dict[int, int]:
    """Writes random groups and keeps the log short; returns shard -> the last value written."""
    last: dict[int, int] = {}
    at: dict[int, int] = {}
    for number in range(groups):
        chosen = chance.sample(range(shards), chance.randint(1, shards))
        writings = []
        for shard in chosen:
            sequence = store.next_sequence + len(writings)
            last[shard] = last.get(shard, 0) + number + 1
            at[shard] = sequence
            writings.append(writing(sequence, shard, last[shard], size))
        store.write(writings, min(at.values()))
    return last


def pages(data: bytes) -> list[bytes]:
    return [data[start : start + PAGE_BYTES] for start in range(0, len(data), PAGE_BYTES)]


def with_lost_pages(synced: bytes, written: bytes, chance: Random, keep: set[int] | None = None) -> bytes:
    """Returns what a power loss may leave: of the pages written since the last sync, any subset is there.

    `keep` are pages that are known to be on disk as written.
    """
    before, after = pages(synced), pages(written)
    share = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
    image = []
    for number, page in enumerate(after):
        old = before[number] if number < len(before) else bytes(PAGE_BYTES)
        lost = page != old and (keep is None or number not in keep) and chance.random() < share
        image.append(old if lost else page)
    return b"".join(image)


def put(folder: Path, image: bytes) -> Path:
    """Makes a store's folder of an image of its file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.mdb").write_bytes(image)
    return folder


_OPEN_ALL = """
import json, os, sys
from pathlib import Path
from adamctl.roles.ps.store import lmdb_log as store
from tests.roles.ps.store_images import contents, writing

read_log = store.read_log

def read_and_tell(path):
    found = read_log(path)
    os.write(1, b"sound ")
    return found

store.read_log = read_and_tell
for folder in sys.stdin.read().splitlines():
    child = os.fork()
    if child == 0:
        answer = {}
        try:
            opened = store.LogStore(Path(folder))
            answer["contents"] = contents(opened)
            for _ in range(2):  # its lists of free pages are in use now
                first = opened.next_sequence
                opened.write([writing(first + n, n, 1) for n in range(3)], first)
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        os.write(1, json.dumps(answer).encode() + b"\\n")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        os.write(1, json.dumps({"died": status}).encode() + b"\\n")
"""


@dataclass(frozen=True)
class Opening:
    """What came of opening an image, and of writing to it, in a process of its own.

    Attributes:
        sound: the check had nothing against it.
        contents: shard -> value; None if it was not opened.
        problem: why it was not opened or could not be written to.
    """

    sound: bool
    contents: dict[int, int] | None
    problem: str


def open_all(folders: list[Path]) -> list[Opening]:
    """Opens every folder's log, each in a child of one process that has all modules loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _OPEN_ALL], input="\n".join(map(str, folders)), capture_output=True, text=True,
        timeout=30 + len(folders), check=True,
    )  # fmt: skip
    openings = []
    for line in done.stdout.splitlines():
        sound = line.startswith("sound ")
        answer = json.loads(line.removeprefix("sound "))
        found = {int(shard): value for shard, value in answer["contents"].items()} if "contents" in answer else None
        openings.append(Opening(sound, found, str(answer.get("error") or answer.get("died") or "")))
    assert len(openings) == len(folders), done.stderr
    return openings
