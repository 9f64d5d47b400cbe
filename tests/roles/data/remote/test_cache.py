"""Fetched files stay within a bound, are fetched once, and are never removed while somebody uses them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.data.remote import cache as cache_module
from adamctl.roles.data.remote.cache import DiskCache, Entry, Held, cache_folder, to_remove

FETCHED: list[str] = []


@pytest.fixture(autouse=True)
def nothing_fetched() -> None:
    FETCHED.clear()


def entry(name: str, size_bytes: int = 100, identity: str = "1") -> Entry:
    return Entry(f"memory://set/{name}", identity, size_bytes)


def write(of: Entry) -> Callable[[Path], None]:
    def fetch(folder: Path) -> None:
        FETCHED.append(of.url[-1])
        (folder / "file").write_bytes(of.url[-1].encode() * of.size_bytes)

    return fetch


def read(cache: DiskCache, name: str, size_bytes: int = 100, identity: str = "1") -> bytes:
    of = entry(name, size_bytes, identity)
    with cache.open(of, "file", write(of)) as opened:
        return opened.read()


def kept(cache: DiskCache) -> int:
    return sum(path.stat().st_size for path in cache.folder.glob("*/data/*"))


def age(cache: DiskCache, name: str, seconds: float) -> None:
    """Makes an entry look as if it was used some time ago."""
    path = cache.path(entry(name)).parent / "entry.json"
    os.utime(path, (path.stat().st_atime - seconds, path.stat().st_mtime - seconds))


def test_what_was_used_longest_ago_goes_first() -> None:
    held = [Held("new", 10, 9.0), Held("old", 10, 1.0), Held("middle", 10, 5.0)]
    assert [one.name for one in to_remove(held, 10, 40)] == []
    assert [one.name for one in to_remove(held, 11, 40)] == ["old"]
    assert [one.name for one in to_remove(held, 30, 40)] == ["old", "middle"]
    assert len(to_remove(held, 100, 40)) == 3


def test_a_file_is_fetched_once_until_it_changes(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    assert read(cache, "a") == b"a" * 100 == read(DiskCache(tmp_path, 1000), "a")
    assert FETCHED == ["a"]
    read(cache, "a", identity="2")
    assert FETCHED == ["a", "a"]


def test_it_stays_within_its_bound(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 300)
    for number, name in enumerate("abc"):
        read(cache, name)
        age(cache, name, 100 - number)
    read(cache, "a")  # used again: b is the oldest now
    read(cache, "d")
    assert kept(cache) == 300
    FETCHED.clear()
    for name in "acd":
        read(cache, name)
    assert FETCHED == []
    read(cache, "b")
    assert FETCHED == ["b"] and kept(cache) == 300


def test_what_is_open_or_pinned_stays(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 200)
    of = entry("a")
    pin = cache.pin(of, write(of))
    opened = cache.open(entry("b"), "file", write(entry("b")))
    read(cache, "c")
    assert cache.path(of).is_dir() and not cache.path(entry("b")).exists()
    assert opened.read() == b"b" * 100
    with pytest.raises(ConfigurationError, match=r"/d: its 150 bytes do not fit .* 200, 100 of them in use"):
        read(cache, "d", 150)
    os.close(pin)
    assert read(cache, "d", 150) == b"d" * 150


def test_what_is_too_large_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"do not fit into .*set data\.disk_cache higher"):
        read(DiskCache(tmp_path, 99), "a")
    assert FETCHED == []


def test_a_part_of_the_disk_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"total": 1000, "free": 149})
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ConfigurationError, match="which may hold 99"):
        read(DiskCache(tmp_path, 10_000), "a")


def test_a_fetch_that_fails_leaves_nothing(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)

    def fail(folder: Path) -> None:
        (folder / "file").write_bytes(b"half")
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        cache.open(entry("a"), "file", fail)
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
    assert read(cache, "a") == b"a" * 100


def test_a_copy_that_somebody_changed_is_fetched_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    read(cache, "a")
    (cache.path(entry("a")) / "file").write_bytes(b"cut")
    assert read(cache, "a") == b"a" * 100 and FETCHED == ["a", "a"]


def test_many_threads_fetch_a_file_once(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(read(cache, "a"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"a" * 100] * 8 and FETCHED == ["a"]


CHILD = """\
import sys
from pathlib import Path
from adamctl.roles.data.remote.cache import DiskCache, Entry
cache = DiskCache(Path(sys.argv[1]), 350)
for number in range(40):
    of = Entry(f"memory://set/{number % 7}", "1", 100)
    with cache.open(of, "file", lambda folder: (folder / "file").write_bytes(str(number % 7).encode() * 100)) as opened:
        assert opened.read() == str(number % 7).encode() * 100
"""


def test_two_processes_share_it(tmp_path: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)]) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert kept(DiskCache(tmp_path, 350)) <= 300
    assert not list(tmp_path.glob("*.part"))


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 150)
    read(cache, "a")
    cache.path(entry("a")).parent.rename(tmp_path / f"{cache.path(entry('a')).parent.name}.part")
    (tmp_path / "unknown").mkdir()
    read(cache, "b")
    assert kept(cache) == 100 and not list(tmp_path.glob("*.part")) and not (tmp_path / "unknown").exists()


class _Killed(BaseException):
    """In place of a signal that no code of the process sees."""


@pytest.mark.parametrize("first", ["data", "entry.json"])
def test_an_entry_whose_removal_was_cut_off_is_never_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    cache = DiskCache(tmp_path, 150)
    read(cache, "a")
    remove = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        if (path / first).is_dir():
            remove(path / first)
        elif (path / first).exists():
            (path / first).unlink()
        else:
            return
        raise _Killed

    with monkeypatch.context() as patched:
        patched.setattr(cache_module.shutil, "rmtree", killed)
        with pytest.raises(_Killed):
            read(cache, "b")  # there is room for one of them only
    pin = cache.pin(entry("a"), write(entry("a")))
    assert (cache.path(entry("a")) / "file").read_bytes() == b"a" * 100 and FETCHED == ["a", "a"]
    os.close(pin)


def test_an_entry_that_lost_its_list_is_made_again(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, 1000)
    read(cache, "a")
    (cache.path(entry("a")).parent / "entry.json").unlink()
    assert read(cache, "a") == b"a" * 100 and FETCHED == ["a", "a"]


def test_files_are_on_the_disk_before_an_entry_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, synced, sync = DiskCache(tmp_path, 1000), [], os.fsync

    def noted(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name, cache.path(entry("a")).exists()))
        sync(descriptor)

    monkeypatch.setattr(cache_module.os, "fsync", noted)
    read(cache, "a")
    assert {("file", False), ("entry.json", False), ("data", False)} <= set(synced)
    assert synced[-1] == (tmp_path.name, True)


def test_the_folder_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / "data"
    (tmp_path / "data").touch()
    with pytest.raises(ConfigurationError, match=r"cannot be written: .*set ADAMCTL_CACHE to another"):
        read(DiskCache(cache_folder(), 1000), "a")
