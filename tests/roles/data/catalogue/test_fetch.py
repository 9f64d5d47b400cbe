"""Downloading from a local server that answers well, badly, in part or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.roles.data.catalogue.catalogue import CatalogueEntry, CatalogueFile
from adamctl.roles.data.catalogue.fetch import Fetched, fetch
from tests.web import Handler, WebServer

CONTENTS = {"a.gz": bytes(range(256)) * 4000, "b.gz": b"labels" * 100}


def entry(*mirrors: str) -> CatalogueEntry:
    files = tuple(
        CatalogueFile(name, len(content), hashlib.md5(content).hexdigest(), hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    )
    return CatalogueEntry("toy", "idx", "a toy", "none", files, mirrors)


class Answers(Handler):
    """/good/ answers well, /whole/ ignores ranges, /cut/ stops half way, /wrong/ flips a byte, /long/ adds one."""

    def answer(self, asked: str | None) -> None:
        _, kind, name = self.path.split("/")
        content = CONTENTS.get(name)
        if content is None or kind == "missing":
            self.send_error(404)
            return
        if kind == "wrong":
            content = content[:-1] + b"?"
        if kind == "long":
            content += b"!"
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and kind != "whole" else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : len(content) // 2] if kind == "cut" else content[start:])


@pytest.fixture
def site() -> Iterator[WebServer]:
    with WebServer(Answers) as made:
        yield made


def run(folder: Path, *mirrors: str, base_url: str | None = None) -> Fetched:
    return fetch("toy", folder, entry=entry(*mirrors), base_url=base_url, timeout_s=10)


def is_complete(folder: Path) -> bool:
    return {path.name: path.read_bytes() for path in (folder / "toy").iterdir()} == CONTENTS


def test_all_files_come_and_nothing_else_is_left(site: WebServer, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    done = fetch(
        "toy",
        tmp_path / "new" / "folder",
        entry=entry(site.url + "good/"),
        progress=lambda *step: seen.append(step),
        timeout_s=10,
    )
    assert is_complete(tmp_path / "new" / "folder")
    assert done.downloaded == ("a.gz", "b.gz") and done.downloaded_bytes == sum(map(len, CONTENTS.values()))
    assert seen[-1] == ("b.gz", 600, 600) and all(there <= whole for _, there, whole in seen)


def test_what_is_there_and_right_is_not_asked_for_again(site: WebServer, tmp_path: Path) -> None:
    run(tmp_path, site.url + "good/")
    (tmp_path / "toy" / "b.gz").write_bytes(b"damaged")
    site.asked.clear()
    done = run(tmp_path, site.url + "good/")
    assert done.kept == ("a.gz",) and done.downloaded == ("b.gz",)
    assert [path for path, _ in site.asked] == ["/good/b.gz"]
    assert is_complete(tmp_path)


@pytest.mark.parametrize("bad", ["missing", "wrong", "cut", "long"])
def test_the_next_mirror_is_tried(site: WebServer, tmp_path: Path, bad: str) -> None:
    run(tmp_path, site.url + bad + "/", site.url + "good/")
    assert is_complete(tmp_path)


@pytest.mark.parametrize("second", ["good", "whole"])
def test_a_cut_download_is_continued(site: WebServer, tmp_path: Path, second: str) -> None:
    with pytest.raises(UnreachableError, match="run the command again") as caught:
        run(tmp_path, site.url + "cut/")
    assert caught.value.exit_code == 3 and not (tmp_path / "toy" / "a.gz").exists()
    site.asked.clear()
    run(tmp_path, site.url + second + "/")
    assert is_complete(tmp_path)
    assert site.asked[0][1] == f"bytes={len(CONTENTS['a.gz']) // 2}-"


def test_a_wrong_checksum_replaces_nothing(site: WebServer, tmp_path: Path) -> None:
    run(tmp_path, site.url + "good/")
    (tmp_path / "toy" / "b.gz").unlink()
    with pytest.raises(DamagedDataError, match=r"b\.gz: expected sha256") as caught:
        run(tmp_path, site.url + "wrong/", site.url + "missing/")
    assert caught.value.exit_code == 5
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["a.gz"]


def test_an_answer_that_never_ends_is_not_read_to_its_end(site: WebServer, tmp_path: Path) -> None:
    with pytest.raises(DamagedDataError):
        run(tmp_path, site.url + "long/")


def test_every_mirror_that_failed_is_named_with_its_reason(site: WebServer, tmp_path: Path) -> None:
    site.close()
    with pytest.raises(UnreachableError) as caught:
        run(tmp_path, site.url + "one/", site.url + "two/")
    assert f"{site.url}one/a.gz" in str(caught.value) and f"{site.url}two/a.gz" in str(caught.value)


def test_a_404_is_named(site: WebServer, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="HTTP 404"):
        run(tmp_path, site.url + "missing/")


def test_one_place_can_be_given_instead_of_the_mirrors(site: WebServer, tmp_path: Path) -> None:
    run(tmp_path, site.url + "missing/", base_url=site.url + "good")
    assert is_complete(tmp_path)


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="mnist"):
        fetch("nothing", tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(site: WebServer, tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("a file is in the way")
    with pytest.raises(ConfigurationError, match="--data"):
        run(tmp_path, site.url + "good/")
