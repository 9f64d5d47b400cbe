"""Engines by name: those of this repository, with what each of them promises when no host is asked for."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from adamctl.config.load import load_experiment
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.places.by_hand import ByHand
from adamctl.launch.places.engines import ENGINES, EngineOptions, check_engine, open_engine
from adamctl.launch.places.local import LocalPlaces
from adamctl.launch.places.places import AgentCommand, HostNeeds
from adamctl.launch.places.slurm import _command
from adamctl.launch.train import TrainOptions, train
from tests.launch.test_front import Notes

AGENT = AgentCommand(
    ("/usr/bin/python3", "-m", "adamctl", "host", "start", "--front", "tcp://10.0.0.1:7000", "--data-root", "/a b"),
    {"ADAMCTL_TOKEN": "secret"},
)


def options(folder: Path, notes: list[str]) -> EngineOptions:
    return EngineOptions("small/001", folder, {}, notes.append)


def test_an_engine_is_found_by_its_name(tmp_path: Path) -> None:
    assert isinstance(open_engine("agents", options(tmp_path, [])), ByHand)
    assert isinstance(open_engine("local", options(tmp_path, [])), LocalPlaces)


def test_an_unknown_one_is_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="expected agents, local"):
        open_engine("spark", options(tmp_path, []))


def test_one_that_cannot_be_loaded_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "spark", "no_such_module:Spark")
    with pytest.raises(ConfigurationError, match=r"--on spark: it cannot be loaded here: .*no_such_module"):
        open_engine("spark", options(tmp_path, []))


def test_what_an_engine_needs_is_looked_for_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("agents", "local"):
        check_engine(name, {})
    with pytest.raises(UnreachableError, match="needs Slurm's commands, and sbatch is not found here"):
        check_engine("slurm", {"PATH": str(tmp_path)})
    for program in ("sbatch", "srun", "squeue", "sinfo", "scancel", "scontrol"):
        (tmp_path / program).touch(0o700)
    check_engine("slurm", {"PATH": str(tmp_path)})
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r"--on ray needs Ray here .*pip install 'adamctl\[ray\]'"):
        check_engine("ray", {})


@pytest.mark.parametrize("engine", ["slurm", "ray"])
def test_a_run_that_is_refused_for_its_engine_leaves_no_folder(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    digits = Path(__file__).resolve().parents[3] / "examples" / "digits.toml"
    experiment = load_experiment(digits, settings=(), environment={}, search=()).experiment
    environment = {**os.environ, "PATH": str(tmp_path)}
    hosts, runs = HostsAsked(1, 1, engine), tmp_path / "runs"
    with pytest.raises(AdamctlError, match=f"--on {engine} needs"):
        train(experiment, TrainOptions((), "none", runs, environment, hosts=hosts, bind="127.0.0.1"), Notes())
    assert list(tmp_path.iterdir()) == []


async def test_a_command_that_is_killed_before_it_has_read_its_script_has_failed_and_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when Slurm cancels the job in which it runs: `uvloop` then finds the other end of the pipe closed."""
    real = asyncio.create_subprocess_exec

    async def killed(*line: str, **options: Any) -> asyncio.subprocess.Process:
        process = await real(*line, **options)
        process.kill()
        await process.wait()

        async def communicate(text: bytes | None = None) -> tuple[bytes, bytes]:
            raise RuntimeError("unable to perform operation: the handler is closed")

        monkeypatch.setattr(process, "communicate", communicate)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", killed)
    status, out, errors = await _command(("sleep", "60"), os.environ, "a script")
    assert (status, out, errors) == (-9, "", "sleep: unable to perform operation: the handler is closed")


async def test_by_hand_shows_one_command_and_never_the_token(tmp_path: Path) -> None:
    notes: list[str] = []
    places = open_engine("agents", options(tmp_path, notes))
    await places.begin(2, HostNeeds(4), AGENT)
    assert await places.one_more("host-1 is lost")
    command = "adamctl host start --front tcp://10.0.0.1:7000 --data-root '/a b' --token-file TOKEN_FILE --name NAME"
    assert all(note.endswith(command) for note in notes) and len(notes) == 2
    assert "secret" not in " ".join(notes)
    assert "host-1 is lost" in notes[1]


async def test_notices_end_with_the_engine(tmp_path: Path) -> None:
    for name in ("agents", "local"):
        places = open_engine(name, options(tmp_path, []))

        async def all_of(places=places) -> list[object]:  # type: ignore[no-untyped-def]
            return [notice async for notice in places.notices()]

        task = asyncio.create_task(all_of())
        await asyncio.sleep(0)
        await places.end()
        await places.end()
        assert await asyncio.wait_for(task, 10) == []
