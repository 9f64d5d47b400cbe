"""The samples of a tar shard, their classes, what is damaged, and the index that is kept."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers import tar_index
from adamctl.roles.data.readers.tar_index import ShardIndex, index_of
from tests.roles.data.readers.test_tar_headers import tar_bytes


def index(tmp_path: Path, *files: tuple[str, bytes]) -> ShardIndex:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes(files))
    return index_of(path)


def test_members_with_one_key_are_one_sample(tmp_path: Path) -> None:
    found = index(
        tmp_path, ("a/1.jpg", b"1"), ("a/1.cls", b"7\n"), ("a/2.seg.png", b"x"), ("a/2.cls", b"3"), ("a/2.JPG", b"22")
    )
    assert (found.names, found.sizes_bytes, found.labels, found.damages) == (["a/1.jpg", "a/2.JPG"], [1, 2], [7, 3], [])


@pytest.mark.parametrize(
    ("ending", "content", "label"),
    [
        ("cls", b"12", 12),
        ("cls", b" watch \n", "watch"),
        ("json", b'{"label": 4, "width": 3}', 4),
        ("json", b'{"class": "watch"}', "watch"),
        ("txt", "Übung".encode(), "Übung"),
    ],
)
def test_what_says_the_class(tmp_path: Path, ending: str, content: bytes, label: int | str) -> None:
    assert index(tmp_path, ("1.png", b"x"), (f"1.{ending}", content)).labels == [label]


def test_cls_goes_before_json_and_text(tmp_path: Path) -> None:
    files = (("1.txt", b"a caption"), ("1.json", b'{"label": 2}'), ("1.cls", b"1"), ("1.png", b"x"))
    assert index(tmp_path, *files).labels == [1]


@pytest.mark.parametrize(
    ("ending", "content", "said"),
    [
        ("cls", b"", "found ''"),
        ("cls", b"-1\x00", "found '-1"),
        ("cls", b"\xff", "invalid start byte"),
        ("cls", b"9" * 300, "found '999"),
        ("json", b"{", "Expecting property name"),
        ("json", b"[1]", "none of the keys cls, class, label"),
        ("json", b'{"label": 1.5}', "found 1.5"),
        ("json", b'{"label": true}', "found True"),
        ("json", b'{"label": -1}', "found -1"),
        ("json", b"[" * 100000, "recursion"),
    ],
)
def test_a_class_that_is_none_is_named_with_its_place(tmp_path: Path, ending: str, content: bytes, said: str) -> None:
    found = index(tmp_path, ("1.png", b"x"), (f"1.{ending}", content), ("2.png", b"y"), ("2.cls", b"0"))
    assert found.names == ["2.png"] and found.labels == [0]
    (damage,) = found.damages
    assert f"x.tar: byte 1,536: expected a class in '1.{ending}', found " in damage and said in damage


def test_a_sample_without_an_example_or_a_class(tmp_path: Path) -> None:
    found = index(tmp_path, ("1.cls", b"1"), ("2.jpg", b"x"), ("3.jpg", b"x"), ("3.cls", b"1"))
    assert found.names == ["3.jpg"]
    assert "one of .jpg, .jpeg, .png, .npy of sample '1', found cls" in found.damages[0]
    assert "byte 1,536: expected one of .cls, .json, .txt of sample '2', found jpg" in found.damages[1]


@pytest.mark.parametrize("linked", [("2.png",), ("2.cls",), ("2.png", "2.cls")])
def test_a_sample_with_links_is_one_damaged_example(tmp_path: Path, linked: tuple[str, ...]) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("1.png", "1.cls", "2.png", "2.cls"):
            member = tarfile.TarInfo(name)
            if name in linked:
                member.type, member.linkname = tarfile.LNKTYPE, f"1{name[1:]}"
            else:
                member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))
    found = index_of(path)
    assert found.names == ["1.png"] and len(found.damages) == 1 and "a link, '2." in found.damages[0]


def test_without_members_that_say_a_class_each_image_is_an_example(tmp_path: Path) -> None:
    found = index(
        tmp_path, ("cat/IMG.1.jpg", b"1"), ("cat/IMG.2.jpg", b"2"), ("cat/.hidden.jpg", b"3"), ("README", b"4")
    )
    assert (found.names, found.labels) == (["cat/IMG.1.jpg", "cat/IMG.2.jpg"], None)


def test_examples_before_the_damage_are_there(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(tar_bytes([("1.png", b"x"), ("1.cls", b"1"), ("2.png", b"x" * 600), ("2.cls", b"1")])[:3200])
    found = index_of(path)
    assert found.names == ["1.png"]
    assert "byte 2,560: expected 600 bytes of '2.png'" in found.damages[0]


def test_a_large_index_is_kept_until_the_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tar_index, "KEPT_MEMBERS_MIN", 2)
    made = []
    build = tar_index._build
    monkeypatch.setattr(tar_index, "_build", lambda *args: made.append(1) or build(*args))
    first = index(tmp_path, ("1.png", b"x"), ("1.cls", b"1"))
    assert index_of(tmp_path / "x.tar") == first and len(made) == 1
    (kept,) = (tmp_path / "cache" / "adamctl" / "tar").iterdir()
    kept.write_bytes(b"damaged")
    assert index_of(tmp_path / "x.tar") == first and len(made) == 2
    assert index(tmp_path, ("1.png", b"x"), ("1.cls", b"2"), ("2.png", b"x"), ("2.cls", b"1")).labels == [2, 1]
    assert len(made) == 3


def test_a_small_index_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index(tmp_path, ("1.png", b"x"), ("1.cls", b"1"))
    assert not (tmp_path / "cache").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.tar: expected a tar file, found.*No such file"):
        index_of(tmp_path / "none.tar")
