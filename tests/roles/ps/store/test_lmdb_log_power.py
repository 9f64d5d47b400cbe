"""Power loss: whatever pages of the file were not synced are lost, and what was acknowledged as durable is there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import lmdb
import pytest

from adamctl.roles.ps.store.lmdb_log import LogStore, Writing
from tests.roles.ps.store_images import PAGE_BYTES, Opening, fill, open_all, put, with_lost_pages

ROOTS = 2 * PAGE_BYTES  # the file's first two pages; LMDB writes one of them last, after it has synced all others


@dataclass(frozen=True)
class Moment:
    """A moment at which the power may fail: pages that differ between the two images are not synced."""

    synced: bytes
    written: bytes
    acknowledged: dict[int, int]


class WatchedStore(LogStore):
    """Notes what is on disk before and after every sync, as LMDB promises it where its flags say that it syncs."""

    def __init__(self, folder: Path) -> None:
        self.moments: list[Moment] = []
        super().__init__(folder)
        assert self._environment is not None
        flags = self._environment.flags()
        self.syncs = flags["sync"] and not flags["map_async"]
        self._synced = self.path.read_bytes()
        self._told: dict[int, int] = {}

    def _step(self, step: Callable[[], list[int] | None]) -> None:
        before = self.path.read_bytes()
        step()
        after = self.path.read_bytes()
        if not self.syncs:
            self.moments.append(Moment(self._synced, after, self._told))
            return
        before_root = before[:ROOTS] + after[ROOTS:]
        self.moments.append(Moment(self._synced, before_root, self._told))  # in the middle of its pages
        self._synced = before_root
        self.moments.append(Moment(self._synced, after, self._told))  # its root is written, and not synced

    def write(self, writings: Sequence[Writing], first: int, taken: Callable[[], None] = lambda: None) -> list[int]:
        sizes = super().write(writings, first, taken)
        told = dict(self._told)
        for writing in writings:
            told[writing.description.shard] = writing.description.counter
        self._told = told
        self.moments.append(Moment(self._synced, self.path.read_bytes(), told))
        return sizes

    def _append(self, writings: Sequence[Writing], first: int, taken: Callable[[], None]) -> list[int]:
        sizes: list[int] = []
        self._step(lambda: sizes.extend(super(WatchedStore, self)._append(writings, first, taken)))
        return sizes

    def _confirm(self) -> None:
        self._step(super()._confirm)


class WithoutConfirmation(WatchedStore):
    """A planted fault: the group is acknowledged when LMDB has committed it."""

    def _confirm(self) -> None:
        return


class WithoutSync(WatchedStore):
    """A planted fault: nothing is synced."""

    def _opened(self, path: Path) -> lmdb.Environment:
        return lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 30, sync=False)


def power_losses(kind: type[WatchedStore], folder: Path, count: int, seed: int) -> tuple[list[Moment], list[Opening]]:
    """Writes a log and lets the power fail at random moments of it, losing random pages."""
    chance = Random(seed)
    store = kind(folder / "log")
    fill(store, chance, 25)
    store.close()
    moments = [chance.choice(store.moments) for _ in range(count)]
    folders = [
        put(folder / f"image-{number}", with_lost_pages(moment.synced, moment.written, chance))
        for number, moment in enumerate(moments)
    ]
    return moments, open_all(folders)


def kept(moment: Moment, opening: Opening) -> bool:
    """Says whether everything that was acknowledged is there; more may be, of the group that was under way."""
    found = opening.contents
    return found is not None and all(found.get(shard, 0) >= value for shard, value in moment.acknowledged.items())


def all_kept(folder: Path, count: int, seed: int) -> None:
    moments, openings = power_losses(WatchedStore, folder, count, seed)
    for number, (moment, opening) in enumerate(zip(moments, openings, strict=True)):
        assert kept(moment, opening), f"seed {seed}, image {number}: {opening}"
        assert not opening.problem, f"seed {seed}, image {number}: {opening}"


def test_power_loss_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    all_kept(tmp_path, 40, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 5))
def test_150_power_losses_keep_what_was_acknowledged(tmp_path: Path, seed: int) -> None:
    all_kept(tmp_path, 150, seed)


@pytest.mark.parametrize("fault", [WithoutConfirmation, WithoutSync])
def test_a_sync_left_out_is_caught(tmp_path: Path, fault: type[WatchedStore]) -> None:
    moments, openings = power_losses(fault, tmp_path, 40, 1)
    assert not all(kept(moment, opening) for moment, opening in zip(moments, openings, strict=True))


SYNCED = """
import sys
from pathlib import Path
from random import Random
from adamctl.roles.ps.store.lmdb_log import LogStore
from tests.roles.ps.store_images import fill
store = LogStore(Path(sys.argv[1]))
fill(store, Random(1), int(sys.argv[2]))
store.close()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace here")
def test_the_system_is_asked_to_sync_each_group_twice(tmp_path: Path) -> None:
    """Once its pages, once its root: what the other tests take from LMDB's flags, seen from outside."""
    trace, groups = tmp_path / "trace", 7
    watched = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
    program = [sys.executable, "-c", SYNCED, str(tmp_path / "log"), str(groups)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*watched, *program], capture_output=True, text=True, env=environment, timeout=60, check=False
    )
    if "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    synced = [line for line in trace.read_text().splitlines() if "/log/log.mdb>) = 0" in line]
    assert len(synced) == 2 * groups, trace.read_text()
