"""Whatever file a reader would read: another one in its place changes the state of the set, and nothing else does."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import msgspec
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.readers import state_of
from tests.roles.data.prepared.sets import prepared

READ = {  # format -> the files that are read, and others beside them
    "npz": (("a.npz", "b.npz"), ("notes.txt", "runs/metrics.npz")),
    "csv": (("a.csv", "more/test.tsv"), ("notes.txt", ".hidden/a.csv")),
    "parquet": (("a.parquet", "test/b.parquet"), ("notes.txt", "a.csv")),
    "npy": (("x_train.npy", "y_train.npy", "x_test.npy"), ("x_other.npy", "runs/x_train.npy")),
    "idx": (("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"), ("notes.txt", "runs/a.npz")),
    "imagefolder": (("cat/1.png", "dog/2.JPG"), ("notes.txt", "cat/.hidden.png", "cat/about.txt")),
    "tar": (("a.tar", "b.tar"), ("notes.txt", "runs/c.tar")),
    "audio": (("one/a.wav", "two/b.flac", "times.txt"), ("notes.txt", "one/about.txt")),
}


def write(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def config_of(format: str, source: Path) -> DataConfig:
    return DataConfig(format=format, source=str(source), alignment="times.txt" if format == "audio" else "")


def state(config: DataConfig) -> bytes:
    return state_of(config, find_source(config))


@pytest.mark.parametrize("format", READ)
def test_a_file_that_is_read_changes_the_state_and_no_other(tmp_path: Path, format: str) -> None:
    read, others = READ[format]
    config = config_of(format, tmp_path)
    for name in read:
        write(tmp_path / name)
    before = state(config)
    for name in others:
        write(tmp_path / name)
    assert state(config) == before
    for name in read:
        (tmp_path / name).write_bytes(b"xy")
        assert state(config) != before
        before = state(config)


def test_another_file_of_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "a.csv")
    config, opened = config_of("csv", tmp_path / "a.csv"), (tmp_path / "a.csv").stat()
    before = state(config)
    write(tmp_path / "new")
    os.utime(tmp_path / "new", ns=(opened.st_atime_ns, opened.st_mtime_ns))
    (tmp_path / "new").rename(tmp_path / "a.csv")
    assert state(config) != before


def test_a_file_that_is_added_or_removed_is_noticed(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/2.png"):
        write(tmp_path / name)
    config = config_of("imagefolder", tmp_path)
    before = state(config)
    write(tmp_path / "cat" / "3.png")
    added = state(config)
    (tmp_path / "cat" / "1.png").unlink()
    assert len({before, added, state(config)}) == 3


def test_a_pattern_of_shards_is_of_its_shards(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.tar")
    config = config_of("tar", tmp_path / "{0..1}.tar")
    before = state(config)
    write(tmp_path / "2.tar", b"xy")
    assert state(config) == before
    write(tmp_path / "1.tar", b"xy")
    assert state(config) != before


def test_a_prepared_set_is_of_the_files_that_it_lists(tmp_path: Path) -> None:
    folder = prepared(tmp_path / "set")
    config = config_of("prepared", folder)
    before = state(config)
    write(folder / "notes.txt")
    assert state(config) == before
    files = sorted(path for path in folder.iterdir() if path.name != "notes.txt")
    for path in files:
        os.utime(path, ns=(0, 0))
        assert state(config) != before, path
        before = state(config)


def test_installed_data_do_not_change() -> None:
    config = DataConfig(format="digits")
    assert state_of(config, None) == state_of(config, None)


def test_of_a_url_it_is_what_its_server_tells() -> None:
    system = fsspec.filesystem("memory")
    system.pipe("/state/a.parquet", b"x")
    config = DataConfig(format="parquet", source="memory://state")
    try:
        before = state(config)
        system.pipe("/state/notes.txt", b"x")
        assert state(config) == before
        system.pipe("/state/a.parquet", b"y")
        assert state(config) != before
    finally:
        system.rm("/state", recursive=True)


def test_an_alignment_elsewhere_is_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path / "one" / "a.wav")
    config = msgspec.structs.replace(config_of("audio", tmp_path), alignment="../times.txt")
    with pytest.raises(ConfigurationError, match="without folders"):
        state(config)
