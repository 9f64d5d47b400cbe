"""Where runs are kept and how they are named on the command line."""

import os
from collections.abc import Callable
from errno import EACCES
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError
from adamctl.launch.run_folder import checkpoints, create_run_folder, find_run, run_folders


def test_folders_are_numbered_from_one(tmp_path: Path) -> None:
    first, second = create_run_folder(tmp_path, "mnist"), create_run_folder(tmp_path, "mnist")
    assert (first.name, second.name) == ("001", "002")
    assert {entry.name for entry in first.iterdir()} == {"logs", "checkpoints"}


def test_numbers_go_on_after_the_highest(tmp_path: Path) -> None:
    for other in ("041", "²", "notes"):
        (tmp_path / "mnist" / other).mkdir(parents=True)
    assert create_run_folder(tmp_path, "mnist").name == "042"


def test_a_run_is_found_by_path_name_and_number(tmp_path: Path) -> None:
    folders = [create_run_folder(tmp_path, "mnist") for _ in range(3)]
    for folder in folders:
        (folder / "experiment.toml").touch()
    assert find_run(str(folders[0]), tmp_path) == folders[0]
    assert find_run("mnist/002", tmp_path) == folders[1]
    assert find_run("mnist", tmp_path) == folders[2]


def test_an_unknown_run_names_those_there_are(tmp_path: Path) -> None:
    create_run_folder(tmp_path, "mnist")
    with pytest.raises(ConfigurationError, match=r'no run \'mnits\'\. Did you mean "mnist"\? Runs in .*: mnist\.'):
        find_run("mnits", tmp_path)


def test_a_checkpoint_counts_once_it_has_its_manifest(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path, "mnist")
    for number, finished in ((1, True), (2, True), (3, False)):
        place = folder / "checkpoints" / f"{number:06d}"
        place.mkdir()
        if finished:
            (place / "manifest.json").touch()
    assert [path.name for path in checkpoints(folder)] == ["000001", "000002"]


def test_runs_of_another_user_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run as root, or in a folder that users share."""
    for name in ("digits", "digits", "mnist"):
        (create_run_folder(tmp_path, name) / "experiment.toml").touch()
    (tmp_path / "notes").touch()
    closed = (str(tmp_path / "mnist"), str(tmp_path / "digits" / "001"))

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *given: Any, **named: Any) -> Any:
            if any(str(path) == one or str(path).startswith(f"{one}/") for one in closed):
                raise PermissionError(EACCES, "Permission denied", str(path))
            return call(path, *given, **named)

        return look

    monkeypatch.setattr(os, "listdir", guarded(os.listdir))
    monkeypatch.setattr(os, "scandir", guarded(os.scandir))
    monkeypatch.setattr(Path, "is_file", guarded(Path.is_file))
    assert list(run_folders(tmp_path)) == [tmp_path / "digits" / "002"]
    assert find_run("digits", tmp_path) == tmp_path / "digits" / "002"
    with pytest.raises(ConfigurationError, match=r"mnist: Permission denied; it is another user's"):
        find_run("mnist", tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(ConfigurationError, match="choose another --run-dir"):
        create_run_folder(blocked, "mnist")


def test_all_folders_that_are_made_are_their_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = create_run_folder(tmp_path / "runs", "mnist")
    finally:
        os.umask(before)
    made = (folder.parent.parent, folder.parent, folder, *folder.iterdir())
    assert {path.name: path.stat().st_mode & 0o777 for path in made} == dict.fromkeys(
        ("runs", "mnist", "001", "logs", "checkpoints"), 0o700
    )
