"""One clear message on stderr, nothing on stdout, and the right exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.cli import main as cli
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError, UnreachableError

EXPERIMENT = """\
name = "small"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "softmax"
units = 10
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(EXPERIMENT)
    return path


def adamctl(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ADAMCTL_")}
    return subprocess.run(
        [sys.executable, "-m", "adamctl", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env=clean | environment,
    )


def refused(*arguments: str, code: int, **environment: str) -> str:
    result = adamctl(*arguments, **environment)
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["train", "EXP", "--set", "train.batch=0", "--json"], 2, "train.batch: found 0"),
        (
            [
                "train",
                "EXP",
                "--json",
                "--workers",
                "3",
                "--set",
                "cluster.partitions=2",
            ],
            2,
            "cluster.partitions: found 2 with workers = 3",
        ),
        (["train", "EXP", "--json", "--wrokers", "2"], 2, "No such option"),
        (["train", "EXP", "--detach", "--json", "--resume", "nowhere"], 2, "the run could not be started"),
        (["eval", "none", "--json"], 2, "no run 'none'"),
        (["status", "--controller", "127.0.0.1:1", "--json"], 3, "127.0.0.1:1"),
    ],
)
def test_an_error_is_one_json_object_where_json_was_asked_for(
    arguments: list[str], code: int, said: str, experiment: Path
) -> None:
    words = [str(experiment) if word == "EXP" else word for word in arguments]
    result = adamctl(*words, cwd=experiment.parent)
    found = json.loads(result.stdout)
    assert (result.returncode, found["exit_code"], found["schema_version"]) == (code, code, 1)
    assert said in found["error"] and result.stderr


def test_an_unknown_command_and_option_have_a_nearest_spelling(experiment: Path) -> None:
    assert "Did you mean train?" in refused("trian", code=2)
    assert "--workers" in refused("train", str(experiment), "--worker", "3", code=2)
    assert "Did you mean start?" in refused("ps", "strat", code=2)


def test_a_value_of_the_wrong_type(experiment: Path) -> None:
    assert "'two' is not a valid integer" in refused("train", str(experiment), "--workers", "two", code=2)


def test_a_wrong_key(experiment: Path) -> None:
    experiment.write_text(EXPERIMENT + "[train]\nbacth = 3\n")
    message = refused("config", "check", str(experiment), code=2)
    assert message.startswith(f'adamctl: error: {experiment}:8: train.bacth: unknown key. Did you mean "batch"?')


def test_a_wrong_setting_and_variable(experiment: Path) -> None:
    message = refused("config", "check", str(experiment), "--set", "train.batch=no", code=2)
    assert '--set train.batch: train.batch: found "no"' in message
    message = refused("config", "check", str(experiment), code=2, ADAMCTL_TRAIN__BATCH="no")
    assert 'ADAMCTL_TRAIN__BATCH: train.batch: found "no"' in message


def test_a_missing_experiment(tmp_path: Path) -> None:
    for command in (["train"], ["summary"], ["config", "check"], ["config", "show"]):
        assert "no such experiment file" in refused(*command, str(tmp_path / "none.toml"), code=2)


def test_missing_data_says_which_files_and_how_to_get_them() -> None:
    message = refused("data", "inspect", "mnist", code=2)
    assert "train-images-idx3-ubyte.gz" in message
    assert "adamctl data fetch mnist --data DIR" in message


def test_a_folder_of_data_that_is_missing_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    for command in (["data", "inspect", "digits"], ["bench", "figures", "adam-9"], ["eval", "1"]):
        message = refused(*command, "--data", missing, code=2, ADAMCTL_DATA=str(tmp_path))
        assert f"--data': expected an existing folder; found {missing}" in message
    assert adamctl("data", "inspect", "digits", "--data=~", HOME=str(tmp_path)).returncode == 0


def test_a_missing_run(tmp_path: Path) -> None:
    for command in ("logs", "eval"):
        assert "no run 'none'" in refused(command, "none", "--run-dir", str(tmp_path), code=2)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    message = refused("ckpt", "list", str(tmp_path), "--run-dir", str(tmp_path / "runs"), code=2)
    assert f"{tmp_path} holds no experiment.toml." in message
    assert "Use --run-dir DIR for another folder" in message


def test_nothing_is_started_to_resume_from_nothing(experiment: Path, tmp_path: Path) -> None:
    message = refused("train", str(experiment), "--resume", "none-such", "--run-dir", str(tmp_path / "runs"), code=2)
    assert "--resume none-such: expected a checkpoint or a run folder with one; found none" in message
    assert not (tmp_path / "runs").exists()


def test_an_unknown_data_set_is_named_before_its_folder_is_asked_for() -> None:
    assert "expected one of the data sets" in refused("data", "fetch", "mnits", code=2)


def test_a_damaged_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "manifest.json").write_text("{ not JSON")
    assert "manifest.json" in refused("eval", str(folder), code=5)


def test_an_unreachable_controller_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        message = refused("status", "--controller", f"127.0.0.1:{port}", code=3)
    assert f"127.0.0.1:{port}" in message


def test_a_malformed_address() -> None:
    assert "host:port" in refused("status", "--controller", "nonsense", code=2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AdamctlError("x"), 1),
        (ConfigurationError("x"), 2),
        (UnreachableError("x"), 3),
        (DamagedDataError("x"), 5),
        (KeyboardInterrupt(), 130),
        (ValueError("a bug"), 1),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(cli.application, "main", fail)
    assert cli.run([]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("Traceback" in captured.err) == isinstance(error, ValueError)
