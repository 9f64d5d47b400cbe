"""Bare names, search folders, and the message that says what to do when data are missing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.catalogue.catalogue import CATALOGUE, find_source


def test_the_first_folder_that_has_it_wins(tmp_path: Path, idx_folder: Callable[..., Path]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    idx_folder("b/tiny")
    idx_folder("tiny")
    config = DataConfig(format="idx", source="tiny", search=(str(tmp_path / "a"), str(tmp_path / "b")))
    assert find_source(config, [str(tmp_path)]) == tmp_path / "b" / "tiny"
    assert find_source(DataConfig(format="idx", source="tiny"), [str(tmp_path)]) == tmp_path / "tiny"


def test_a_path_is_taken_as_it_is(tmp_path: Path, idx_folder: Callable[..., Path]) -> None:
    folder = idx_folder()
    assert find_source(DataConfig(format="idx", source=str(folder))) == folder
    (tmp_path / ".hidden").touch()
    with pytest.raises(ConfigurationError, match=rf"does not exist.*\. In {tmp_path} there is tiny, \.hidden\.$"):
        find_source(DataConfig(format="idx", source=str(tmp_path / "nothing")))
    with pytest.raises(ConfigurationError, match=r'does not exist.* Did you mean "tiny"'):
        find_source(DataConfig(format="idx", source=str(tmp_path / "tinny")))
    with pytest.raises(ConfigurationError, match=f"does not exist.* that is missing is {tmp_path / 'a'}\\."):
        find_source(DataConfig(format="idx", source=str(tmp_path / "a" / "b" / "c")))


def test_a_bare_name_is_not_looked_for_in_the_current_folder(
    idx_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = idx_folder()
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ConfigurationError, match=r"\./tiny"):
        find_source(DataConfig(format="idx", source="tiny"))


def test_an_archive_is_found_without_its_ending(tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()
    assert find_source(DataConfig(format="npz", source="data"), [str(tmp_path)]) == tmp_path / "data.npz"


def test_a_folder_that_is_the_data_set_itself_is_found(tmp_path: Path) -> None:
    for file in CATALOGUE["mnist"].files:
        (tmp_path / file.name).touch()
    assert find_source(DataConfig(format="idx", source="mnist"), [str(tmp_path)]) == tmp_path


def test_digits_have_no_path() -> None:
    assert find_source(DataConfig()) is None


def test_a_missing_data_set_of_the_catalogue_says_everything_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_source(DataConfig(format="idx", source="mnist"), [str(tmp_path)])
    message = str(caught.value)
    assert caught.value.exit_code == 2
    for file in CATALOGUE["mnist"].files:
        assert file.name in message and file.md5 in message and file.sha256 in message
    assert all(mirror in message for mirror in CATALOGUE["mnist"].mirrors)
    assert f"adamctl data fetch mnist --data {tmp_path}" in message


def test_the_catalogues_checksums_are_those_of_the_real_files(mnist: Path) -> None:
    for file in CATALOGUE["mnist"].files:
        content = (mnist / file.name).read_bytes()
        assert len(content) == file.size_bytes
        assert hashlib.md5(content).hexdigest() == file.md5
        assert hashlib.sha256(content).hexdigest() == file.sha256


def test_a_tar_in_a_folder_of_its_name_is_found_for_formats_that_are_read_from_tars(tmp_path: Path) -> None:
    (tmp_path / "fsdd").mkdir()
    (tmp_path / "fsdd" / "fsdd.tar").touch()
    config = DataConfig(format="audio", source="fsdd")
    assert find_source(config, [str(tmp_path)]) == tmp_path / "fsdd" / "fsdd.tar"
    assert find_source(DataConfig(format="idx", source="fsdd"), [str(tmp_path)]) == tmp_path / "fsdd"
    (tmp_path / "fsdd" / "fsdd.tar").unlink()
    assert find_source(config, [str(tmp_path)]) == tmp_path / "fsdd"


def test_a_missing_archive_says_everything_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_source(DataConfig(format="audio", source="fsdd"), [str(tmp_path)])
    archive = CATALOGUE["fsdd"].archive
    assert archive is not None
    for said in (archive.sha256, archive.name, f"{tmp_path}/fsdd/fsdd.tar", *CATALOGUE["fsdd"].mirrors):
        assert said in str(caught.value)
    assert f"adamctl data fetch fsdd --data {tmp_path}" in str(caught.value)
