"""Tar files as data: classes, splits, shards, images and arrays, and what is damaged."""

from __future__ import annotations

import io
import os
import tarfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.readers import open_source, peek_source, tar_files
from adamctl.roles.data.readers.imagefolder import ImageFolderSource
from adamctl.roles.data.readers.tar import TarSource
from tests.roles.data.readers.test_image_headers import encoded
from tests.roles.data.readers.test_tar_headers import tar_bytes

image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")
SHAPE = (4, 4, 3)


def picture(level: int) -> bytes:
    file = io.BytesIO()
    image_module.new("RGB", (5, 4), (level, level, level)).save(file, "PNG")
    return file.getvalue()


def array(values: NDArray[Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


Files = list[tuple[str, bytes]]
PATTERNS = ("shard-{000..002}.tar", "shard-*.tar", "shard-{000,001,002}.tar", "shard-00[0-2].tar")


def samples(first: int, count: int, label: Callable[[int], object] = lambda number: number % 3) -> Files:
    """Returns the members of samples whose pixels are their numbers."""
    files = []
    for number in range(first, first + count):
        files += [(f"{number:06d}.png", picture(number)), (f"{number:06d}.cls", str(label(number)).encode())]
    return files


def write(path: Path, files: Files) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(files))
    return path


def opened(path: Path | str, shape: Sequence[int] | None = SHAPE, **keys: Any) -> TarSource:
    source = open_source(DataConfig(format="tar", source=str(path), **keys), Path(path), shape)
    assert isinstance(source, TarSource)
    return source


def loaded(source: TarSource, split: Any = "train") -> NDArray[Any]:
    examples = len(source.labels(split))
    out = np.empty((examples, *source.example_shape), source.dtype)
    source.load(split, np.arange(examples), out)
    return out


def test_samples_with_numbers_as_classes(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "x.tar", samples(0, 40)))
    assert source.classes == ("0", "1", "2")
    seen = []
    for split in ("train", "test"):
        numbers = loaded(source, split)[:, 0, 0, 0]
        assert numbers.tolist() == sorted(numbers) and (numbers % 3 == source.labels(split)).all()
        seen += numbers.tolist()
    assert sorted(seen) == list(range(40)) and 2 <= len(source.labels("test")) <= 16


def test_samples_with_names_as_classes(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "x.tar", samples(0, 40, lambda number: ("dog", "cat")[number % 2])))
    assert source.classes == ("cat", "dog")
    assert (source.labels("train") == 1 - loaded(source)[:, 0, 0, 0] % 2).all()


def test_shards_in_train_and_test_folders(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train" / "b.tar", samples(10, 5))
    write(tmp_path / "set" / "train" / "a.tar", samples(0, 10))
    write(tmp_path / "set" / "test" / "a.tar", samples(50, 4))
    source = opened(tmp_path / "set")
    assert loaded(source)[:, 0, 0, 0].tolist() == list(range(15))
    assert loaded(source, "test")[:, 0, 0, 0].tolist() == [50, 51, 52, 53]
    assert source.blocks("train").tolist() == [10, 5] and source.blocks("test").tolist() == [4]


def test_long_shards_have_blocks_of_1024(tmp_path: Path) -> None:
    files = []
    for number in range(1100):
        files += [(f"{number:06d}.npy", array(np.zeros((1, 2), np.uint8))), (f"{number:06d}.cls", b"0")]
    write(tmp_path / "set" / "train" / "a.tar", files)
    assert opened(tmp_path / "set", (1, 2, 1)).blocks("train").tolist() == [1024, 76]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_shards_of_a_pattern(tmp_path: Path, pattern: str) -> None:
    for number in range(3):
        write(tmp_path / f"shard-{number:03d}.tar", samples(10 * number, 10))
    config = DataConfig(format="tar", source=f"{tmp_path}/{pattern}", test_files="shard-002.tar")
    path = find_source(config)
    source = opened(str(path), test_files="shard-002.tar")
    assert loaded(source)[:, 0, 0, 0].tolist() == list(range(20))
    assert loaded(source, "test")[:, 0, 0, 0].tolist() == list(range(20, 30))


def test_members_that_match_are_the_test_part(tmp_path: Path) -> None:
    source = opened(write(tmp_path / "x.tar", samples(0, 20)), test_files="00000[0-2].png")
    assert loaded(source, "test")[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_a_packed_folder_is_read_as_the_folder_is(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = image_folder(examples=20)
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        archive.add(folder, "images")
    packed, plain = opened(tmp_path / "packed.tar", (6, 6, 3)), ImageFolderSource(folder, (6, 6, 3))
    assert packed.classes == plain.classes
    for split in ("train", "test"):
        out = np.empty((len(plain.labels(split)), 6, 6, 3), np.uint8)
        plain.load(split, np.arange(len(out)), out)
        key = lambda pair: (pair[0], pair[1].tobytes())  # noqa: E731
        ours = sorted(zip(packed.labels(split).tolist(), loaded(packed, split), strict=True), key=key)
        theirs = sorted(zip(plain.labels(split).tolist(), out, strict=True), key=key)
        assert len(ours) == len(theirs) > 0
        assert all(a[0] == b[0] and (a[1] == b[1]).all() for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("dtype", "loaded_as"), [(np.uint8, np.uint8), (np.float64, np.float32), (">i2", np.float32)])
def test_arrays(tmp_path: Path, dtype: Any, loaded_as: Any) -> None:
    values = np.arange(60).reshape(10, 3, 2).astype(dtype)
    files = []
    for number, value in enumerate(values):
        files += [(f"{number}.npy", array(np.asfortranarray(value) if number % 2 else value)), (f"{number}.cls", b"1")]
    source = opened(write(tmp_path / "set" / "train" / "a.tar", files).parent.parent, None)
    assert source.example_shape == (3, 2, 1) and source.dtype == loaded_as
    np.testing.assert_array_equal(loaded(source).reshape(values.shape), values)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (array(np.zeros((3, 3), np.uint8)), r"expected uint8 \[3, 2\] as in the first example, found uint8 \[3, 3\]"),
        (array(np.zeros((3, 2), np.float32)), "found float32"),
        (array(np.zeros((3, 2), np.uint8))[:-1], "6 bytes, found 5"),
        (b"\x93NUMPY\x01\0\x10\0{'descr': 1 + ", "expected a .npy file, found a header that cannot be read"),
        (array(np.array([["a", "b"]])), "expected an array of numbers"),
        (b"", "expected a .npy file, found a header that cannot be read"),
    ],
)
def test_a_damaged_array_is_named_with_its_place(tmp_path: Path, content: bytes, said: str) -> None:
    files = [("0.npy", array(np.zeros((3, 2), np.uint8))), ("0.cls", b"0"), ("1.npy", content), ("1.cls", b"0")]
    source = opened(write(tmp_path / "set" / "train" / "a.tar", files).parent.parent, None)
    with pytest.raises(DamagedDataError, match=rf"a\.tar: byte [\d,]+: 1\.npy: .*{said}"):
        loaded(source)


def test_a_damaged_image_is_named_with_its_place(tmp_path: Path) -> None:
    files = [("0.png", picture(1)), ("0.cls", b"0"), ("1.png", picture(1)[:-30]), ("1.cls", b"0")]
    source = opened(write(tmp_path / "set" / "train" / "a.tar", files).parent.parent)
    with pytest.raises(DamagedDataError, match=r"a\.tar: byte [\d,]+: 1\.png: expected a complete JPEG or PNG image"):
        loaded(source)


def test_a_shard_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", samples(0, 20))
    source = opened(path)
    loaded(source)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DamagedDataError, match=r"x\.tar: expected .* do not change data while a run reads them"):
        loaded(source)
    source = opened(path)
    os.truncate(path, 1000)
    with pytest.raises(DamagedDataError, match=r"x\.tar: expected .* found 1,000"):
        loaded(source)
    source._files._descriptors.clear()
    path.unlink()
    with pytest.raises(DamagedDataError, match=r"x\.tar: byte .*cannot be read"):
        loaded(source)


def test_threads_share_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_files, "OPEN_MAX", 2)
    for number in range(5):
        write(tmp_path / "set" / "train" / f"{number}.tar", samples(10 * number, 10))
    source = opened(tmp_path / "set")
    before = len(os.listdir("/proc/self/fd"))
    results: list[list[int]] = []

    def read(source: TarSource) -> None:
        results.append(loaded(source)[:, 0, 0, 0].tolist())

    threads = [threading.Thread(target=read, args=(source,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del thread, threads
    assert results == [list(range(50))] * 4
    assert len(os.listdir("/proc/self/fd")) == before + 2
    del source
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("files", "keys", "said"),
    [
        ([("README", b"x")], {}, r"expected members \.jpg, \.jpeg, \.png or \.npy, found none"),
        ([("a.png", picture(1)), ("a.cls", b"1"), ("b.npy", b""), ("b.cls", b"1")], {}, "images or arrays.*found both"),
        ([("a.png", picture(1))], {}, "one folder of files per class"),
        (samples(0, 4), {"test_files": "x*"}, r'match "x\*", found none'),
        ([("a.png", picture(1)), ("a.cls", b"9000")], {}, "at most 8192 classes"),
    ],
)
def test_what_is_refused(tmp_path: Path, files: Files, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        opened(write(tmp_path / "x.tar", files), **keys)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            [("a.png", picture(1)), ("a.cls", b"1"), ("b.png", picture(1)), ("b.cls", b"dog")],
            "all as names; found 'dog' and",
        ),
        ([("a/x.png", picture(1)), ("a/x.png", picture(1))], "each member once, found 'a/x.png' twice"),
        ([("a.png", picture(1)), ("a.cls", b"")], "expected a class in 'a.cls'"),
    ],
)
def test_what_is_damaged(tmp_path: Path, files: Files, said: str) -> None:
    with pytest.raises(DamagedDataError, match=said):
        opened(write(tmp_path / "x.tar", files))


def test_shards_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "shard-000.tar", samples(0, 3))
    with pytest.raises(ConfigurationError, match=r"expected a tar file .*shard-001\.tar, found no such file"):
        opened(tmp_path / "shard-{000..001}.tar")
    with pytest.raises(ConfigurationError, match="expected tar files of this pattern, found none"):
        opened(tmp_path / "other-*.tar")
    with pytest.raises(ConfigurationError, match="at most 100,000"):
        opened(tmp_path / "shard-{0..9999999}.tar")
    with pytest.raises(ConfigurationError, match=r"expected tar files \(\*\.tar\), found none"):
        (tmp_path / "empty").mkdir()
        opened(tmp_path / "empty")


def test_a_test_folder_stands_against_test_files(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train" / "a.tar", samples(0, 3))
    write(tmp_path / "set" / "test" / "a.tar", samples(3, 3))
    with pytest.raises(ConfigurationError, match="leave the key out"):
        opened(tmp_path / "set", test_files="a*")


def test_some_shards_with_classes_and_some_without(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.tar", samples(0, 3))
    write(tmp_path / "set" / "b.tar", [("cat/1.png", picture(1))])
    with pytest.raises(ConfigurationError, match="in all shards, or in none"):
        opened(tmp_path / "set")


def test_a_look_decodes_some_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", samples(0, 20))
    config = DataConfig(format="tar", source=str(path))
    assert peek_source(config, path, SHAPE, 5, 1.0).classes == ("0", "1", "2")
    write(path, [("a.jpg", encoded("JPEG")[:200]), ("a.cls", b"0")])
    with pytest.raises(DamagedDataError, match=r"a\.jpg"):
        peek_source(config, path, SHAPE, 5, 1.0)
