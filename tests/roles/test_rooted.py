"""No message leads out of the roots, or tells what lies outside of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, RemoteError
from adamctl.roles.data.server import within_roots
from adamctl.roles.rooted import Roots
from adamctl.wire.constants import ErrorCode


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "there").mkdir(parents=True)
    return Roots([tmp_path / "root"], "--checkpoint-root")


def test_a_folder_in_a_root_is_opened_and_made(roots: Roots, tmp_path: Path) -> None:
    for name, create in (("there", False), ("new/one", True), ("", False)):
        os.close(roots.open_folder(str(tmp_path / "root" / name), create=create))
    assert (tmp_path / "root" / "new" / "one").is_dir()
    assert (tmp_path / "root" / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileNotFoundError):
        roots.open_folder(str(tmp_path / "root" / "missing"))


@pytest.mark.parametrize(
    "path",
    ["{}/outside", "{}/nothing", "{}/root/../outside", "{}/rootless", "/", "/etc", "root", "", "{}/root/\0"],
)
def test_what_leads_out_of_the_roots_is_refused_alike_whether_it_exists_or_not(
    roots: Roots, tmp_path: Path, path: str
) -> None:
    with pytest.raises(RemoteError, match="is in none of the folders given by --checkpoint-root") as caught:
        roots.open_folder(path.format(tmp_path), create=True)
    assert caught.value.code == ErrorCode.NOT_ALLOWED
    assert sorted(os.listdir(tmp_path)) == ["outside", "root"]


def hostile(base: Path) -> list[str]:
    """Paths that lead out of the root `base`/root, or try to; `base`/outside is there, and a link to it in the root."""
    root = base / "root"
    (base / "outside").mkdir(exist_ok=True)
    root.mkdir(exist_ok=True)
    if not (root / "link").is_symlink():
        (root / "link").symlink_to(base / "outside")
    return [
        f"{base}/outside", f"{base}/missing", f"{root}/../outside", f"{root}/x/../../outside", f"{root}/..",
        "/etc/passwd", "/", "//", "relative/x", "../outside", "~root", "~/x", f"{root}/a\0b", "\0", "/" + "x" * 5000,
        f"{root}/" + "x" * 300, f"{root}/" + "a/" * 1000, f"{root}/" + "é" * 4000, f"{root}/link", f"{root}/link/x",
        f"file://{base}/outside", "\x1b[2J/x", "\u202e/x",
    ]  # fmt: skip


def test_whatever_path_a_message_has_nothing_is_made_outside_and_few_folders_inside(tmp_path: Path) -> None:
    paths = hostile(tmp_path)
    roots = Roots([tmp_path / "root"], "--checkpoint-root")
    for path in paths:
        for create in (True, False):
            with pytest.raises((RemoteError, OSError)) as caught:
                os.close(roots.open_folder(path, create=create))
            if isinstance(caught.value, RemoteError):
                assert str(caught.value).isprintable() and len(str(caught.value)) < 400
        assert not roots.found_inside(path) or path.startswith(f"{tmp_path}/root/"), path
    assert not list((tmp_path / "outside").iterdir())
    assert sorted(path.name for path in (tmp_path / "root").rglob("*")) == ["link"]


def test_a_folder_to_read_from_holds_no_links(roots: Roots, tmp_path: Path) -> None:
    there = tmp_path / "root" / "there"
    (there / "file").write_text("x")
    roots.check(str(there))
    roots.check(str(tmp_path / "root" / "missing"))
    (there / "planted").symlink_to("/etc/passwd")
    with pytest.raises(RemoteError, match="must hold no links; found 'planted'") as caught:
        roots.check(str(there))
    assert caught.value.code == ErrorCode.NOT_ALLOWED


def test_no_link_is_followed(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    for inside in ("link", "link/deeper"):
        with pytest.raises(OSError, match=r"."):
            roots.open_folder(str(tmp_path / "root" / inside), create=True)
    assert not list((tmp_path / "outside").iterdir())


def test_data_are_looked_for_in_the_roots_alone(roots: Roots, tmp_path: Path) -> None:
    inside, outside = str(tmp_path / "root" / "there"), str(tmp_path / "outside")
    for source in (outside, f"{outside}/missing", f"{inside}/../../outside", "/etc/passwd"):
        with pytest.raises(RemoteError, match="is in none of the folders") as caught:
            within_roots(DataConfig(format="npz", source=source), roots)
        assert caught.value.code == ErrorCode.NOT_ALLOWED
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(RemoteError, match="is in none of the folders"):
        within_roots(DataConfig(format="npz", source=f"{tmp_path}/root/link"), roots)
    config = within_roots(DataConfig(format="npz", source="mnist", search=(outside, inside, "/")), roots)
    assert config.search == (inside,) and config.source == "mnist"
    assert within_roots(DataConfig(format="npz", source=inside), roots).source == inside


def test_a_data_server_fetches_only_from_urls_that_it_was_given() -> None:
    urls = ("s3://bucket/sets", "https://host/x.npz")
    for source in ("s3://bucket/sets/a", "S3://bucket/sets/", "https://host/x.npz"):
        config = DataConfig(format="npz", source=source)
        assert within_roots(config, Roots((), "--data-root"), urls) == config
    for source in ("s3://bucket/other", "https://host/y.npz", "http://169.254.169.254/latest", "memory://x"):
        with pytest.raises(RemoteError, match="is none of the URLs given by --data-root, and below none; add it there"):
            within_roots(DataConfig(format="npz", source=source), Roots(("/",), "--data-root"), urls)
    for source in ("s3://bucket/sets/../other", "filecache::s3://bucket/sets/a"):
        with pytest.raises(ConfigurationError, match="expected one URL"):
            within_roots(DataConfig(format="npz", source=source), Roots(("/",), "--data-root"), urls)


def test_a_file_url_is_a_path_like_any_other(tmp_path: Path) -> None:
    roots = Roots((tmp_path / "root",), "--data-root")
    with pytest.raises(RemoteError, match="is in none of the folders given by --data-root"):
        within_roots(DataConfig(format="npz", source="file:///etc/passwd"), roots, ("s3://bucket",))
    inside = tmp_path / "root" / "x.npz"
    assert within_roots(DataConfig(format="npz", source=f"file://{inside}"), roots).source == str(inside)
