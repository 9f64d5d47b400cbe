"""What run folders say of runs that ended well, badly or without a word, and what of them may go."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from adamctl.launch.finding import find_any_run, find_exact_run, find_runs, find_trained_run
from adamctl.launch.known_runs import STORES_KEPT_S, known_runs, look_at, note_end, remove_run, sweep_stores
from adamctl.launch.live_runs import Noted
from adamctl.launch.run_folder import create_run_folder


def make(base: Path, name: str = "a", *, checkpoint: bool = False, stores: bool = False, **summary: object) -> Path:
    """A run folder with what is asked for."""
    folder = create_run_folder(base, name)
    (folder / "experiment.toml").touch()
    if checkpoint:
        (folder / "checkpoints" / "000001").mkdir()
        (folder / "checkpoints" / "000001" / "manifest.json").touch()
    if stores:
        (folder / "stores" / "ps-1").mkdir(parents=True)
        (folder / "stores" / "ps-1" / "log.mdb").write_bytes(b"x" * 5000)
    if summary:
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def progress(folder: Path, **values: object) -> None:
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(json.dumps({"time": 1.0, "kind": "progress", **values}) + "\n")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_states(base: Path, state: Path) -> None:
    ended = make(base, state="ended", passes=3, top1=0.9, best_top1=0.95)
    crashed = make(base, checkpoint=True)
    progress(crashed, state="training", examples=5, pass_number=1, pass_share=0.5, passes_total=3, top1=0.5)
    (crashed / "metrics.jsonl").open("a").write('{"time": 2, "ki')
    failed = make(base, "b")
    live = make(base, "b")
    progress(live, state="evaluating", examples=5)
    note = Noted(live, state)
    elsewhere = make(base.parent / "other", "c")
    second = Noted(elsewhere, state)
    found = {run.folder: run for run in known_runs(base, state)}
    assert {folder: run.state for folder, run in found.items()} == {
        ended: "ended", crashed: "crashed", failed: "failed", live: "evaluating", elsewhere: "starting",
    }  # fmt: skip
    assert [run.live for run in found.values()] == [False, False, False, True, True]
    assert (found[ended].passes, found[ended].top1, found[ended].best_top1) == (3, 0.9, 0.95)
    assert (found[crashed].passes, found[crashed].top1, found[crashed].checkpoints) == (1.5, 0.5, 1)
    assert found[live].described()["run"] == "b/002"
    note.remove()
    second.remove()
    assert look_at(live, state).state == "crashed"


def test_a_front_says_how_a_run_ended_that_its_coordinator_was_only_told_to_leave(base: Path, state: Path) -> None:
    told, killed = make(base, state="stopped", failure="told by the front", passes=1), make(base, checkpoint=True)
    for folder in (told, killed):
        note_end(folder, "failed", "worker-1: a bug\n  the end of its log:\n    more")
        assert (look_at(folder, state).state, look_at(folder, state).failure) == ("failed", "worker-1: a bug")
    assert look_at(told, state).passes == 1, "what else the coordinator has written stays"


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ({"top1": 0.9, "best_top1": 0.95}, ("top-1", 0.9, 0.95)),
        ({"top1": 0.9, "best_top1": 0.95, "metric": "top-1", "metric_value": 0.9}, ("top-1", 0.9, 0.95)),
        ({"top1": None, "metric": "rmse", "metric_value": 2.0, "best_metric_value": 1.5}, ("rmse", 2.0, 1.5)),
    ],
    ids=["of an earlier version", "top-1", "rmse"],
)
def test_the_metric_is_told_as_records_of_each_version_have_it(
    base: Path, state: Path, records: dict[str, object], told: tuple[str, float, float]
) -> None:
    crashed = make(base)
    progress(crashed, state="training", examples=5, **records)
    for folder in (make(base, state="ended", **records), crashed):
        described = look_at(folder, state).described()
        assert tuple(described[key] for key in ("metric", "metric_value", "best_metric_value")) == told


def test_what_a_batch_algorithm_has_done_is_told_of_a_run_in_progress_and_of_one_that_has_ended(
    base: Path, state: Path
) -> None:
    batch = {"algorithm": "lbfgs", "iterations": 4, "evaluations": 5, "loss": 0.5, "of a later version": 1}
    crashed, ended, unreadable, downpour = make(base), make(base, state="ended", batch=batch), make(base), make(base)
    progress(crashed, batch=batch | {"iterations": 3})
    progress(ended, batch=batch | {"iterations": 3})
    progress(unreadable, batch={"algorithm": 7})
    progress(downpour, batch=None)
    found = {run.folder: run.batch for run in known_runs(base, state)}
    assert found[unreadable] is None and found[downpour] is None
    told = [found[folder] for folder in (crashed, ended)]
    assert [one and (one.algorithm, one.iterations, one.evaluations) for one in told] == [
        ("lbfgs", 3, 5),
        ("lbfgs", 4, 5),
    ]
    result = CliRunner().invoke(application, ["run", "show", str(ended), "--run-dir", str(base)])
    assert "  lbfgs          4 iterations, 5 evaluations, 1.00 an iteration" in result.output.splitlines()
    assert "  loss           0.5" in result.output.splitlines()
    result = CliRunner().invoke(application, ["run", "show", str(ended), "--run-dir", str(base), "--json"])
    assert json.loads(result.stdout)["batch"]["iterations"] == 4


def test_a_run_that_goes_on_is_not_removed(base: Path, state: Path) -> None:
    folder = make(base, stores=True)
    note = Noted(folder, state)
    with pytest.raises(ConfigurationError, match="in progress"):
        remove_run(folder, state, base)
    note.remove()
    with open(folder / "stores" / "ps-1" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="in progress"):
            remove_run(folder, state, base)
    assert remove_run(folder, state, base, only_stores=True) > 4096
    assert not (folder / "stores").exists() and (folder / "experiment.toml").exists()
    remove_run(folder, state, base)
    assert not (base / "a").exists(), "nothing is left of the name, either"


@pytest.mark.parametrize("file", ["secrets/token", "metrics.jsonl"])
def test_a_run_that_goes_on_without_a_note_is_not_removed(base: Path, state: Path, file: str) -> None:
    """Of another machine, or another folder of notes: its front keeps the token locked, its coordinator the metrics."""
    folder = make(base)
    (folder / file).parent.mkdir(exist_ok=True)
    with open(folder / file, "w") as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match="in progress"):
            remove_run(folder, state, base)
        assert (folder / "experiment.toml").exists()
    remove_run(folder, state, base)
    assert not folder.exists()


def test_a_run_that_goes_on_is_known_however_its_path_is_spelled(
    base: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(base)
    (base.parent / "other").mkdir()
    (base.parent / "link").symlink_to(base)
    monkeypatch.chdir(base.parent / "other")
    note = Noted(Path("../link/a/001"), state)
    for spelled in (Path("../runs/a/001"), base.parent / "link" / "a" / "001", folder):
        with pytest.raises(ConfigurationError, match="in progress"):
            remove_run(spelled, state, base)
    assert [run.live for run in known_runs(base, state)] == [True], "once"
    note.remove()


def test_what_is_not_of_the_folder_of_runs_stays(base: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    restored = base.parent / "data" / "x"
    make(base)
    restored.mkdir(parents=True)
    remove_run(restored, state, base)
    assert restored.parent.is_dir() and not restored.exists()
    monkeypatch.chdir(base / "a")
    remove_run(Path("001"), state, Path("runs"))
    assert list((base / "a").iterdir()) == []


def test_what_servers_kept_of_a_crashed_run_goes_after_a_day(base: Path, state: Path) -> None:
    left, used, live = (make(base, stores=True) for _ in range(3))
    note = Noted(live, state)
    now = (left / "stores" / "ps-1" / "log.mdb").stat().st_mtime
    assert sweep_stores(base, state, now + STORES_KEPT_S - 60) == []
    with open(used / "stores" / "ps-1" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_stores(base, state, now + STORES_KEPT_S + 60) == [left]
    assert [(folder / "stores").exists() for folder in (left, used, live)] == [False, True, True]
    note.remove()


def test_a_failed_start_does_not_stand_before_good_runs(base: Path, state: Path) -> None:
    good, _ = make(base, checkpoint=True), make(base)
    for wanted in ("a", None):
        assert find_trained_run(wanted, base, state) == good
    assert find_any_run("a", base, state).name == "002", "whose logs say why it failed"
    assert find_trained_run("a/002", base, state).name == "002", "what is named is meant"


def test_a_run_without_a_name(base: Path, state: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there are no runs"):
        find_any_run(None, base, state)
    older, newer = make(base, "b"), make(base, "a")
    os.utime(older / "experiment.toml", (1, 1))
    assert find_any_run(None, base, state) == newer
    elsewhere = make(tmp_path / "other", "c")
    note = Noted(elsewhere, state)
    assert find_any_run(None, base, state) == elsewhere
    assert find_any_run("c", base, state) == elsewhere
    note.remove()
    with pytest.raises(ConfigurationError, match="no run 'c'"):
        find_any_run("c", base, state)


def test_only_an_exact_name_is_removed(base: Path) -> None:
    folder = make(base)
    assert find_exact_run("a/001", base) == find_exact_run(str(folder), base) == folder
    with pytest.raises(ConfigurationError, match="expected one run"):
        find_exact_run("a", base)


def test_several_runs_are_found_by_name_and_by_pattern_each_once(base: Path, state: Path) -> None:
    first, second, other = make(base), make(base), make(base, "b")
    assert find_runs(("a/*", "b", "a/002"), base, state, 9) == [first, second, other]
    assert find_runs(("*",), base, state, 9) == [second, other], "of each name its newest"
    assert find_runs((str(base / "a" / "00[2-9]"),), base, state, 9) == [second]
    assert find_runs((), base, state, 9) in ([first], [second], [other]), "the newest"
    with pytest.raises(ConfigurationError, match="expected at most 2 runs, found 3"):
        find_runs(("a/*", "b"), base, state, 2)
    with pytest.raises(ConfigurationError, match="found none that match"):
        find_runs(("c*",), base, state, 9)
