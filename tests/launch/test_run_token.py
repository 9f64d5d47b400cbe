"""The token of a run: there for its owner as long as the run goes on, and removed later whoever was killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.launch.run_folder import create_run_folder
from adamctl.launch.run_token import kept_token, read_token, sweep_tokens


def make(base: Path, name: str = "a") -> Path:
    folder = create_run_folder(base, name)
    (folder / "experiment.toml").touch()
    return folder


def hold(folder: Path, held: Event) -> None:
    with kept_token(folder, "secret"):
        held.set()
        signal.pause()


def test_a_token_is_there_as_long_as_the_run(tmp_path: Path) -> None:
    folder = make(tmp_path)
    with kept_token(folder, "secret") as file:
        assert file == folder / "secrets" / "token" and read_token(folder) == "secret"
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in file.parent.iterdir()] == ["token"]
        assert sweep_tokens(tmp_path) == [], "its run goes on, whatever the notes of live runs say"
        assert read_token(folder) == "secret"
    assert not (folder / "secrets").exists()


def test_the_token_of_a_killed_front_is_swept(tmp_path: Path) -> None:
    killed, living = make(tmp_path), make(tmp_path, "b")
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    front = context.Process(target=hold, args=(killed, held))
    front.start()
    try:
        assert held.wait(60)
        with kept_token(living, "other"):
            assert sweep_tokens(tmp_path) == []
            assert front.pid is not None
            os.kill(front.pid, signal.SIGKILL)
            front.join(30)
            assert read_token(killed) == "secret", "nobody was there to remove it"
            assert sweep_tokens(tmp_path) == [killed]
            assert not (killed / "secrets").exists() and read_token(living) == "other"
    finally:
        front.kill()
        front.join(30)


def test_a_folder_that_takes_no_token(tmp_path: Path) -> None:
    folder = make(tmp_path)
    (folder / "secrets").write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot store the run's token"), kept_token(folder, "secret"):
        pass
