"""Notes of runs that go on: found while their process lives, gone with it, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.launch.live_runs import Noted, is_live, live_runs, state_folder, the_live_run


def test_a_run_is_found_with_its_addresses_until_it_ends(tmp_path: Path) -> None:
    folder, state = tmp_path / "runs" / "mnist" / "003", tmp_path / "state" / "runs"
    note = Noted(folder, state)
    note.update(controllers=("unix:///c",))
    note.update(coordinator=("unix:///r", "tcp://127.0.0.1:1"))
    (run,) = live_runs(state)
    assert (run.folder, run.name, run.pid) == (str(folder), "mnist/003", os.getpid())
    assert (run.controllers, run.coordinator) == (("unix:///c",), ("unix:///r", "tcp://127.0.0.1:1"))
    assert is_live(folder, state)
    assert {path.stat().st_mode & 0o777 for path in state.iterdir()} == {0o600}
    note.remove()
    note.remove()
    assert live_runs(state) == [] and list(state.iterdir()) == []


def test_a_killed_run_leaves_a_note_that_the_next_look_removes(tmp_path: Path) -> None:
    script = "import sys, time; from pathlib import Path; from adamctl.launch.live_runs import Noted\n"
    script += "note = Noted(Path(sys.argv[1]) / 'runs/a/001', Path(sys.argv[1]) / 'state'); print(flush=True)\n"
    script += "time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert [run.pid for run in live_runs(tmp_path / "state")] == [process.pid]
        process.send_signal(signal.SIGKILL)
    assert len(list((tmp_path / "state").iterdir())) == 1
    assert live_runs(tmp_path / "state") == []
    assert list((tmp_path / "state").iterdir()) == []


def test_which_run_is_meant(tmp_path: Path) -> None:
    assert the_live_run(tmp_path) is None
    notes = [Noted(tmp_path / "runs" / name, tmp_path) for name in ("a/001", "a/002", "b/001")]
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    by_path = ("runs/a/001", "runs/b/../a/001", "link/a/001")
    for wanted, folder in (("a/002", "a/002"), ("b", "b/001"), *((f"{tmp_path}/{path}", "a/001") for path in by_path)):
        found = the_live_run(tmp_path, wanted)
        assert found is not None and found.name == folder
    assert the_live_run(tmp_path, "c") is None
    for wanted in ("", "a"):
        with pytest.raises(ConfigurationError, match=r"several runs .*a/002"):
            the_live_run(tmp_path, wanted)
    for note in notes:
        note.remove()


def test_notes_that_nobody_can_write_or_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    note = Noted(tmp_path / "runs/a/001", file / "state")
    assert str(file) in note.problem
    note.update(controllers=("x",))
    note.remove()
    (tmp_path / "state").mkdir()
    for name, content in (("1.json", b"\xff{"), ("2.json", b'{"folder": 3}'), ("3.txt", b"{}")):
        (tmp_path / "state" / name).write_bytes(content)
    assert live_runs(tmp_path / "state") == []


def test_where_notes_are(tmp_path: Path) -> None:
    assert state_folder({"ADAMCTL_STATE": str(tmp_path)}) == tmp_path / "runs"
    assert state_folder({}).parts[-2:] == ("adamctl", "runs")
