"""`adamctl run stop` where there is nothing to stop, or several runs, and what other commands say there."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.cluster.access import ClusterAccess
from adamctl.cli.main import application
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.launch.live_runs import Noted
from adamctl.launch.run_folder import create_run_folder
from tests.ports import free_ports


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The port of the default controller, where nobody listens; no run is in progress, and `small/001` has ended."""
    folder = create_run_folder(tmp_path / "runs", "small")
    (folder / "experiment.toml").touch()
    (folder / "summary.json").write_text(json.dumps({"state": "ended"}))
    (port,) = free_ports(1)
    for module in ("adamctl.net.address", "adamctl.cli.cluster.access"):
        monkeypatch.setattr(f"{module}.DEFAULT_CONTROLLER", f"tcp://127.0.0.1:{port}")
    monkeypatch.setattr("adamctl.cli.cluster.state.CONTROLLER_DEADLINE_S", 0.2)
    monkeypatch.setitem(ClusterAccess.__init__.__kwdefaults__, "deadline_s", 0.2)
    for variable in ("ADAMCTL_CONTROLLER", "ADAMCTL_CONFIG_STORE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return port


def refused(*arguments: str) -> BaseException | None:
    return CliRunner().invoke(application, arguments).exception


@pytest.mark.parametrize("name", ["small", "small/001", "runs/small/001"])
def test_a_run_that_is_over_is_not_looked_for_in_a_cluster(nobody: int, name: str) -> None:
    error = refused("run", "stop", name)
    assert isinstance(error, ConfigurationError)
    assert str(error) == "run small/001 is not in progress; its state is 'ended': adamctl run show small/001"


def test_a_cluster_may_have_a_job_of_that_name(nobody: int) -> None:
    assert isinstance(refused("run", "stop", "small", "--controller", f"127.0.0.1:{nobody}"), UnreachableError)
    with socket.create_server(("127.0.0.1", nobody)):
        assert isinstance(refused("run", "stop", "small"), UnreachableError)


@pytest.mark.parametrize("command", ["run stop", "status", "shards --run", "attach"])
def test_where_several_runs_go_on_the_command_for_one_is_shown(tmp_path: Path, nobody: int, command: str) -> None:
    notes = [Noted(tmp_path / "runs" / name, tmp_path / "state" / "runs") for name in ("a/001", "a/002")]
    words = command.removesuffix(" --run").split()
    result = CliRunner().invoke(application, words, prog_name="adamctl")
    assert isinstance(result.exception, ConfigurationError)
    assert str(result.exception).endswith(f"name one of them: a/002, a/001; for example: adamctl {command} a/002")
    for note in notes:
        note.remove()


@pytest.mark.parametrize("arguments", [("status",), ("run", "stop"), ("run", "stop", "other")])
def test_without_a_cluster_commands_say_that_there_is_no_run_either(nobody: int, arguments: tuple[str, ...]) -> None:
    error = refused(*arguments)
    assert isinstance(error, UnreachableError)
    assert "did not answer" in str(error) and str(error).endswith("; no run is in progress on this machine")
