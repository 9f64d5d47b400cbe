"""`adamctl ckpt`: what is shown, found damaged, restored and removed. `save` is tested where a run is going on."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner, Result

from adamctl.cli.checkpoint.store import plan_pruning, stored
from adamctl.cli.main import application
from adamctl.config.resolved import read_resolved
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.coordinator.checkpoint import manifest
from adamctl.roles.coordinator.checkpoint.manifest import find_resume
from adamctl.roles.ps.checkpoint_files import ShardFile, load_parameters
from tests.cli.checkpoints_for_tests import PASS_EXAMPLES, flip, make_experiment, make_run


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(application, ["ckpt", *map(str, arguments)], standalone_mode=False)


def values(*arguments: str | Path) -> dict[str, Any]:
    result = invoke(*arguments, "--json")
    assert result.exception is None, result.exception
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["schema_version"] == 1
    return found


def damage_last(run: Path) -> Path:
    path = manifest.finished(run / "checkpoints")[-1] / "shards-ps-0.adam"
    flip(path, ShardFile(path).shards[0].offset)
    return path


def test_a_checkpoint_that_its_run_removes_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = make_run(tmp_path, 3), manifest.read_manifest

    def remove_the_first(folder: Path) -> manifest.Manifest:
        found = read(folder)
        manifest.abandon(run / "checkpoints" / "000001")
        return found

    monkeypatch.setattr(manifest, "read_manifest", remove_the_first)
    assert [one.folder.name for one in stored(run / "checkpoints")] == ["000002", "000003"]


def test_list_for_programs(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2)
    for other in ("000003", "²", "notes"):
        (run / "checkpoints" / other).mkdir()
    short = run / "checkpoints" / "000001" / "shards-ps-1.adam"
    short.write_bytes(short.read_bytes()[:-1])
    first, second, third = values("list", run)["checkpoints"]
    assert (first["state"], second["state"], third["state"]) == ("damaged", "complete", "unfinished")
    assert [one["complete"] for one in (first, second, third)] == [False, True, False]
    assert "shards-ps-1.adam" in first["damage"] and not first["run_complete"]
    assert (second["passes"], second["examples"], second["top1"], second["files"]) == (2.0, 2 * PASS_EXAMPLES, 0.75, 2)
    assert second["run_complete"]
    assert second["size_bytes"] == sum(path.stat().st_size for path in Path(second["folder"]).iterdir())
    assert third["passes"] is None
    age_s = (datetime.now(UTC) - datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)).total_seconds()
    assert abs(second["age_seconds"] - age_s) < 3600


@pytest.mark.parametrize("named", ["small", "small/001", "path", "checkpoints"])
def test_list_for_people_however_the_run_is_named(tmp_path: Path, named: str) -> None:
    run = make_run(tmp_path, 2)
    place = {"path": str(run), "checkpoints": str(run / "checkpoints")}.get(named, named)
    lines = invoke("list", place, "--run-dir", tmp_path).stdout.splitlines()
    assert lines[0].split()[:3] == ["checkpoint", "pass", "examples"]
    assert lines[2].split()[:5] == ["000002", "2.00", str(2 * PASS_EXAMPLES), "top-1", "75.00%"]
    assert "complete  done" in lines[2] and "complete  not done" in lines[1]


def test_a_run_that_is_not_there_or_has_none(tmp_path: Path) -> None:
    error = invoke("list", "nobody", "--run-dir", tmp_path).exception
    assert isinstance(error, ConfigurationError) and "no run 'nobody'" in str(error)
    run = make_run(tmp_path, 0)
    assert "holds no checkpoint" in invoke("list", run).stdout
    assert isinstance(invoke("verify", run).exception, ConfigurationError)


def test_verify_reads_all_and_names_what_is_damaged_with_exit_code_5(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2)
    whole = invoke("verify", run)
    assert whole.return_value == 0 and whole.stdout.count(": whole") == 2
    path = damage_last(run)
    assert values("list", run)["checkpoints"][-1]["state"] == "complete"  # headers do not tell
    result = invoke("verify", run)
    assert result.return_value == 5
    assert str(path) in result.stderr and "the checksum of shard" in result.stderr
    assert invoke("verify", run / "checkpoints" / "000001").return_value == 0
    found = json.loads(invoke("verify", run / "checkpoints" / "000002", "--json").stdout)
    assert not found["ok"] and len(found["checkpoints"][0]["damage"]) == 1


class TestRestore:
    def test_a_new_run_begins_with_a_copy_on_another_number_of_servers(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 2)
        made = values("restore", run, "--ps", "3", "--set", "train.passes=9", "--run-dir", tmp_path)
        folder = Path(made["folder"])
        assert folder == tmp_path / "small" / "002" and made["servers"] == 3
        copied = load_parameters(made["checkpoint"])
        for name, array in load_parameters(run / "checkpoints" / "000002").items():
            np.testing.assert_array_equal(copied[name], array)
        experiment = read_resolved(folder / "experiment.toml")
        assert (experiment.cluster.ps, experiment.train.passes) == (3, 9)
        assert experiment.model == make_experiment().model
        assert made["command"].endswith(f"--resume {folder} --run-dir {tmp_path}")
        assert find_resume(str(folder), tmp_path / "small" / "003") == Path(made["checkpoint"])

    def test_the_copy_is_its_owners_alone(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 1)
        for path in (run / "checkpoints").rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        before = os.umask(0)
        try:
            made = values("restore", run, "--into", tmp_path / "mine")
        finally:
            os.umask(before)
        paths = [tmp_path / "mine", *(tmp_path / "mine").rglob("*")]
        assert Path(made["checkpoint"]) in paths
        assert {
            path.name for path in paths if path.stat().st_mode & 0o777 != (0o700 if path.is_dir() else 0o600)
        } == set()

    def test_an_earlier_one_into_a_folder_of_ones_choice(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 2)
        result = invoke("restore", run / "checkpoints" / "000001", "--into", tmp_path / "mine")
        assert result.exception is None
        assert f"adamctl train {tmp_path}/mine/experiment.toml --resume {tmp_path}/mine" in result.stdout
        (copied,) = manifest.finished(tmp_path / "mine" / "checkpoints")
        assert manifest.verify(copied).number == 1
        again = invoke("restore", run, "--into", tmp_path / "mine").exception
        assert isinstance(again, ConfigurationError) and "found files in it" in str(again)
        assert manifest.verify(copied).number == 1

    def test_parameters_only_begin_anew(self, tmp_path: Path) -> None:
        run = make_run(tmp_path)
        settings = ("--set", "optimizer.type=adam", "--set", "seed=11")
        made = values("restore", run, "--parameters-only", *settings, "--run-dir", tmp_path)
        experiment = read_resolved(Path(made["folder"]) / "experiment.toml")
        assert experiment.train.warmstart_from == made["checkpoint"] and experiment.seed == 11
        assert "--resume" not in made["command"]

    def test_what_cannot_go_on_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        run = make_run(tmp_path)
        for setting, words in (("optimizer.type=adam", "rule 'momentum'"), ("model.layers.2.units=6", "dense1")):
            error = invoke("restore", run, "--set", setting, "--run-dir", tmp_path).exception
            assert isinstance(error, ConfigurationError) and words in str(error)
        damage_last(run)
        assert isinstance(invoke("restore", run, "--run-dir", tmp_path).exception, DamagedDataError)
        assert [path.name for path in (tmp_path / "small").iterdir()] == ["001"]


class TestPrune:
    def test_keeps_the_newest_and_every_kth(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 7)
        assert values("prune", run, "--keep", "2", "--every", "3", "--dry-run")["removed"] == [
            "000001", "000002", "000004", "000005",
        ]  # fmt: skip
        assert len(manifest.finished(run / "checkpoints")) == 7
        result = values("prune", run, "--keep", "2", "--every", "3")
        assert result["kept"] == ["000003", "000006", "000007"] and result["freed_bytes"] > 0
        assert [path.name for path in manifest.finished(run / "checkpoints")] == result["kept"]

    def test_never_the_only_complete_one_even_if_newer_ones_are_damaged(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 3)
        damage_last(run)
        result = values("prune", run, "--keep", "0")
        assert result["kept"] == ["000002"] and result["removed"] == ["000001", "000003"]
        assert values("prune", run, "--keep", "0")["removed"] == []

    def test_nothing_goes_where_no_complete_one_stays(self, tmp_path: Path) -> None:
        run = make_run(tmp_path)
        damage_last(run)
        assert values("prune", run, "--keep", "0")["removed"] == []

    def test_one_that_may_be_being_written_stays_and_what_a_crash_left_goes(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 3)
        (run / "checkpoints" / "000002" / "manifest.json").unlink()
        (run / "checkpoints" / "000004").mkdir()
        result = values("prune", run)
        assert result["removed"] == ["000002"] and result["kept"] == ["000001", "000003", "000004"]

    def test_for_people(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, 2)
        text = invoke("prune", run, "--keep", "1", "--dry-run").stdout
        assert "would remove" in text and "1 would be removed" in text

    @pytest.mark.parametrize(("keep", "every"), [(-1, None), (1, 0)])
    def test_numbers_that_make_no_sense(self, tmp_path: Path, keep: int, every: int | None) -> None:
        with pytest.raises(ConfigurationError, match="at least"):
            plan_pruning(stored(make_run(tmp_path) / "checkpoints"), keep, every)


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"examples": 96', b'"examples": 97'), (b"}\n", b"}"), (b'"checksum": "', b'"checksum":"')],
    ids=("value", "end", "space"),
)
def test_a_changed_manifest_is_damage_to_all_that_read_it(tmp_path: Path, old: bytes, new: bytes) -> None:
    run = make_run(tmp_path)
    path = run / "checkpoints" / "000001" / "manifest.json"
    before, found, after = path.read_bytes().rpartition(old)
    assert found
    path.write_bytes(before + new + after)
    assert values("list", run)["checkpoints"][0]["state"] == "damaged"
    (one,) = values("verify", run)["checkpoints"]
    assert "manifest.json: its checksum is wrong" in one["damage"][0]
    for arguments in (("ckpt", "restore"), ("ckpt", "restore", "--parameters-only"), ("export",), ("eval",)):
        target = [str(tmp_path / "out.npz")] if arguments == ("export",) else []
        result = CliRunner().invoke(application, [*arguments, str(run), *target])
        assert isinstance(result.exception, DamagedDataError), arguments
        assert "manifest.json: its checksum is wrong" in str(result.exception)
    with pytest.raises(DamagedDataError, match=r"manifest\.json: its checksum is wrong"):
        load_parameters(path.parent)


def test_a_manifest_of_another_program_is_damage_not_a_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    path = run / "checkpoints" / "000001" / "manifest.json"
    for content in (msgspec.json.encode({"files": 3}), path.read_bytes().replace(b'"small"', b'"sm\xffll"')):
        path.write_bytes(content)
        (one,) = values("list", run)["checkpoints"]
        assert one["state"] == "damaged"
        assert values("prune", run)["kept"] == ["000001"]
        assert not values("verify", run)["ok"]
