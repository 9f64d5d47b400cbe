"""Agents as processes of this machine: started, watched, ended, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from adamctl.errors import UnreachableError
from adamctl.launch.places.engines import EngineOptions
from adamctl.launch.places.local import HOSTS_MAX, LocalPlaces
from adamctl.launch.places.places import AgentCommand, HostNeeds, Lost

SCRIPT = """
import os, sys, threading
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
threading.Thread(target=lambda: (os.read(int(options["--lifeline-fd"]), 1), os._exit(0)), daemon=True).start()
print(options["--name"], os.environ["ADAMCTL_TOKEN"], flush=True)
threading.Event().wait(60)
"""
AGENT = AgentCommand((sys.executable, "-c", SCRIPT), {"ADAMCTL_TOKEN": "secret"})


def local(folder: Path) -> LocalPlaces:
    return LocalPlaces(EngineOptions("small/001", folder, dict(os.environ)))


async def said_by(log: Path) -> str:
    for _ in range(1000):
        if text := _text(log):
            return text
        await asyncio.sleep(0.01)
    raise AssertionError(f"{log} stays empty")


def _text(log: Path) -> str:
    return log.read_text() if log.exists() else ""


async def test_hosts_have_names_of_their_own_and_the_token_by_environment(tmp_path: Path) -> None:
    places = local(tmp_path)
    try:
        await places.begin(2, HostNeeds(1), AGENT)
        assert await places.one_more("")
        for host in ("host-1", "host-2", "host-3"):
            assert await said_by(tmp_path / f"{host}.log") == f"{host} secret\n"
            command = psutil.Process(places.processes[host]).cmdline()
            assert "secret" not in command
    finally:
        await places.end()
    assert places.processes == {}


async def test_an_agent_that_ends_is_a_lost_host_once(tmp_path: Path) -> None:
    places = local(tmp_path)
    notices = places.notices()
    try:
        await places.begin(2, HostNeeds(1), AGENT)
        os.kill(places.processes["host-2"], signal.SIGKILL)
        found = await asyncio.wait_for(anext(notices), 10)
        assert found == Lost("host-2", "its agent has ended with status -9")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(notices), 0.3)
    finally:
        await places.end()


async def test_a_machine_is_not_filled_with_agents(tmp_path: Path) -> None:
    places = local(tmp_path)
    with pytest.raises(UnreachableError, match=f"expected at most {HOSTS_MAX} hosts on one machine"):
        await places.begin(HOSTS_MAX + 1, HostNeeds(1), AGENT)
    assert not await places.one_more("too many")
    await places.end()
