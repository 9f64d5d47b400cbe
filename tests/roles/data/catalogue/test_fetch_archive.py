"""Data sets that come in an archive: from a local server that packs it well, badly or not at all."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from adamctl.errors import DamagedDataError, UnreachableError
from adamctl.roles.data.catalogue.catalogue import CATALOGUE, CatalogueArchive, CatalogueEntry
from adamctl.roles.data.catalogue.fetch import Fetched, fetch
from adamctl.roles.data.catalogue.fetch_archive import contents_checksum, holds
from adamctl.roles.data.readers.tar_headers import members
from tests.web import Handler, WebServer

WANTED = {"1_a.wav": b"one", "0_a.wav": b"nought" * 99}
ARCHIVE = CatalogueArchive(
    "v1.tar.gz", "recordings/", ".wav", 2, sum(map(len, WANTED.values())), contents_checksum(WANTED.items())
)


def packed(files: dict[str, bytes]) -> bytes:
    """An archive as its publisher makes it, with other files and folders in it."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as archive:
        for name, content in {"README.md": b"about", **{f"recordings/{name}": files[name] for name in files}}.items():
            member = tarfile.TarInfo(f"set-1/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


ARCHIVES = {
    "/good/v1.tar.gz": packed(WANTED),
    "/again/v1.tar.gz": packed(dict(reversed(WANTED.items()))),  # the same files, another archive
    "/wrong/v1.tar.gz": packed({**WANTED, "1_a.wav": b"two"}),
    "/fewer/v1.tar.gz": packed({"1_a.wav": b"one"}),
    "/larger/v1.tar.gz": packed({**WANTED, "1_a.wav": b"one" * 1000}),
    "/cut/v1.tar.gz": packed(WANTED)[:-20],
    "/page/v1.tar.gz": b"<html>moved</html>",
}


class Answers(Handler):
    def answer(self, asked: str | None) -> None:
        if self.path not in ARCHIVES:
            self.send_error(404)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(ARCHIVES[self.path])


@pytest.fixture
def site() -> Iterator[WebServer]:
    with WebServer(Answers) as made:
        yield made


def run(folder: Path, *mirrors: str) -> Fetched:
    entry = CatalogueEntry("toy", "audio", "a toy", "none", (), mirrors, ARCHIVE)
    return fetch("toy", folder, entry=entry, timeout_s=10)


def contents(tar: Path) -> dict[str, bytes]:
    with tar.open("rb") as file:
        whole = tar.read_bytes()
        return {one.name: whole[one.offset : one.offset + one.size_bytes] for one in members(file.fileno(), tar, [])}


def test_the_wanted_files_come_in_a_tar_and_nothing_else_is_left(site: WebServer, tmp_path: Path) -> None:
    done = run(tmp_path, site.url + "good/")
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["toy.tar"]
    assert contents(tmp_path / "toy" / "toy.tar") == {f"recordings/{name}": WANTED[name] for name in sorted(WANTED)}
    assert done.downloaded == ("toy.tar",) and done.downloaded_bytes == len(ARCHIVES["/good/v1.tar.gz"])


def test_another_archive_of_the_same_files_makes_the_same_tar(site: WebServer, tmp_path: Path) -> None:
    run(tmp_path / "a", site.url + "good/")
    run(tmp_path / "b", site.url + "again/")
    assert (tmp_path / "a/toy/toy.tar").read_bytes() == (tmp_path / "b/toy/toy.tar").read_bytes()


def test_what_is_there_and_right_is_not_asked_for_again(site: WebServer, tmp_path: Path) -> None:
    run(tmp_path, site.url + "good/")
    site.asked.clear()
    assert run(tmp_path, site.url + "good/").kept == ("toy.tar",) and not site.asked
    tar = tmp_path / "toy" / "toy.tar"
    content = tar.read_bytes()
    tar.write_bytes(content.replace(b"one", b"two"))
    assert run(tmp_path, site.url + "good/").downloaded == ("toy.tar",)
    assert tar.read_bytes() == content


@pytest.mark.parametrize("bad", ["missing", "wrong", "fewer", "larger", "cut", "page"])
def test_the_next_mirror_is_tried(site: WebServer, tmp_path: Path, bad: str) -> None:
    run(tmp_path, f"{site.url}{bad}/", site.url + "good/")
    assert holds(tmp_path / "toy" / "toy.tar", ARCHIVE)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("wrong", "expected sha256 [0-9a-f]{64} of its files, found [0-9a-f]{64}"),
        ("fewer", "expected 2 files, found 1"),
        ("larger", "expected 597 bytes of files, found more"),
        ("cut", r"expected a \.tar\.gz, found"),
        ("page", r"expected a \.tar\.gz, found"),
    ],
)
def test_what_is_not_right_replaces_nothing(site: WebServer, tmp_path: Path, bad: str, said: str) -> None:
    with pytest.raises(DamagedDataError, match=rf"nothing was replaced\n  {site.url}{bad}/v1\.tar\.gz: {said}"):
        run(tmp_path, f"{site.url}{bad}/")
    assert not list((tmp_path / "toy").iterdir())


def test_what_cannot_be_reached_is_named(site: WebServer, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="HTTP 404"):
        run(tmp_path, site.url + "missing/")


def test_the_catalogues_spoken_digits_are_the_real_ones(fsdd: Path) -> None:
    archive = CATALOGUE["fsdd"].archive
    assert archive is not None and holds(fsdd, archive)
